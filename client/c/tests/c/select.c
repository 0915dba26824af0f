/* Tests one wait for several subscribers, in the directory argv[1]. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "checks.h"

#define PATIENCE UINT64_C(60000000000)

static shmcast_select *selecting(shmcast_subscriber *const *subscribers, size_t count, uint32_t wait) {
    shmcast_subscribe_options o = SHMCAST_SUBSCRIBE_OPTIONS;
    o.wait = wait, o.spins = 10, o.sleep_ns = 100000;
    shmcast_select *select;
    CHECK(shmcast_select_open(subscribers, count, &o, &select) == SHMCAST_OK && select);
    return select;
}

static void say(shmcast_publisher *p, const char *text) { CHECK(shmcast_publish(p, text, strlen(text), NULL) == SHMCAST_OK); }

static void they_take_turns(void) {
    shmcast_publisher *p[3] = {publisher("a", 1 << 16), publisher("b", 1 << 16), publisher("c", 1 << 16)};
    shmcast_subscriber *s[3] = {subscriber("a", SHMCAST_START_OLDEST, 0), subscriber("b", SHMCAST_START_OLDEST, 0),
                                subscriber("c", SHMCAST_START_OLDEST, 0)};
    shmcast_select *all = selecting(s, 3, SHMCAST_WAIT_YIELD);
    shmcast_event e;
    size_t index = 99;
    CHECK(shmcast_select_recv(all, 0, &index, &e) == SHMCAST_OK && index == 3);
    CHECK(shmcast_select_recv(all, 2000000, &index, &e) == SHMCAST_OK && index == 3);
    for (int i = 0; i < 20; i++) say(p[1], "busy");
    for (int i = 0; i < 5; i++) say(p[0], "quiet"), say(p[2], "quiet");
    for (size_t turn = 0; turn < 15; turn++) {
        CHECK(shmcast_select_recv(all, PATIENCE, &index, &e) == SHMCAST_EVENT && index == turn % 3);
        is_message(&e, turn / 3 + 1, index == 1 ? "busy" : "quiet");
    }
    /* The subscribers can be called between calls on the select. */
    e = next(s[1], SHMCAST_MESSAGE);
    is_message(&e, 6, "busy");
    CHECK(shmcast_seek(s[1], 20) == SHMCAST_OK);
    CHECK(shmcast_select_recv(all, SHMCAST_FOREVER, NULL, &e) == SHMCAST_EVENT && e.sequence == 20);
    /* Losses and ends come with the index of their subscriber. */
    CHECK(shmcast_gap(p[2], 99) == SHMCAST_OK);
    CHECK(shmcast_select_recv(all, PATIENCE, &index, &e) == SHMCAST_EVENT && index == 2);
    CHECK(e.kind == SHMCAST_GAP && e.what.gap.from == 6 && e.what.gap.to == 99);
    static char block[1000];
    for (int i = 0; i < 200; i++) CHECK(shmcast_publish(p[0], block, sizeof block, NULL) == SHMCAST_OK);
    CHECK(shmcast_select_recv(all, PATIENCE, &index, &e) == SHMCAST_EVENT && index == 0 && e.kind == SHMCAST_LAPPED);
    uint64_t missed = e.what.lapped.missed, received = 0;
    shmcast_publisher_close(p[0]), shmcast_publisher_close(p[2]);
    for (int ends = 0; ends < 2;) {
        CHECK(shmcast_select_recv(all, PATIENCE, &index, &e) == SHMCAST_EVENT);
        CHECK(e.kind == SHMCAST_MESSAGE || e.kind == SHMCAST_END);
        if (e.kind == SHMCAST_END) CHECK(index != 1 && shmcast_subscriber_is_over(s[index]) == 1), ends++;
        else CHECK(index == 0), received++;
    }
    CHECK(missed + received == 200 && shmcast_subscriber_is_over(s[1]) == 0);
    p[0] = publisher("a", 0);
    CHECK(shmcast_select_recv(all, PATIENCE, &index, &e) == SHMCAST_EVENT && index == 0 && e.kind == SHMCAST_NEW_EPOCH);
    CHECK(shmcast_subscriber_is_over(s[0]) == 0);
    CHECK(shmcast_select_close(all) == SHMCAST_OK);
    say(p[1], "after");
    e = next(s[1], SHMCAST_MESSAGE);
    is_message(&e, 21, "after");
    for (int i = 0; i < 3; i++) shmcast_subscriber_close(s[i]);
    shmcast_publisher_close(p[0]), shmcast_publisher_close(p[1]);
}

