/* A publisher or a subscriber as a process of its own.
 *
 *   roles publish PLACE CHANNEL COUNT     publishes messages by the pattern, and closes; COUNT 0: until it is killed
 *   roles recv|batch|into PLACE CHANNEL   receives from sequence 1 to the end, and prints its sums
 *
 * PLACE is dir:PATH or socket:PATH. */
#include <inttypes.h>
#include <shmcast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pattern.h"

typedef struct {
    uint64_t received, missed, wrong, disorder, epochs, lives, ends, next;
} sums;

static int failed(const char *what, int64_t code) {
    fprintf(stderr, "%s: %s (%s)\n", what, shmcast_error_message(), shmcast_error_name((int32_t)code));
    return 1;
}

static const char *after(const char *place, const char *prefix) {
    size_t length = strlen(prefix);
    return strncmp(place, prefix, length) == 0 ? place + length : NULL;
}

static void count(sums *s, const shmcast_event *event) {
    switch (event->kind) {
    case SHMCAST_MESSAGE:
        s->received++;
        s->disorder += event->sequence != s->next;
        s->next = event->sequence + 1;
        s->wrong += pattern_wrong(event->sequence, event->payload, event->length);
        s->wrong += event->tag != (uint16_t)event->sequence || event->key != (event->sequence % 100 == 0);
        break;
    case SHMCAST_LAPPED:
        s->missed += event->what.lapped.missed;
        s->next += event->what.lapped.missed;
        s->disorder += event->what.lapped.resumed_at != s->next;
        break;
    case SHMCAST_LIVE:
        s->lives++;
        s->disorder += event->sequence != s->next;
        break;
    case SHMCAST_NEW_EPOCH: s->epochs++; break;
    case SHMCAST_END: s->ends++; break;
    default: s->disorder++;
    }
}

static void count_batch(sums *s, const shmcast_batch *batch) {
    size_t messages = 0;
    SHMCAST_FOREACH(m, batch) {
        shmcast_event event = {.kind = SHMCAST_MESSAGE, .tag = m.tag, .key = m.key, .sequence = m.sequence, .payload = m.payload};
        event.length = m.length, event.time = m.time;
        s->disorder += messages++ == 0 && batch->first != m.sequence;
        count(s, &event);
    }
    s->disorder += messages != batch->messages;
    if (batch->event.kind != 0) count(s, &batch->event);
}

static int publish(const char *place, const char *channel, uint64_t most) {
    shmcast_publish_options options = SHMCAST_PUBLISH_OPTIONS;
    options.dir = after(place, "dir:"), options.socket = after(place, "socket:");
    if (options.dir) options.capacity = 1 << 20;
    options.prepare = SHMCAST_PREPARE_PREFAULT;
    shmcast_publisher *publisher;
    int32_t code = shmcast_publisher_open(channel, &options, &publisher);
    if (code < 0) return failed("open", code);
    uint8_t *bytes = malloc(LARGEST);
    for (uint64_t n = 0; most == 0 || n < most; n++) {
        uint64_t next = shmcast_publisher_next_sequence(publisher), sequence = 0;
        pattern_fill(next, bytes);
        code = shmcast_publish_with(publisher, bytes, pattern_length(next), (uint16_t)next, next % 100 == 0, &sequence);
        if (code < 0 || sequence != next) return failed("publish", code);
    }
    printf("next %" PRIu64 "\n", shmcast_publisher_next_sequence(publisher));
    free(bytes);
    return shmcast_publisher_close(publisher);
}

static int receive(const char *how, const char *place, const char *channel) {
    shmcast_subscribe_options options = SHMCAST_SUBSCRIBE_OPTIONS;
    options.dir = after(place, "dir:"), options.socket = after(place, "socket:");
    options.start = SHMCAST_START_SEQUENCE, options.start_sequence = 1;
    options.wait_for_channel_ns = UINT64_C(20000000000);
    shmcast_subscriber *subscriber;
    int32_t code = shmcast_subscriber_open(channel, &options, &subscriber);
    if (code < 0) return failed("open", code);
    puts("attached");
    fflush(stdout);
    sums s = {.next = 1};
    uint8_t *buffer = malloc(LARGEST);
    while (s.ends == 0) {
        shmcast_event event;
        int64_t got;
        if (strcmp(how, "batch") == 0) {
            uint64_t before = s.received + s.missed;
            shmcast_batch batch;
            got = shmcast_recv_batch(subscriber, 1000, &batch);
            if (got >= 0) count_batch(&s, &batch);
            if (got == 0 && s.received + s.missed != before) return failed("a batch of nothing", 0);
        } else if (strcmp(how, "into") == 0) {
            got = shmcast_try_recv_into(subscriber, buffer, LARGEST, &event);
            if (got == SHMCAST_EVENT) count(&s, &event);
        } else {
            got = shmcast_recv(subscriber, 1000000, &event);
            if (got == SHMCAST_EVENT) count(&s, &event);
        }
        if (got < 0) return failed("receive", got);
    }
    free(buffer);
    printf("received %" PRIu64 " missed %" PRIu64 " wrong %" PRIu64 " disorder %" PRIu64 " epochs %" PRIu64 " lives %" PRIu64 "\n",
           s.received, s.missed, s.wrong, s.disorder, s.epochs, s.lives);
    return shmcast_subscriber_close(subscriber);
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "publish") == 0) return publish(argv[2], argv[3], strtoull(argv[4], NULL, 10));
    if (argc == 4) return receive(argv[1], argv[2], argv[3]);
    return 2;
}
