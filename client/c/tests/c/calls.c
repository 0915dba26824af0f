/* Tests each function, and each event and error that one process can cause, in the directory argv[1]. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <shmcast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

static void messages(void) {
    shmcast_publisher *p = publisher("messages", 1 << 20);
    shmcast_subscriber *s = subscriber("messages", SHMCAST_START_LATEST, 0);
    shmcast_event e;
    uint64_t sequence = 0, now = shmcast_publisher_now(p);
    CHECK(shmcast_publisher_capacity(p) == 1 << 20 && shmcast_publisher_max_message(p) == 128 << 10);
    CHECK(shmcast_publisher_epoch(p) == 1 && now > 0 && shmcast_publisher_is_cut_off(p) == 0);
    CHECK(shmcast_try_recv(s, &e) == SHMCAST_OK && shmcast_recv(s, 0, &e) == SHMCAST_OK);
    CHECK(shmcast_recv(s, 2000000, &e) == SHMCAST_OK);
    CHECK(shmcast_publish(p, "one", 3, &sequence) == SHMCAST_OK && sequence == 1);
    CHECK(shmcast_publish(p, NULL, 0, NULL) == SHMCAST_OK);
    CHECK(shmcast_publish_with(p, "three", 5, 7, 1, &sequence) == SHMCAST_OK && sequence == 3);
    CHECK(shmcast_publish_at(p, "four", 4, 65535, 0, now, &sequence) == SHMCAST_OK && sequence == 4);
    CHECK(shmcast_publisher_next_sequence(p) == 5);
    e = next(s, SHMCAST_MESSAGE);
    is_message(&e, 1, "one");
    CHECK(e.tag == 0 && e.key == 0 && (uintptr_t)e.payload % 16 == 0);
    CHECK(shmcast_subscriber_age_ns(s, e.time) < UINT64_C(60000000000));
    e = next(s, SHMCAST_MESSAGE);
    is_message(&e, 2, "");
    CHECK(shmcast_lag(s) <= 2 && shmcast_subscriber_next_sequence(s) == 3);
    CHECK(shmcast_recv(s, SHMCAST_FOREVER, &e) == SHMCAST_EVENT);
    is_message(&e, 3, "three");
    CHECK(e.tag == 7 && e.key == 1);
    char small[3], room[16];
    FAILS(shmcast_try_recv_into(s, small, sizeof small, &e), SHMCAST_ERROR_TOO_SMALL, "4 B, the buffer 3 B");
    FAILS(shmcast_try_recv_into(s, NULL, 16, &e), SHMCAST_ERROR_ARGUMENT, "16 B");
    CHECK(shmcast_try_recv_into(s, room, sizeof room, &e) == SHMCAST_EVENT);
    is_message(&e, 4, "four");
    CHECK(e.payload == room && e.tag == 65535 && e.time == (now & ((UINT64_C(1) << 48) - 1)));
    CHECK(shmcast_try_recv_into(s, NULL, 0, &e) == SHMCAST_OK);
    CHECK(shmcast_seek(s, 1) == SHMCAST_OK);
    e = next(s, SHMCAST_MESSAGE);
    is_message(&e, 1, "one");
    FAILS(shmcast_seek(s, 6), SHMCAST_ERROR_NOT_YET, "channel \"messages\": sequence 6 is not published yet");
    CHECK(shmcast_subscriber_next_sequence(s) == 2 && shmcast_subscriber_epoch(s) <= 1);
    CHECK(shmcast_subscriber_publisher_state(s) == SHMCAST_STATE_ACTIVE);
    CHECK(shmcast_publisher_close(p) == SHMCAST_OK && shmcast_subscriber_close(s) == SHMCAST_OK);
}

/* A receive with a time limit of 0 checks everything, each time. */
static void removed(void) {
    char command[4096];
    shmcast_event e;
    shmcast_publisher *p = publisher("removed", 1 << 16);
    shmcast_subscriber *s = subscriber("removed", SHMCAST_START_LATEST, 0);
    snprintf(command, sizeof command, "rm -r '%s/removed'", dir);
    CHECK(system(command) == 0);
    for (int i = 0; i < 2; i++) {
        FAILS(shmcast_recv(s, 0, &e), SHMCAST_ERROR_SUPERSEDED, "removed");
    }
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

static void claims(void) {
    shmcast_publisher *p = publisher("claims", 1 << 16);
    shmcast_subscriber *s = subscriber("claims", SHMCAST_START_OLDEST, 0);
    void *bytes = NULL;
    uint64_t sequence = 0;
    CHECK(shmcast_claim(p, 100, &bytes) == SHMCAST_OK && bytes);
    memcpy(bytes, "claimed", 7);
    FAILS(shmcast_publish(p, "x", 1, NULL), SHMCAST_ERROR_MISUSE, "a claim is open");
    FAILS(shmcast_claim(p, 1, &bytes), SHMCAST_ERROR_MISUSE, "a claim is open");
    FAILS(shmcast_commit(p, 101, 0, 0, NULL), SHMCAST_ERROR_ARGUMENT, "101 B exceeds the claim of 100 B");
    CHECK(shmcast_commit(p, 7, 9, 1, &sequence) == SHMCAST_OK && sequence == 1);
    FAILS(shmcast_commit(p, 7, 9, 1, &sequence), SHMCAST_ERROR_MISUSE, "nothing is claimed");
    FAILS(shmcast_claim(p, 8193, &bytes), SHMCAST_ERROR_TOO_LARGE, "8193 B exceeds");
    FAILS(shmcast_claim(p, 1, NULL), SHMCAST_ERROR_ARGUMENT, "address");
    CHECK(shmcast_claim(p, 8192, &bytes) == SHMCAST_OK && shmcast_abort(p) == SHMCAST_OK && shmcast_abort(p) == SHMCAST_OK);
    CHECK(shmcast_publisher_next_sequence(p) == 2);
    shmcast_event e = next(s, SHMCAST_MESSAGE);
    is_message(&e, 1, "claimed");
    static char large[9000];
    CHECK(e.tag == 9 && e.key == 1);
    FAILS(shmcast_publish(p, large, sizeof large, NULL), SHMCAST_ERROR_TOO_LARGE, "channel \"claims\"");
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

static void events(void) {
    shmcast_publisher *p = publisher("events", 1 << 16);
    shmcast_subscriber *s = subscriber("events", SHMCAST_START_OLDEST, 0);
    CHECK(shmcast_gap(p, 99) == SHMCAST_OK);
    shmcast_event e = next(s, SHMCAST_GAP);
    CHECK(e.what.gap.from == 1 && e.what.gap.to == 99 && e.payload == NULL && e.length == 0 && e.sequence == 0);
    FAILS(shmcast_gap(p, UINT64_MAX), SHMCAST_ERROR_OUT_OF_SEQUENCES, "out of reach");
    CHECK(shmcast_session(p, (const uint8_t *)"SESSION-01") == SHMCAST_OK);
    e = next(s, SHMCAST_NEW_SESSION);
    CHECK(memcmp(e.what.session, "SESSION-01", 10) == 0);
    FAILS(shmcast_session(p, NULL), SHMCAST_ERROR_ARGUMENT, "10 B");
    char block[1000] = {0};
    for (int i = 0; i < 1000; i++) CHECK(shmcast_publish(p, block, sizeof block, NULL) == SHMCAST_OK);
    e = next(s, SHMCAST_LAPPED);
    uint64_t resumed = e.what.lapped.resumed_at;
    CHECK(e.what.lapped.missed == resumed - 100 && resumed > 1000 && resumed < 1100);
    for (uint64_t n = resumed; n < 1100; n++) {
        e = next(s, SHMCAST_MESSAGE);
        CHECK(e.sequence == n && e.length == sizeof block);
    }
    FAILS(shmcast_seek(s, 100), SHMCAST_ERROR_TOO_OLD, "no longer in the ring");
    shmcast_subscriber *late = subscriber("events", SHMCAST_START_SEQUENCE, 100);
    e = next(late, SHMCAST_LAPPED);
    CHECK(e.what.lapped.missed == e.what.lapped.resumed_at - 100);
    shmcast_subscriber_close(late);
    CHECK(shmcast_publisher_close(p) == SHMCAST_OK);
    next(s, SHMCAST_END);
    CHECK(shmcast_subscriber_publisher_state(s) == SHMCAST_STATE_CLOSED);
    p = publisher("events", 0);
    e = next(s, SHMCAST_NEW_EPOCH);
    CHECK(e.what.epoch == 2 && shmcast_publisher_epoch(p) == 2 && shmcast_subscriber_epoch(s) == 2);
    shmcast_publisher_close(p);
    next(s, SHMCAST_END);
    shmcast_publish_options o = SHMCAST_PUBLISH_OPTIONS;
    o.dir = dir, o.flags = SHMCAST_ANEW, o.prepare = SHMCAST_PREPARE_NOTHING;
    CHECK(shmcast_publisher_open("events", &o, &p) == SHMCAST_OK && shmcast_publisher_next_sequence(p) == 1);
    FAILS(shmcast_recv(s, 1000000000, &e), SHMCAST_ERROR_SUPERSEDED, "subscribe again");
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

static void batches(void) {
    shmcast_publisher *p = publisher("batches", 1 << 20);
    shmcast_subscriber *s = subscriber("batches", SHMCAST_START_OLDEST, 0);
    shmcast_batch b;
    for (int i = 0; i < 100; i++) CHECK(shmcast_publish_with(p, &i, i % 3 == 0 ? 4 : 100, (uint16_t)i, i == 7, NULL) == SHMCAST_OK);
    shmcast_publisher_close(p);
    uint64_t due = 1;
    for (size_t most = 60; most != 0; most = b.event.kind == SHMCAST_END ? 0 : SIZE_MAX) {
        CHECK(shmcast_recv_batch(s, most, &b) == (most == 60 ? 60 : 41) && b.first == due);
        CHECK(b.messages == (most == 60 ? 60 : 40) && b.event.kind == (most == 60 ? 0 : SHMCAST_END));
        SHMCAST_FOREACH(m, &b) {
            int i = (int)due - 1;
            CHECK(m.sequence == due && m.tag == i && m.key == (i == 7) && m.length == (i % 3 == 0 ? 4 : 100));
            CHECK(memcmp(m.payload, &i, sizeof i) == 0 && (uintptr_t)m.payload % 16 == 0 && m.time != 0);
            due++;
        }
    }
    CHECK(due == 101 && shmcast_recv_batch(s, 60, &b) == 0 && b.messages == 0 && b.event.kind == 0);
    FAILS(shmcast_recv_batch(s, 60, NULL), SHMCAST_ERROR_ARGUMENT, "put the batch");
    SHMCAST_FOREACH(m, &b) CHECK(m.length == 0 && !"an empty batch has no message");
    CHECK(shmcast_subscriber_close(s) == SHMCAST_OK);
}

static void a_death_is_told(void) {
    shmcast_subscribe_options o = SHMCAST_SUBSCRIBE_OPTIONS;
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        shmcast_publisher *p = publisher("dies", 1 << 16);
        CHECK(shmcast_publish(p, "x", 1, NULL) == SHMCAST_OK && write(ready[1], "x", 1) == 1);
        for (;;) pause();
    }
    char byte;
    CHECK(child > 0 && read(ready[0], &byte, 1) == 1);
    o.dir = dir, o.start = SHMCAST_START_OLDEST, o.flags = SHMCAST_WATCH_PUBLISHER;
    shmcast_subscriber *s;
    shmcast_event e;
    CHECK(shmcast_subscriber_open("dies", &o, &s) == SHMCAST_OK);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    next(s, SHMCAST_MESSAGE);
    e = next(s, SHMCAST_PUBLISHER_GONE);
    CHECK(e.what.epoch == 1);
    CHECK(shmcast_recv(s, 20000000, &e) == SHMCAST_OK);
    shmcast_subscriber_close(s), close(ready[0]), close(ready[1]);
}

static void ways_to_wait(void) {
    shmcast_publisher *p = publisher("waits", 1 << 16);
    CHECK(shmcast_publish(p, "x", 1, NULL) == SHMCAST_OK);
    for (uint32_t wait = SHMCAST_WAIT_YIELD; wait <= SHMCAST_WAIT_SLEEP; wait++) {
        for (uint32_t resume = SHMCAST_RESUME_OLDEST; resume <= SHMCAST_RESUME_KEY; resume++) {
            shmcast_subscribe_options o = SHMCAST_SUBSCRIBE_OPTIONS;
            o.dir = dir, o.start = SHMCAST_START_OLDEST, o.wait = wait, o.resume = resume, o.spins = 10, o.sleep_ns = 1000;
            o.flags = SHMCAST_HIDDEN | SHMCAST_RECORD_LATENCY;
            shmcast_subscriber *s;
            shmcast_event e;
            CHECK(shmcast_subscriber_open("waits", &o, &s) == SHMCAST_OK);
            CHECK(shmcast_recv(s, SHMCAST_FOREVER, &e) == SHMCAST_EVENT && e.sequence == 1);
            CHECK(shmcast_recv(s, 100000, &e) == SHMCAST_OK);
            shmcast_subscriber_close(s);
        }
    }
    shmcast_publisher_close(p);
}

static void opening(void) {
    shmcast_publish_options po = SHMCAST_PUBLISH_OPTIONS;
    shmcast_subscribe_options so = SHMCAST_SUBSCRIBE_OPTIONS;
    shmcast_publisher *p = (shmcast_publisher *)&po, *held = publisher("held", 1 << 16);
    shmcast_subscriber *s;
    po.dir = so.dir = dir;
    FAILS(shmcast_publisher_open("a/b", &po, &p), SHMCAST_ERROR_NAME, "a/b");
    CHECK(p == NULL);
    FAILS(shmcast_publisher_open(NULL, &po, &p), SHMCAST_ERROR_ARGUMENT, "NULL");
    FAILS(shmcast_publisher_open("x", &po, NULL), SHMCAST_ERROR_ARGUMENT, "nowhere");
    FAILS(shmcast_publisher_open("\xff", &po, &p), SHMCAST_ERROR_ARGUMENT, "UTF-8");
    FAILS(shmcast_publisher_open("held", &po, &p), SHMCAST_ERROR_IN_USE, "stop it first");
    po.capacity = 1000;
    FAILS(shmcast_publisher_open("new", &po, &p), SHMCAST_ERROR_GEOMETRY, "1000");
    shmcast_publisher_close(held);
    po.capacity = 1 << 20;
    FAILS(shmcast_publisher_open("held", &po, &p), SHMCAST_ERROR_MISMATCH, "capacity");
    po.capacity = 0, po.mode = 0755;
    FAILS(shmcast_publisher_open("held", &po, &p), SHMCAST_ERROR_MODE, "mode");
    po.mode = 0, po.socket = "/nowhere";
    FAILS(shmcast_publisher_open("x", &po, &p), SHMCAST_ERROR_ARGUMENT, "not both");
    po.dir = NULL;
    FAILS(shmcast_publisher_open("x", &po, &p), SHMCAST_ERROR_NO_DAEMON, "start shmcastd");
    CHECK(shmcast_error_os() == 2);
    po.socket = NULL, po.dir = dir, po.prepare = 64;
    FAILS(shmcast_publisher_open("x", &po, &p), SHMCAST_ERROR_ARGUMENT, "prepare 64");
    CHECK(shmcast_error_os() == 0);
    po.prepare = 0, po.flags = 64;
    FAILS(shmcast_publisher_open("x", &po, &p), SHMCAST_ERROR_ARGUMENT, "flags 64");
    po.size = 0;
    FAILS(shmcast_publisher_open("x", &po, &p), SHMCAST_ERROR_ARGUMENT, "options of 0 B");
    FAILS(shmcast_subscriber_open("none", &so, &s), SHMCAST_ERROR_NOT_FOUND, "no channel \"none\"");
    so.schema_id = 5;
    FAILS(shmcast_subscriber_open("held", &so, &s), SHMCAST_ERROR_MISMATCH, "schema");
    so.schema_id = 0, so.wait = SHMCAST_WAIT_PARK;
    FAILS(shmcast_subscriber_open("held", &so, &s), SHMCAST_ERROR_NO_WAKER, "daemon");
    so.wait = SHMCAST_WAIT_SLEEP;
    FAILS(shmcast_subscriber_open("held", &so, &s), SHMCAST_ERROR_ARGUMENT, "sleep_ns");
    so.wait = 77;
    FAILS(shmcast_subscriber_open("held", &so, &s), SHMCAST_ERROR_ARGUMENT, "wait 77");
    so.wait = 0, so.start = 77;
    FAILS(shmcast_subscriber_open("held", &so, &s), SHMCAST_ERROR_ARGUMENT, "start 77");
    so.start = 0, so.resume = 77;
    FAILS(shmcast_subscriber_open("held", &so, &s), SHMCAST_ERROR_ARGUMENT, "resume 77");
}

/* A program of another version passes fewer options, or more. */
static void versions(void) {
    struct { shmcast_subscribe_options known; uint64_t newer[64]; } more = {.known = SHMCAST_SUBSCRIBE_OPTIONS};
    more.known.size = sizeof more, more.known.dir = dir;
    shmcast_subscriber *s;
    CHECK(shmcast_subscriber_open("held", &more.known, &s) == SHMCAST_OK);
    shmcast_subscriber_close(s);
    more.newer[63] = 1;
    FAILS(shmcast_subscriber_open("held", &more.known, &s), SHMCAST_ERROR_ARGUMENT, "this library, version");
    shmcast_subscribe_options fewer = SHMCAST_SUBSCRIBE_OPTIONS;
    fewer.dir = dir, fewer.size = offsetof(shmcast_subscribe_options, start), fewer.start = 77;
    CHECK(shmcast_subscriber_open("held", &fewer, &s) == SHMCAST_OK);
    shmcast_subscriber_close(s);
}

static void nothing(void) {
    shmcast_event e;
    uint64_t sequence;
    shmcast_publisher *p = publisher("nothing", 1 << 16);
    shmcast_subscriber *s = subscriber("nothing", SHMCAST_START_LATEST, 0);
    FAILS(shmcast_publish(NULL, "x", 1, &sequence), SHMCAST_ERROR_ARGUMENT, "handle is NULL");
    FAILS(shmcast_publish(p, NULL, 1, &sequence), SHMCAST_ERROR_ARGUMENT, "1 B");
    FAILS(shmcast_publish(p, "x", SIZE_MAX, &sequence), SHMCAST_ERROR_ARGUMENT, "address");
    FAILS(shmcast_recv(NULL, 0, &e), SHMCAST_ERROR_ARGUMENT, "handle is NULL");
    FAILS(shmcast_recv(s, 0, NULL), SHMCAST_ERROR_ARGUMENT, "nowhere");
    FAILS(shmcast_try_recv_into(s, NULL, 0, NULL), SHMCAST_ERROR_ARGUMENT, "nowhere");
    FAILS(shmcast_recv_batch(NULL, 1, NULL), SHMCAST_ERROR_ARGUMENT, "handle is NULL");
    CHECK(shmcast_seek(NULL, 1) == SHMCAST_ERROR_ARGUMENT && shmcast_gap(NULL, 1) == SHMCAST_ERROR_ARGUMENT);
    CHECK(shmcast_abort(NULL) == SHMCAST_ERROR_ARGUMENT && shmcast_publisher_is_cut_off(NULL) == SHMCAST_ERROR_ARGUMENT);
    CHECK(shmcast_lag(NULL) == 0 && shmcast_subscriber_next_sequence(NULL) == 0 && shmcast_publisher_now(NULL) == 0);
    CHECK(shmcast_publisher_close(NULL) == SHMCAST_OK && shmcast_subscriber_close(NULL) == SHMCAST_OK);
    CHECK(strcmp(shmcast_error_name(SHMCAST_ERROR_TOO_OLD), "too old") == 0 && strcmp(shmcast_error_name(-999), "unknown") == 0);
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

/* A handle goes to another thread, which has a last error of its own. */
static void *elsewhere(void *s) {
    CHECK(shmcast_error_message()[0] == 0);
    shmcast_event e = next(s, SHMCAST_MESSAGE);
    is_message(&e, 1, "across");
    FAILS(shmcast_seek(s, 99), SHMCAST_ERROR_NOT_YET, "99");
    return NULL;
}

static void threads(void) {
    shmcast_publisher *p = publisher("threads", 1 << 16);
    shmcast_subscriber *s = subscriber("threads", SHMCAST_START_LATEST, 0);
    CHECK(shmcast_publish(p, "across", 6, NULL) == SHMCAST_OK);
    FAILS(shmcast_seek(s, 98), SHMCAST_ERROR_NOT_YET, "98");
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, elsewhere, s) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(strstr(shmcast_error_message(), "98"));
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

/* A child that closes its copies changes nothing. */
static void forks(void) {
    shmcast_publisher *p = publisher("forks", 1 << 16);
    shmcast_subscriber *s = subscriber("forks", SHMCAST_START_LATEST, 0);
    pid_t child = fork();
    if (child == 0) _exit(shmcast_publisher_close(p) || shmcast_subscriber_close(s));
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(shmcast_publish(p, "after", 5, NULL) == SHMCAST_OK);
    shmcast_event e = next(s, SHMCAST_MESSAGE);
    is_message(&e, 1, "after");
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

/* Another program has written over the channel's memory. */
static void overwritten(void) {
    shmcast_publisher *p = publisher("overwritten", 1 << 16);
    shmcast_subscriber *s = subscriber("overwritten", SHMCAST_START_OLDEST, 0);
    CHECK(shmcast_publish(p, "soon gone", 9, NULL) == SHMCAST_OK);
    char path[4096];
    snprintf(path, sizeof path, "%s/overwritten/segment", dir);
    FILE *file = fopen(path, "r+");
    CHECK(file && fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    CHECK(fseek(file, size - (1 << 16), SEEK_SET) == 0);
    for (int i = 0; i < 1 << 16; i++) CHECK(fputc(0x55, file) != EOF);
    CHECK(fclose(file) == 0);
    shmcast_event e;
    FAILS(shmcast_recv(s, 1000000000, &e), SHMCAST_ERROR_CORRUPT, "channel \"overwritten\": corrupt record");
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

/* A file that is no segment, a directory of another user, and a directory that cannot exist. */
static void damage(void) {
    shmcast_publisher_close(publisher("damaged", 1 << 16));
    char path[4096];
    snprintf(path, sizeof path, "%s/damaged/segment", dir);
    FILE *file = fopen(path, "r+");
    CHECK(file && fwrite("not this", 1, 8, file) == 8 && fclose(file) == 0);
    shmcast_subscribe_options o = SHMCAST_SUBSCRIBE_OPTIONS;
    o.dir = dir;
    shmcast_subscriber *s;
    FAILS(shmcast_subscriber_open("damaged", &o, &s), SHMCAST_ERROR_SEGMENT, "damaged/segment");
    snprintf(path, sizeof path, "%s/foreign", dir);
    CHECK(mkdir(path, 0700) == 0);
    snprintf(path, sizeof path, "%s/foreign/thesis.txt", dir);
    file = fopen(path, "w");
    CHECK(file && fclose(file) == 0);
    shmcast_publish_options po = SHMCAST_PUBLISH_OPTIONS;
    po.dir = dir;
    shmcast_publisher *p;
    FAILS(shmcast_publisher_open("foreign", &po, &p), SHMCAST_ERROR_NOT_A_CHANNEL, "thesis.txt");
    po.dir = "/proc/nowhere/below";
    FAILS(shmcast_publisher_open("x", &po, &p), SHMCAST_ERROR_OS, "/proc/nowhere");
    CHECK(shmcast_error_os() != 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dir = argv[1];
    CHECK(shmcast_error_message()[0] == 0 && shmcast_version()[0] >= '0');
    messages(), removed(), claims(), events(), batches(), a_death_is_told(), ways_to_wait(), opening(), versions(), nothing(), threads(), forks(), overwritten(), damage();
    puts("all calls are as the header says");
    return 0;
}