static void *publishes(void *channels) {
    shmcast_publisher **p = channels;
    struct timespec pause = {0, 2000000};
    for (int turn = 0; turn < 50; turn++) {
        say(p[0], "x"), say(p[1], "y");
        if (turn % 10 == 0) nanosleep(&pause, NULL);
    }
    shmcast_publisher_close(p[0]), shmcast_publisher_close(p[1]);
    return NULL;
}

static void it_waits_in_every_way(void) {
    for (uint32_t wait = SHMCAST_WAIT_YIELD; wait <= SHMCAST_WAIT_PARK; wait++) {
        shmcast_publisher *p[2] = {publisher("left", 1 << 16), publisher("right", 1 << 16)};
        shmcast_subscriber *s[2] = {subscriber("left", SHMCAST_START_LATEST, 0), subscriber("right", SHMCAST_START_LATEST, 0)};
        shmcast_select *both = selecting(s, 2, wait);
        pthread_t publishing;
        CHECK(pthread_create(&publishing, NULL, publishes, p) == 0);
        int received[2] = {0, 0}, ends = 0;
        while (ends < 2) {
            shmcast_event e;
            size_t index;
            CHECK(shmcast_select_recv(both, wait % 2 ? SHMCAST_FOREVER : PATIENCE, &index, &e) == SHMCAST_EVENT && index < 2);
            if (e.kind == SHMCAST_MESSAGE) received[index]++;
            else if (e.kind == SHMCAST_END) ends++;
            else CHECK(e.kind == SHMCAST_NEW_EPOCH);
        }
        CHECK(received[0] == 50 && received[1] == 50);
        pthread_join(publishing, NULL);
        shmcast_select_close(both), shmcast_subscriber_close(s[0]), shmcast_subscriber_close(s[1]);
    }
}

