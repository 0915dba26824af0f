/* The C part of cost.rs. For each line of stdin, makes one pass over the ring, and prints the nanoseconds per message. */
#include <inttypes.h>
#include <shmcast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t sum;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void stop(void) {
    fprintf(stderr, "%s\n", shmcast_error_message());
    exit(1);
}

static void add(const void *payload) {
    uint64_t first;
    memcpy(&first, payload, sizeof first);
    sum += first;
}

/* Receives all messages of the ring, and returns their number. */
static uint64_t take(shmcast_subscriber *subscriber, char how) {
    uint64_t taken = 0;
    int64_t got;
    if (how == 'b') {
        shmcast_batch batch;
        while ((got = shmcast_recv_batch(subscriber, 1024, &batch)) > 0) {
            taken += (uint64_t)got;
            SHMCAST_FOREACH(m, &batch) add(m.payload);
        }
    } else {
        shmcast_event event;
        while ((got = shmcast_try_recv(subscriber, &event)) > 0) add(event.payload), taken++;
    }
    if (got < 0) stop();
    return taken;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    shmcast_subscribe_options options = SHMCAST_SUBSCRIBE_OPTIONS;
    options.dir = argv[1], options.start = SHMCAST_START_OLDEST;
    shmcast_subscriber *subscriber;
    if (shmcast_subscriber_open("full", &options, &subscriber) < 0) stop();
    shmcast_publish_options into = SHMCAST_PUBLISH_OPTIONS;
    into.dir = argv[1];
    shmcast_publisher *publisher;
    if (shmcast_publisher_open(argv[2], &into, &publisher) < 0) stop();
    uint64_t first = shmcast_subscriber_next_sequence(subscriber), messages = strtoull(argv[3], NULL, 10);
    char how;
    while (scanf(" %c", &how) == 1) {
        double started;
        if (how == 'p') {
            uint64_t payload[4] = {0};
            started = now();
            for (uint64_t n = 0; n < messages; n++) {
                payload[0] = n;
                if (shmcast_publish(publisher, payload, sizeof payload, NULL) < 0) stop();
            }
        } else {
            sum = 0;
            if (shmcast_seek(subscriber, first) < 0) stop();
            started = now();
            if (take(subscriber, how) != messages) return fputs("not all messages came\n", stderr), 1;
        }
        printf("%f %" PRIu64 "\n", (now() - started) / (double)messages, sum);
        fflush(stdout);
    }
    return 0;
}
