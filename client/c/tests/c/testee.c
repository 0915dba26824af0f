/* The testee in C for client/conformance, whose README has the contract. */
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <shmcast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static shmcast_subscriber *subscriber;
static shmcast_publisher *publisher;
static shmcast_board *board;
static int events, with_bytes;
static char place[4096], channel[256];
static char board_place[4096], board_channel[256]; /* the place of the subscriber's channel */
static int board_is_daemons;

static uint32_t crc32c(const uint8_t *bytes, size_t length) {
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

/* The value of this name in the request: a number, or a text that is copied. If the name is missing, 0 and no text. */
static uint64_t value(const char *request, const char *name, char *text, size_t size) {
    const char *at = strstr(request, name);
    if (text) *text = 0;
    if (!at) return 0;
    at += strlen(name);
    if (*at != '"') return strtoull(at, NULL, 10);
    size_t length = strcspn(at + 1, "\"");
    if (length >= size) exit(3);
    memcpy(text, at + 1, length), text[length] = 0;
    return 0;
}

/* The bytes from which payloads are cut, as in src/payload.rs of the suite. */
static uint8_t table[65536 + 4093];

static void make_table(void) {
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof table; i++) x = x * 1664525u + 1013904223u, table[i] = (uint8_t)(x >> 24);
}

static const uint8_t *checked(uint64_t sequence, size_t longest, size_t *length) {
    uint32_t hash = (uint32_t)sequence * 2654435761u, kind = hash >> 8 & 63, rest = hash >> 14;
    size_t n = kind < 48 ? rest & 255 : kind < 60 ? rest & 4095 : kind < 63 ? rest & 65535 : 65536;
    *length = n < longest ? n : longest;
    return table + sequence % 4093;
}

static void say(const char *text) { printf("%s\"%s\"", events++ ? "," : "", text); }

/* Prints a message. After a message from the board come a name and a number. */
static void message(uint64_t sequence, uint16_t tag, int key, uint64_t time, const void *payload, size_t length, const char *more,
                    uint64_t number) {
    const uint8_t *bytes = payload;
    printf("%s\"message %" PRIu64 " tag=%u key=%d time=%" PRIu64 " length=%zu crc=%08" PRIx32, events++ ? "," : "", sequence, tag, key,
           time, length, crc32c(payload, length));
    if (more) printf(" %s=%" PRIu64, more, number);
    if (with_bytes) printf(" bytes=");
    for (size_t i = 0; with_bytes && i < length; i++) printf("%02x", bytes[i]);
    printf("\"");
}

static void other(const shmcast_event *e) {
    char text[80];
    switch (e->kind) {
    case SHMCAST_LAPPED: snprintf(text, sizeof text, "lapped %" PRIu64 " %" PRIu64, e->what.lapped.missed, e->what.lapped.resumed_at); break;
    case SHMCAST_GAP: snprintf(text, sizeof text, "gap %" PRIu64 " %" PRIu64, e->what.gap.from, e->what.gap.to); break;
    case SHMCAST_LIVE: snprintf(text, sizeof text, "live %" PRIu64, e->sequence); break;
    case SHMCAST_NEW_EPOCH: snprintf(text, sizeof text, "epoch %" PRIu64, e->what.epoch); break;
    case SHMCAST_END: snprintf(text, sizeof text, "end"); break;
    case SHMCAST_NEW_SESSION:
        memcpy(text, "session ", 8);
        for (int i = 0; i < 10; i++) snprintf(text + 8 + 2 * i, 3, "%02x", e->what.session[i]);
        break;
    case SHMCAST_RESTARTED: snprintf(text, sizeof text, "restarted"); break;
    case SHMCAST_PUBLISHER_GONE: snprintf(text, sizeof text, "gone %" PRIu64, e->what.epoch); break;
    default: snprintf(text, sizeof text, "kind %u", e->kind);
    }
    say(text);
}

static void failure(int64_t code) {
    say(code == SHMCAST_ERROR_SUPERSEDED                                    ? "superseded"
        : code == SHMCAST_ERROR_CORRUPT                                      ? "corrupt"
        : code == SHMCAST_ERROR_BOARD || code == SHMCAST_ERROR_NO_BOARD      ? "no board"
                                                                             : shmcast_error_name((int32_t)code));
}