static void misuse(void) {
    shmcast_publisher *p = publisher("misuse", 1 << 16);
    shmcast_subscriber *s[3] = {subscriber("misuse", SHMCAST_START_OLDEST, 0), subscriber("misuse", SHMCAST_START_OLDEST, 0), NULL};
    shmcast_subscriber *twice[3] = {s[0], s[1], s[0]};
    shmcast_select *select = (shmcast_select *)1;
    shmcast_subscribe_options o = SHMCAST_SUBSCRIBE_OPTIONS;
    shmcast_event e;
    size_t index = 99;
    FAILS(shmcast_select_open(NULL, 2, NULL, &select), SHMCAST_ERROR_ARGUMENT, "at least one subscriber");
    CHECK(select == NULL);
    FAILS(shmcast_select_open(s, 0, NULL, &select), SHMCAST_ERROR_ARGUMENT, "at least one subscriber");
    FAILS(shmcast_select_open(s, 5000, NULL, &select), SHMCAST_ERROR_ARGUMENT, "a select has 4096");
    FAILS(shmcast_select_open(s, 3, NULL, &select), SHMCAST_ERROR_ARGUMENT, "subscriber 2 of the select: the handle is NULL");
    FAILS(shmcast_select_open(twice, 3, NULL, &select), SHMCAST_ERROR_ARGUMENT, "subscribers 0 and 2 of the select are the same");
    o.wait = 77;
    FAILS(shmcast_select_open(s, 2, &o, &select), SHMCAST_ERROR_ARGUMENT, "wait 77");
    FAILS(shmcast_select_open(s, 2, NULL, NULL), SHMCAST_ERROR_ARGUMENT, "nowhere to put the select");
    CHECK(shmcast_select_close(NULL) == SHMCAST_OK);
    FAILS(shmcast_select_recv(NULL, 0, &index, &e), SHMCAST_ERROR_ARGUMENT, "NULL");
    CHECK(shmcast_select_open(s, 2, NULL, &select) == SHMCAST_OK);
    FAILS(shmcast_select_recv(select, 0, &index, NULL), SHMCAST_ERROR_ARGUMENT, "nowhere to put the event");
    CHECK(index == 99);
    /* A subscriber of a select can be closed. The select no longer uses it. */
    CHECK(shmcast_subscriber_close(s[1]) == SHMCAST_OK);
    FAILS(shmcast_select_recv(select, 0, &index, &e), SHMCAST_ERROR_MISUSE, "subscriber 1 of the select: the handle was closed");
    CHECK(index == 1);
    FAILS(shmcast_select_recv(select, SHMCAST_FOREVER, &index, &e), SHMCAST_ERROR_MISUSE, "was closed");
    say(p, "x");
    e = next(s[0], SHMCAST_MESSAGE); /* the other subscriber still works */
    CHECK(shmcast_select_close(select) == SHMCAST_OK);
    CHECK(shmcast_select_open(s, 1, NULL, &select) == SHMCAST_OK);
    say(p, "y");
    CHECK(shmcast_select_recv(select, PATIENCE, &index, &e) == SHMCAST_EVENT && index == 0);
    is_message(&e, 2, "y");
    CHECK(shmcast_subscriber_close(s[0]) == SHMCAST_OK && shmcast_select_close(select) == SHMCAST_OK);
    shmcast_publisher_close(p);
}

struct waiting {
    shmcast_select *select;
    size_t index;
    uint64_t timeout;
    int32_t code;
};

static void *waits(void *given) {
    struct waiting *w = given;
    shmcast_event e;
    w->code = shmcast_select_recv(w->select, w->timeout, &w->index, &e);
    return NULL;
}

static void a_wait_refuses_other_calls(void) {
    shmcast_publisher *p = publisher("held", 1 << 16);
    shmcast_subscriber *s = subscriber("held", SHMCAST_START_OLDEST, 0);
    struct waiting w = {selecting(&s, 1, SHMCAST_WAIT_YIELD), 99, PATIENCE, 99};
    pthread_t waiter;
    CHECK(pthread_create(&waiter, NULL, waits, &w) == 0);
    shmcast_event e;
    while (shmcast_try_recv(s, &e) != SHMCAST_ERROR_MISUSE) sched_yield();
    FAILS(shmcast_subscriber_close(s), SHMCAST_ERROR_MISUSE, "in use by another call");
    FAILS(shmcast_select_close(w.select), SHMCAST_ERROR_MISUSE, "in use by another call");
    say(p, "x");
    pthread_join(waiter, NULL);
    CHECK(w.code == SHMCAST_EVENT && w.index == 0);
    shmcast_select_close(w.select), shmcast_subscriber_close(s), shmcast_publisher_close(p);
}

static shmcast_publisher *to_be_woken;
static volatile sig_atomic_t rang;

static void ring(int number) { rang = number; }

