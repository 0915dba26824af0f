/* The parts that the test programs share: checks, and handles in the directory `dir`. */
#include <shmcast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
                                      shmcast_error_message()), exit(1)))
/* The call fails with this code, and its sentence has these words. */
#define FAILS(call, code, words) \
    do { CHECK((call) == (code)); CHECK(strstr(shmcast_error_message(), words)); } while (0)

static const char *dir;

static shmcast_publisher *publisher(const char *name, uint64_t capacity) {
    shmcast_publish_options o = SHMCAST_PUBLISH_OPTIONS;
    o.dir = dir, o.capacity = capacity, o.prepare = SHMCAST_PREPARE_NOTHING;
    shmcast_publisher *p;
    CHECK(shmcast_publisher_open(name, &o, &p) == SHMCAST_OK && p);
    return p;
}

static shmcast_subscriber *subscriber(const char *name, uint32_t start, uint64_t sequence) {
    shmcast_subscribe_options o = SHMCAST_SUBSCRIBE_OPTIONS;
    o.dir = dir, o.start = start, o.start_sequence = sequence;
    shmcast_subscriber *s;
    CHECK(shmcast_subscriber_open(name, &o, &s) == SHMCAST_OK && s);
    return s;
}

static shmcast_event next(shmcast_subscriber *s, uint32_t kind) {
    shmcast_event e;
    CHECK(shmcast_recv(s, 30000000000, &e) == SHMCAST_EVENT);
    CHECK(e.kind == kind && e.reserved == 0 && e.reserved_too == 0);
    return e;
}

static void is_message(const shmcast_event *e, uint64_t sequence, const char *text) {
    CHECK(e->kind == SHMCAST_MESSAGE && e->sequence == sequence && e->length == strlen(text));
    CHECK(memcmp(e->payload, text, e->length) == 0);
}