static void one_by_one(int most) {
    for (int empty = 0; empty < 130 && events < most;) {
        shmcast_event e;
        int32_t code = shmcast_try_recv(subscriber, &e);
        if (code < 0) {
            failure(code);
            return;
        }
        empty = code == SHMCAST_EVENT ? 0 : empty + 1;
        if (code != SHMCAST_EVENT) continue;
        if (e.kind == SHMCAST_MESSAGE)
            message(e.sequence, e.tag, e.key, e.time, e.payload, e.length, e.what.conflated.from_board ? "conflated" : NULL,
                    e.what.conflated.left_out);
        else other(&e);
    }
}

static void batch(int most) {
    for (int empty = 0; empty < 130 && events < most;) {
        shmcast_batch b;
        int64_t count = shmcast_recv_batch(subscriber, 64, &b);
        if (count < 0) {
            failure(count);
            return;
        }
        empty = count > 0 ? 0 : empty + 1;
        const struct shmcast_conflated *of = &b.event.what.conflated; /* a message from the board is alone in its batch */
        const char *more = b.event.kind == 0 && of->from_board ? "conflated" : NULL;
        SHMCAST_FOREACH(m, &b) message(m.sequence, m.tag, m.key, m.time, m.payload, m.length, more, of->left_out);
        if (b.event.kind != 0) other(&b.event);
    }
}

/* The class of a refused segment, by the words with which its sentence begins. */
static const char *reason(int32_t code) {
    static const char *const words[][2] = {
        {"truncated:", "truncated"},      {"foreign:", "foreign"},          {"layout version", "version"},
        {"header: checksum", "checksum"}, {"impossible sizes", "geometry"}, {"damaged header:", "field"},
        {"another reader has it", "in use"},   {"not a gate's page", "damaged"},
    };
    if (code == SHMCAST_ERROR_TOO_OLD) return "too old";
    if (code == SHMCAST_ERROR_NOT_YET) return "not yet";
    if (code == SHMCAST_ERROR_BOARD || code == SHMCAST_ERROR_NO_BOARD) return "no board";
    if (strstr(shmcast_error_message(), "not published yet")) return "not yet";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(shmcast_error_message(), words[i][0])) return words[i][1];
    if (code == SHMCAST_ERROR_GATE) return "unknown gate";
    return shmcast_error_name(code);
}

/* Reads the channel's place. Returns whether the channel is a daemon's. */
static int read_place(const char *request) {
    value(request, "\"channel\":", channel, sizeof channel);
    value(request, "\"socket\":", place, sizeof place);
    if (*place) return 1;
    value(request, "\"dir\":", place, sizeof place);
    return 0;
}

static int32_t subscribe(const char *request, shmcast_subscribe_options *options, shmcast_subscriber **to) {
    *(read_place(request) ? &options->socket : &options->dir) = place;
    options->prepare = SHMCAST_PREPARE_NOTHING;
    return shmcast_subscriber_open(channel, options, to);
}

static void close_all(void) {
    shmcast_subscriber_close(subscriber), subscriber = NULL;
    shmcast_board_close(board), board = NULL;
}

static int32_t open_channel(const char *request) {
    char start[16], gate[64];
    shmcast_subscribe_options options = SHMCAST_SUBSCRIBE_OPTIONS;
    options.start_sequence = value(request, "\"start\":", start, sizeof start);
    options.start = *start == 'o'   ? SHMCAST_START_OLDEST
                    : *start == 'l' ? SHMCAST_START_LATEST
                    : *start == 'b' ? SHMCAST_START_BOARD
                                    : SHMCAST_START_SEQUENCE;
    options.wait = SHMCAST_WAIT_SPIN, options.flags = SHMCAST_HIDDEN;
    if (value(request, "\"conflate\":", NULL, 0)) options.flags |= SHMCAST_CONFLATE;
    value(request, "\"gate\":", gate, sizeof gate);
    if (*gate) options.gate = gate;
    if (value(request, "\"watch\":", NULL, 0)) options.flags |= SHMCAST_WATCH_PUBLISHER;
    close_all();
    int32_t code = subscribe(request, &options, &subscriber);
    board_is_daemons = options.socket != NULL;
    memcpy(board_place, place, sizeof place), memcpy(board_channel, channel, sizeof channel);
    return code;
}