/* A wait continues after a signal, as all waits of this library do. */
static void a_signal_does_not_end_a_wait(void) {
    to_be_woken = publisher("signal", 1 << 16);
    shmcast_subscriber *s = subscriber("signal", SHMCAST_START_OLDEST, 0);
    for (uint32_t wait = SHMCAST_WAIT_YIELD; wait <= SHMCAST_WAIT_PARK; wait++) {
        shmcast_select *select = selecting(&s, 1, wait);
        struct sigaction action = {0};
        action.sa_handler = ring;
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        struct itimerval soon = {{0, 0}, {0, 5000}};
        rang = 0;
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        shmcast_event e;
        while (!rang) CHECK(shmcast_select_recv(select, 20000000, NULL, &e) == SHMCAST_OK);
        say(to_be_woken, "x");
        CHECK(shmcast_select_recv(select, PATIENCE, NULL, &e) == SHMCAST_EVENT);
        shmcast_select_close(select);
    }
    shmcast_subscriber_close(s), shmcast_publisher_close(to_be_woken);
}

static void a_child_has_none_of_it(void) {
    shmcast_publisher *p = publisher("forked", 1 << 16);
    shmcast_subscriber *s = subscriber("forked", SHMCAST_START_OLDEST, 0);
    shmcast_select *select = selecting(&s, 1, SHMCAST_WAIT_YIELD);
    shmcast_event e;
    size_t index = 99;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        FAILS(shmcast_select_recv(select, SHMCAST_FOREVER, &index, &e), SHMCAST_ERROR_FORKED, "channel \"forked\"");
        FAILS(shmcast_seek(s, 1), SHMCAST_ERROR_FORKED, "belongs to the process that was forked");
        CHECK(index == 0 && shmcast_select_close(select) == SHMCAST_OK && shmcast_subscriber_close(s) == SHMCAST_OK);
        shmcast_publisher_close(p);
        _exit(0);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    say(p, "after");
    CHECK(shmcast_select_recv(select, PATIENCE, &index, &e) == SHMCAST_EVENT && index == 0);
    is_message(&e, 1, "after");
    shmcast_select_close(select), shmcast_subscriber_close(s), shmcast_publisher_close(p);
}

/* A subscriber that can receive nothing more is reported at each of its turns, and the others continue. */
static void one_that_fails_holds_up_nobody(void) {
    shmcast_publish_options o = SHMCAST_PUBLISH_OPTIONS;
    shmcast_publisher *p = publisher("replaced", 1 << 16), *good = publisher("good", 1 << 16), *anew;
    shmcast_subscriber *s[2] = {subscriber("replaced", SHMCAST_START_OLDEST, 0), subscriber("good", SHMCAST_START_OLDEST, 0)};
    shmcast_select *both = selecting(s, 2, SHMCAST_WAIT_YIELD);
    shmcast_publisher_close(p);
    o.dir = dir, o.flags = SHMCAST_ANEW, o.prepare = SHMCAST_PREPARE_NOTHING;
    CHECK(shmcast_publisher_open("replaced", &o, &anew) == SHMCAST_OK);
    shmcast_event e;
    size_t index;
    CHECK(shmcast_select_recv(both, PATIENCE, &index, &e) == SHMCAST_EVENT && index == 0 && e.kind == SHMCAST_END);
    for (int i = 0; i < 10; i++) say(good, "x");
    for (int received = 0; received < 10;) {
        int32_t code = shmcast_select_recv(both, PATIENCE, &index, &e);
        if (code == SHMCAST_EVENT) CHECK(index == 1), received++;
        else CHECK(index == 0 && code == SHMCAST_ERROR_SUPERSEDED);
    }
    FAILS(shmcast_select_recv(both, PATIENCE, &index, &e), SHMCAST_ERROR_SUPERSEDED, "channel \"replaced\"");
    CHECK(index == 0);
    shmcast_select_close(both), shmcast_subscriber_close(s[0]), shmcast_subscriber_close(s[1]);
    shmcast_publisher_close(anew), shmcast_publisher_close(good);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dir = argv[1];
    they_take_turns(), it_waits_in_every_way(), misuse(), a_wait_refuses_other_calls();
    a_signal_does_not_end_a_wait(), a_child_has_none_of_it(), one_that_fails_holds_up_nobody();
    puts("selects are as the header says");
    return 0;
}
