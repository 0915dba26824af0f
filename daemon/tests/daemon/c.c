/* c PART SOCKET: plays a part of the tests in c.rs at a daemon's channels. */
#include <poll.h>
#include <pthread.h>
#include <shmcast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) \
    ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
                                      shmcast_error_message()), exit(1)))

static const char *socket_path;

static int32_t publishes(const char *channel, uint32_t flags, shmcast_publisher **p) {
    shmcast_publish_options o = SHMCAST_PUBLISH_OPTIONS;
    o.socket = socket_path, o.flags = flags;
    return shmcast_publisher_open(channel, &o, p);
}

static int32_t subscribes(const char *channel, uint32_t wait, shmcast_subscriber **s) {
    shmcast_subscribe_options o = SHMCAST_SUBSCRIBE_OPTIONS;
    o.socket = socket_path, o.wait = wait;
    return shmcast_subscriber_open(channel, &o, s);
}

static shmcast_event next(shmcast_subscriber *s, uint32_t kind) {
    shmcast_event e;
    CHECK(shmcast_recv(s, UINT64_C(20000000000), &e) == SHMCAST_EVENT);
    CHECK(e.kind == kind);
    return e;
}

static void *reader(void *s) {
    for (uint64_t n = 1; n <= 200; n++) CHECK(next(s, SHMCAST_MESSAGE).sequence == n);
    next(s, SHMCAST_END);
    return NULL;
}

/* One reader spins, the other one parks. */
static void traffic(const char *channel) {
    shmcast_publisher *p;
    shmcast_subscriber *yields, *parks;
    CHECK(publishes(channel, 0, &p) == SHMCAST_OK && subscribes(channel, SHMCAST_WAIT_YIELD, &yields) == SHMCAST_OK);
    CHECK(subscribes(channel, SHMCAST_WAIT_PARK, &parks) == SHMCAST_OK);
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, reader, yields) == 0 && pthread_create(&threads[1], NULL, reader, parks) == 0);
    for (int i = 0; i < 200; i++) {
        CHECK(shmcast_publish(p, &i, sizeof i, NULL) == SHMCAST_OK);
        if (i % 20 == 0) usleep(2000);
    }
    CHECK(shmcast_publisher_close(p) == SHMCAST_OK);
    CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
    CHECK(shmcast_subscriber_close(yields) == SHMCAST_OK && shmcast_subscriber_close(parks) == SHMCAST_OK);
}

static void refusals(void) {
    shmcast_publisher *p, *second;
    shmcast_subscriber *s;
    CHECK(publishes("none", 0, &p) == SHMCAST_ERROR_NOT_FOUND && subscribes("none", 0, &s) == SHMCAST_ERROR_NOT_FOUND);
    CHECK(strstr(shmcast_error_message(), "none"));
    CHECK(publishes("ticks", 0, &p) == SHMCAST_OK && publishes("ticks", 0, &second) == SHMCAST_ERROR_IN_USE);
    CHECK(shmcast_publisher_is_cut_off(p) == 0 && shmcast_publisher_close(p) == SHMCAST_OK);
    CHECK(geteuid() != 0 || setuid(65534) == 0); /* root is let in everywhere */
    CHECK(subscribes("shut", 0, &s) == SHMCAST_ERROR_DENIED);
}