/* Looks a key up on the board of the channel that is open. */
static int32_t get(const char *request) {
    char digits[600];
    uint8_t key[300];
    value(request, "\"key\":", digits, sizeof digits);
    size_t length = strlen(digits) / 2;
    for (size_t i = 0; i < length; i++) {
        unsigned byte;
        sscanf(digits + 2 * i, "%2x", &byte);
        key[i] = (uint8_t)byte;
    }
    if (!board) {
        shmcast_subscribe_options options = SHMCAST_SUBSCRIBE_OPTIONS;
        *(board_is_daemons ? &options.socket : &options.dir) = board_place;
        options.prepare = SHMCAST_PREPARE_NOTHING;
        int32_t code = shmcast_board_open(board_channel, &options, &board);
        if (code < 0) return code;
    }
    shmcast_board_entry entry;
    int32_t code = shmcast_board_get(board, key, length, &entry);
    if (code < 0) return code;
    events = 0, with_bytes = 0;
    printf("{\"events\":[");
    const shmcast_event *m = &entry.message;
    if (code == SHMCAST_EVENT && m->kind == SHMCAST_MESSAGE)
        message(m->sequence, m->tag, m->key, m->time, m->payload, m->length, "count", entry.count);
    else if (code == SHMCAST_EVENT) printf("\"too large count=%" PRIu64 "\"", entry.count);
    puts("]}");
    return 0;
}

static int32_t create(const char *request) {
    char key[32], name[64], *stop;
    shmcast_publish_options options = SHMCAST_PUBLISH_OPTIONS;
    shmcast_gate gate = {0};
    shmcast_publisher_close(publisher);
    if (read_place(request)) options.socket = place;
    else options.dir = place, options.capacity = value(request, "\"capacity\":", NULL, 0);
    value(request, "\"board\":", key, sizeof key);
    if (*key) {
        options.board_start = (uint32_t)strtoul(key, &stop, 10), options.board_stop = (uint32_t)strtoul(stop + 2, NULL, 10);
        options.board_keys = value(request, "\"keys\":", NULL, 0), options.board_value = value(request, "\"value\":", NULL, 0);
    }
    value(request, "\"gate\":", name, sizeof name);
    if (*name) {
        gate.name = name, gate.lag_bytes = value(request, "\"lag\":", NULL, 0), gate.wait_ns = value(request, "\"wait\":", NULL, 0);
        if (gate.wait_ns == 0) gate.flags |= SHMCAST_GATE_NEVER_WAITS;
        if (value(request, "\"refuse\":", NULL, 0)) gate.flags |= SHMCAST_GATE_REFUSES;
        options.gates = &gate, options.gate_count = 1;
    }
    options.prepare = SHMCAST_PREPARE_NOTHING;
    return shmcast_publisher_open(channel, &options, &publisher);
}

static int32_t publish(const char *request) {
    static uint8_t payload[1 << 20];
    size_t length = value(request, "\"length\":", NULL, 0);
    uint64_t fill = value(request, "\"fill\":", NULL, 0);
    for (size_t i = 0; i < length; i++) payload[i] = (uint8_t)(fill + i);
    return shmcast_publish_with(publisher, payload, length, (uint16_t)value(request, "\"tag\":", NULL, 0),
                                (int32_t)value(request, "\"key\":", NULL, 0), NULL);
}

static int32_t produce(const char *request) {
    uint64_t to = value(request, "\"to\":", NULL, 0), next;
    size_t longest = value(request, "\"longest\":", NULL, 0), length;
    while ((next = shmcast_publisher_next_sequence(publisher)) <= to) {
        const uint8_t *bytes = checked(next, longest, &length);
        int32_t code = shmcast_publish(publisher, bytes, length, NULL);
        if (code < 0) return code;
    }
    return 0;
}

