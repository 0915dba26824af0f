/* The testee in C for client/conformance, whose README has the contract. */
#include <inttypes.h>
#include <shmcast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shmcast_subscriber *subscriber;
static int events;

static uint32_t crc32c(const uint8_t *bytes, size_t length) {
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

/* The value behind this name in the request: a number, or a text that is copied. */
static uint64_t value(const char *request, const char *name, char *text, size_t size) {
    const char *at = strstr(request, name);
    if (!at) exit(2);
    at += strlen(name);
    if (*at != '"') return strtoull(at, NULL, 10);
    size_t length = strcspn(at + 1, "\"");
    if (length >= size) exit(3);
    memcpy(text, at + 1, length), text[length] = 0;
    return 0;
}

static void say(const char *text) { printf("%s\"%s\"", events++ ? "," : "", text); }

static void message(uint64_t sequence, uint16_t tag, int key, uint64_t time, const void *payload, size_t length) {
    char text[160];
    snprintf(text, sizeof text, "message %" PRIu64 " tag=%u key=%d time=%" PRIu64 " length=%zu crc=%08" PRIx32, sequence, tag, key,
             time, length, crc32c(payload, length));
    say(text);
}

static void other(const shmcast_event *e) {
    char text[80];
    switch (e->kind) {
    case SHMCAST_LAPPED: snprintf(text, sizeof text, "lapped %" PRIu64 " %" PRIu64, e->what.lapped.missed, e->what.lapped.resumed_at); break;
    case SHMCAST_GAP: snprintf(text, sizeof text, "gap %" PRIu64 " %" PRIu64, e->what.gap.from, e->what.gap.to); break;
    case SHMCAST_NEW_EPOCH: snprintf(text, sizeof text, "epoch %" PRIu64, e->what.epoch); break;
    case SHMCAST_END: snprintf(text, sizeof text, "end"); break;
    case SHMCAST_NEW_SESSION:
        memcpy(text, "session ", 8);
        for (int i = 0; i < 10; i++) snprintf(text + 8 + 2 * i, 3, "%02x", e->what.session[i]);
        break;
    default: snprintf(text, sizeof text, "kind %u", e->kind);
    }
    say(text);
}

static void failure(int64_t code) {
    say(code == SHMCAST_ERROR_SUPERSEDED ? "superseded" : code == SHMCAST_ERROR_CORRUPT ? "corrupt" : shmcast_error_name((int32_t)code));
}

static void poll(void) {
    for (int empty = 0; empty < 130;) {
        shmcast_event e;
        int32_t code = shmcast_try_recv(subscriber, &e);
        if (code < 0) {
            failure(code);
            return;
        }
        empty = code == SHMCAST_EVENT ? 0 : empty + 1;
        if (code != SHMCAST_EVENT) continue;
        if (e.kind == SHMCAST_MESSAGE) message(e.sequence, e.tag, e.key, e.time, e.payload, e.length);
        else other(&e);
    }
}

static void batch(void) {
    for (int empty = 0; empty < 130;) {
        shmcast_batch b;
        int64_t count = shmcast_recv_batch(subscriber, 64, &b);
        if (count < 0) {
            failure(count);
            return;
        }
        empty = count > 0 ? 0 : empty + 1;
        SHMCAST_FOREACH(m, &b) message(m.sequence, m.tag, m.key, m.time, m.payload, m.length);
        if (b.event.kind != 0) other(&b.event);
    }
}

/* The class of a refused segment, by the words with which its sentence begins. */
static const char *reason(int32_t code) {
    static const char *const words[][2] = {
        {"truncated:", "truncated"},      {"foreign:", "foreign"},          {"layout version", "version"},
        {"header: checksum", "checksum"}, {"impossible sizes", "geometry"}, {"damaged header:", "field"},
    };
    if (code == SHMCAST_ERROR_TOO_OLD) return "too old";
    if (code == SHMCAST_ERROR_NOT_YET) return "not yet";
    if (strstr(shmcast_error_message(), "not published yet")) return "not yet";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(shmcast_error_message(), words[i][0])) return words[i][1];
    return shmcast_error_name(code);
}

static int32_t open_channel(const char *request) {
    char dir[4096], channel[256], start[16] = "";
    shmcast_subscribe_options options = SHMCAST_SUBSCRIBE_OPTIONS;
    value(request, "\"dir\":", dir, sizeof dir), value(request, "\"channel\":", channel, sizeof channel);
    options.start_sequence = value(request, "\"start\":", start, sizeof start);
    options.start = *start == 'o' ? SHMCAST_START_OLDEST : *start == 'l' ? SHMCAST_START_LATEST : SHMCAST_START_SEQUENCE;
    options.dir = dir, options.wait = SHMCAST_WAIT_SPIN, options.prepare = SHMCAST_PREPARE_NOTHING, options.flags = SHMCAST_HIDDEN;
    shmcast_subscriber_close(subscriber);
    return shmcast_subscriber_open(channel, &options, &subscriber);
}

int main(void) {
    static char request[8192];
    printf("{\"testee\":\"c\",\"version\":\"%s\",\"levels\":[1,2,3]}\n", shmcast_version());
    fflush(stdout);
    while (fgets(request, sizeof request, stdin)) {
        char what[16];
        int32_t code = 0;
        value(request, "\"do\":", what, sizeof what);
        if (strcmp(what, "poll") == 0 || strcmp(what, "batch") == 0) {
            events = 0;
            printf("{\"events\":[");
            if (*what == 'p') poll();
            else batch();
            puts("]}");
            fflush(stdout);
            continue;
        }
        if (strcmp(what, "open") == 0) code = open_channel(request);
        else if (strcmp(what, "seek") == 0) code = shmcast_seek(subscriber, value(request, "\"sequence\":", NULL, 0));
        else shmcast_subscriber_close(subscriber), subscriber = NULL;
        if (code < 0) printf("{\"refused\":\"%s\"}\n", reason(code));
        else puts("{\"ok\":true}");
        fflush(stdout);
    }
    return shmcast_subscriber_close(subscriber);
}