static void anew(void) {
    shmcast_publisher *p;
    shmcast_subscriber *s;
    CHECK(subscribes("strict", 0, &s) == SHMCAST_OK && publishes("strict", 0, &p) == SHMCAST_OK);
    CHECK(shmcast_publisher_next_sequence(p) > 1 && shmcast_publisher_close(p) == SHMCAST_OK);
    CHECK(publishes("strict", SHMCAST_ANEW, &p) == SHMCAST_OK && shmcast_publisher_next_sequence(p) == 1);
    CHECK(shmcast_publish(p, "first", 5, NULL) == SHMCAST_OK);
    shmcast_event e;
    int restarted = 0;
    do {
        CHECK(shmcast_recv(s, UINT64_C(20000000000), &e) == SHMCAST_EVENT);
        restarted += e.kind == SHMCAST_RESTARTED;
    } while (e.kind != SHMCAST_MESSAGE);
    CHECK(restarted == 1 && e.sequence == 1 && e.length == 5);
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

/* The channel restarts in a ring with another clock. The clock of the last batch belongs to no message of a select. */
static void clocks(void) {
    shmcast_publisher *p;
    shmcast_subscriber *s;
    CHECK(subscribes("strict", 0, &s) == SHMCAST_OK && publishes("strict", 0, &p) == SHMCAST_OK);
    CHECK(shmcast_publish(p, "one", 3, NULL) == SHMCAST_OK);
    shmcast_batch b;
    do CHECK(shmcast_recv_batch(s, 64, &b) >= 0);
    while (b.messages == 0);
    puts("received");
    fflush(stdout);
    CHECK(getchar() == EOF);
    shmcast_publisher_close(p);
    CHECK(publishes("strict", SHMCAST_ANEW, &p) == SHMCAST_OK && shmcast_publish(p, "two", 3, NULL) == SHMCAST_OK);
    shmcast_subscribe_options o = SHMCAST_SUBSCRIBE_OPTIONS;
    shmcast_select *select;
    CHECK(shmcast_select_open(&s, 1, &o, &select) == SHMCAST_OK);
    shmcast_event e;
    int restarted = 0;
    do {
        CHECK(shmcast_select_recv(select, UINT64_C(20000000000), NULL, &e) == SHMCAST_EVENT);
        restarted += e.kind == SHMCAST_RESTARTED;
    } while (e.kind != SHMCAST_MESSAGE);
    uint64_t age = shmcast_subscriber_age_ns(s, e.time);
    CHECK(restarted == 1 && age > 0 && age < UINT64_C(60000000000));
    shmcast_select_close(select), shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

/* Publishes and receives until stdin is closed. The daemon dies meanwhile. */
static void across(void) {
    shmcast_publisher *p;
    shmcast_subscriber *s;
    CHECK(publishes("ticks", 0, &p) == SHMCAST_OK && subscribes("ticks", SHMCAST_WAIT_PARK, &s) == SHMCAST_OK);
    struct pollfd in = {.fd = 0, .events = POLLIN};
    while (poll(&in, 1, 0) == 0) {
        uint64_t sequence;
        CHECK(shmcast_publish(p, "on", 2, &sequence) == SHMCAST_OK);
        CHECK(next(s, SHMCAST_MESSAGE).sequence == sequence);
    }
    shmcast_publisher_close(p);
    next(s, SHMCAST_END);
    shmcast_subscriber_close(s);
}

/* Publishes until somebody takes the channel away. */
static void cut(void) {
    shmcast_publisher *p;
    CHECK(publishes("strict", 0, &p) == SHMCAST_OK);
    puts("open");
    fflush(stdout);
    int32_t code;
    for (int tries = 0; (code = shmcast_publish(p, "x", 1, NULL)) == SHMCAST_OK && tries < 20000; tries++) usleep(1000);
    CHECK(code == SHMCAST_ERROR_CUT_OFF && strstr(shmcast_error_message(), "channel \"strict\"") != NULL);
    CHECK(shmcast_publisher_is_cut_off(p) == 1 && shmcast_gap(p, 1u << 30) == SHMCAST_ERROR_CUT_OFF);
    CHECK(shmcast_publisher_close(p) == SHMCAST_OK);
}

/* Dies, and leaves a child with copies of its publisher and its subscriber. The child lives until stdin is closed. */
static void orphan(void) {
    shmcast_publisher *p;
    shmcast_subscriber *s;
    shmcast_event e;
    CHECK(publishes("ticks", 0, &p) == SHMCAST_OK && subscribes("rates", SHMCAST_WAIT_PARK, &s) == SHMCAST_OK);
    if (fork() != 0) {
        puts("forked");
        fflush(stdout);
        sleep(1000);
    }
    CHECK(shmcast_publish(p, "x", 1, NULL) == SHMCAST_ERROR_FORKED && strstr(shmcast_error_message(), "forked") != NULL);
    CHECK(shmcast_try_recv(s, &e) == SHMCAST_ERROR_FORKED);
    char byte;
    CHECK(read(0, &byte, 1) == 0);
    CHECK(shmcast_publisher_close(p) == SHMCAST_OK && shmcast_subscriber_close(s) == SHMCAST_OK);
    puts("well");
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    socket_path = argv[2];
    if (strcmp(argv[1], "traffic") == 0) traffic("ticks"), traffic("strict");
    if (strcmp(argv[1], "refusals") == 0) refusals();
    if (strcmp(argv[1], "anew") == 0) anew();
    if (strcmp(argv[1], "clocks") == 0) clocks();
    if (strcmp(argv[1], "cut") == 0) cut();
    if (strcmp(argv[1], "across") == 0) across();
    if (strcmp(argv[1], "orphan") == 0) orphan();
    return 0;
}