static uint64_t received, missed, wrong;
static int is_over;

static void count(uint64_t sequence, const void *payload, size_t length, size_t longest) {
    size_t right;
    const uint8_t *bytes = checked(sequence, longest, &right);
    if (length == right && memcmp(payload, bytes, length) == 0) received++;
    else wrong++;
}

static void count_other(const shmcast_event *e) {
    if (e->kind == SHMCAST_LAPPED) missed += e->what.lapped.missed;
    else if (e->kind == SHMCAST_GAP) missed += e->what.gap.to - e->what.gap.from + 1;
    else if (e->kind == SHMCAST_END) is_over = 1;
    else if (e->kind != SHMCAST_NEW_EPOCH && e->kind != SHMCAST_LIVE) wrong++;
}

/* Waits as an event loop does, and receives into a buffer of its own. */
static int32_t recv_by_descriptor(shmcast_subscriber *s, shmcast_event *e) {
    static uint8_t room[65536];
    for (;;) {
        uint64_t timeout_ns;
        int32_t code = shmcast_try_recv_into(s, room, sizeof room, e);
        if (code != SHMCAST_OK || (code = shmcast_arm(s, &timeout_ns, e)) != SHMCAST_OK) return code;
        struct pollfd bell = {.fd = shmcast_subscriber_descriptor(s), .events = POLLIN};
        poll(&bell, 1, (int)(timeout_ns / 1000000));
    }
}

/* Receives a channel from its first message to its end, and counts. */
static int64_t consume(const char *request) {
    char how[16];
    shmcast_subscriber *s;
    shmcast_subscribe_options options = SHMCAST_SUBSCRIBE_OPTIONS;
    size_t longest = value(request, "\"longest\":", NULL, 0);
    value(request, "\"how\":", how, sizeof how);
    options.start = SHMCAST_START_SEQUENCE, options.start_sequence = 1, options.wait_for_channel_ns = UINT64_C(30000000000);
    int is_daemons = read_place(request);
    if (is_daemons && *how == 'p') options.wait = SHMCAST_WAIT_PARK;
    int64_t code = subscribe(request, &options, &s);
    for (received = missed = wrong = 0, is_over = 0; code >= 0 && !is_over;) {
        shmcast_event e;
        shmcast_batch b;
        if (*how == 'p') {
            code = is_daemons ? recv_by_descriptor(s, &e) : shmcast_recv(s, SHMCAST_FOREVER, &e);
            if (code != SHMCAST_EVENT) continue;
            if (e.kind == SHMCAST_MESSAGE) count(e.sequence, e.payload, e.length, longest);
            else count_other(&e);
        } else if ((code = shmcast_recv_batch(s, 256, &b)) > 0) {
            SHMCAST_FOREACH(m, &b) count(m.sequence, m.payload, m.length, longest);
            if (b.event.kind != 0) count_other(&b.event);
        } else sched_yield();
    }
    if (code >= 0)
        printf("{\"events\":[\"received %" PRIu64 "\",\"missed %" PRIu64 "\",\"wrong %" PRIu64 "\"]}\n", received, missed, wrong);
    shmcast_subscriber_close(s);
    return code;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t first_word(const void *payload, size_t length) {
    uint64_t word = 0;
    if (length >= sizeof word) memcpy(&word, payload, sizeof word);
    return word;
}

/* Reads the available messages from a sequence on, again and again, and measures the time. */
static int64_t drain(const char *request) {
    char how[16];
    uint64_t passes = value(request, "\"passes\":", NULL, 0), sequence = value(request, "\"sequence\":", NULL, 0);
    value(request, "\"how\":", how, sizeof how);
    uint64_t sum = 0, messages = 0, began = now_ns();
    int64_t code = 0;
    for (uint64_t pass = 0; pass < passes && code >= 0; pass++) {
        shmcast_event e;
        shmcast_batch b;
        if ((code = shmcast_seek(subscriber, sequence)) < 0) break;
        if (*how == 'p') {
            while ((code = shmcast_try_recv(subscriber, &e)) == SHMCAST_EVENT)
                if (e.kind == SHMCAST_MESSAGE) sum += first_word(e.payload, e.length), messages++;
        } else {
            while ((code = shmcast_recv_batch(subscriber, 256, &b)) > 0)
                SHMCAST_FOREACH(m, &b) sum += first_word(m.payload, m.length), messages++;
        }
    }
    if (code < 0) return code;
    return printf("{\"events\":[\"ns %" PRIu64 "\",\"messages %" PRIu64 "\",\"sum %" PRIu64 "\"]}\n", now_ns() - began, messages, sum);
}

static int by_number(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Receives messages as they come, and keeps their ages. */
static int64_t live(const char *request) {
    size_t messages = value(request, "\"messages\":", NULL, 0), count = 0;
    uint64_t *ages = malloc(messages * sizeof *ages);
    int32_t code = ages ? 0 : SHMCAST_ERROR_OTHER;
    while (code >= 0 && count < messages) {
        shmcast_event e;
        if ((code = shmcast_try_recv(subscriber, &e)) == SHMCAST_EVENT && e.kind == SHMCAST_MESSAGE)
            ages[count++] = shmcast_subscriber_age_ns(subscriber, e.time);
    }
    if (code >= 0) {
        qsort(ages, messages, sizeof *ages, by_number);
        printf("{\"events\":[\"p50 %" PRIu64 "\",\"p99 %" PRIu64 "\"]}\n", ages[messages / 2], ages[messages * 99 / 100]);
    }
    free(ages);
    return code;
}

/* Publishes a number of messages, and measures the time. */
static int64_t fill(const char *request) {
    static const uint8_t payload[65536];
    size_t length = value(request, "\"length\":", NULL, 0);
    uint64_t messages = value(request, "\"messages\":", NULL, 0), began = now_ns();
    for (uint64_t i = 0; i < messages; i++) {
        int32_t code = shmcast_publish(publisher, payload, length, NULL);
        if (code < 0) return code;
    }
    return printf("{\"events\":[\"ns %" PRIu64 "\"]}\n", now_ns() - began);
}

/* Performs a request whose answer is only success or failure. */
static int32_t play(const char *what, const char *request) {
    if (strcmp(what, "open") == 0) return open_channel(request);
    if (strcmp(what, "seek") == 0) return shmcast_seek(subscriber, value(request, "\"sequence\":", NULL, 0));
    if (strcmp(what, "create") == 0) return create(request);
    if (strcmp(what, "publish") == 0) return publish(request);
    if (strcmp(what, "produce") == 0) return produce(request);
    if (strcmp(what, "end") == 0) {
        shmcast_publisher_close(publisher), publisher = NULL;
        return 0;
    }
    close_all();
    return 0;
}

int main(void) {
    static char request[8192];
    printf("{\"testee\":\"c\",\"version\":\"%s\",\"levels\":[1,2,3,4,5,6,7,8,9]}\n", shmcast_version());
    fflush(stdout);
    make_table();
    while (fgets(request, sizeof request, stdin)) {
        char what[16];
        int64_t code = 0;
        value(request, "\"do\":", what, sizeof what);
        if (strcmp(what, "poll") == 0 || strcmp(what, "batch") == 0) {
            int most = (int)value(request, "\"most\":", NULL, 0);
            events = 0, with_bytes = value(request, "\"bytes\":", NULL, 0) == 1;
            printf("{\"events\":[");
            (*what == 'p' ? one_by_one : batch)(most > 0 ? most : INT_MAX);
            puts("]}");
        } else if (strcmp(what, "consume") == 0) {
            code = consume(request);
        } else if (strcmp(what, "get") == 0) {
            code = get(request);
        } else if (strcmp(what, "drain") == 0) {
            code = drain(request);
        } else if (strcmp(what, "live") == 0) {
            code = live(request);
        } else if (strcmp(what, "fill") == 0) {
            code = fill(request);
        } else if ((code = play(what, request)) >= 0) {
            puts("{\"ok\":true}");
        }
        if (code < 0) printf("{\"refused\":\"%s\"}\n", reason((int32_t)code));
        fflush(stdout);
    }
    shmcast_publisher_close(publisher);
    close_all();
    return 0;
}
