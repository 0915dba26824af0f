/* Tests the functions and options that the first header did not have, in the directory argv[1]. calls.c tests all others, and is also built
 * with the first header. */
#include <time.h>
#include <unistd.h>

#include "checks.h"

/* The start of a reader, and the messages that it leaves out. */
static void choices(void) {
    shmcast_publisher *p = publisher("choices", 1 << 16);
    struct timespec between;
    for (uint16_t tag = 1; tag <= 4; tag++) {
        if (tag == 3) usleep(200000), clock_gettime(CLOCK_REALTIME, &between), usleep(200000);
        CHECK(shmcast_publish_with(p, "x", 1, tag, tag == 2, NULL) == SHMCAST_OK);
    }
    uint16_t tags[] = {4, 1};
    shmcast_subscribe_options so = SHMCAST_SUBSCRIBE_OPTIONS;
    so.dir = dir, so.start = SHMCAST_START_KEY, so.journal = "";
    shmcast_subscriber *s;
    CHECK(shmcast_subscriber_open("choices", &so, &s) == SHMCAST_OK && next(s, SHMCAST_MESSAGE).sequence == 2);
    shmcast_subscriber_close(s);
    so.start = SHMCAST_START_TIME, so.start_time_ns = (uint64_t)between.tv_sec * 1000000000 + (uint64_t)between.tv_nsec;
    CHECK(shmcast_subscriber_open("choices", &so, &s) == SHMCAST_OK && next(s, SHMCAST_MESSAGE).sequence == 3);
    shmcast_subscriber_close(s);
    so.start = SHMCAST_START_OLDEST, so.tags = tags, so.tag_count = 2;
    CHECK(shmcast_subscriber_open("choices", &so, &s) == SHMCAST_OK);
    CHECK(next(s, SHMCAST_MESSAGE).sequence == 1 && next(s, SHMCAST_MESSAGE).sequence == 4);
    shmcast_subscriber_close(s);
    so.tags = NULL;
    FAILS(shmcast_subscriber_open("choices", &so, &s), SHMCAST_ERROR_ARGUMENT, "tag_count");
    so.tag_count = 0, so.prepare = SHMCAST_PREPARE_NUMA_NODE;
    FAILS(shmcast_subscriber_open("choices", &so, &s), SHMCAST_ERROR_ARGUMENT, "prepare 16");
    shmcast_publisher_close(p);
}

/* The memory of the channel is lost. Its sequences continue after its journal, in which readers continue. */
static void journals(void) {
    char journal[4096], memory[4096], gone[4096];
    snprintf(journal, sizeof journal, "%s/journal", dir);
    snprintf(memory, sizeof memory, "%s/memory", dir);
    snprintf(gone, sizeof gone, "%s/gone", dir);
    shmcast_publish_options po = SHMCAST_PUBLISH_OPTIONS;
    po.dir = memory, po.capacity = 1 << 16, po.continue_from = journal;
    shmcast_publisher *p;
    CHECK(shmcast_publisher_open("t", &po, &p) == SHMCAST_OK && shmcast_publish(p, "lost", 4, NULL) == SHMCAST_OK);
    shmcast_publisher_close(p);
    CHECK(rename(memory, gone) == 0);
    CHECK(shmcast_publisher_open("t", &po, &p) == SHMCAST_OK);
    CHECK(shmcast_publisher_next_sequence(p) == (UINT64_C(1) << 32) + 2);
    shmcast_subscribe_options so = SHMCAST_SUBSCRIBE_OPTIONS;
    so.dir = memory, so.start = SHMCAST_START_SEQUENCE, so.start_sequence = 1, so.journal = journal;
    shmcast_subscriber *s;
    CHECK(shmcast_subscriber_open("t", &so, &s) == SHMCAST_OK);
    shmcast_event e = next(s, SHMCAST_GAP);
    CHECK(e.what.gap.from == 1);
    shmcast_subscriber_close(s), shmcast_publisher_close(p);
    po.dir = NULL, po.socket = "/nowhere";
    CHECK(shmcast_publisher_open("t", &po, &p) < 0 && p == NULL);
}

/* The calls of an event loop, and waits with a buffer of the caller. The conformance suite tests them with a daemon. */
static void loops(void) {
    shmcast_publisher *p = publisher("loops", 1 << 16);
    shmcast_subscriber *s = subscriber("loops", SHMCAST_START_LATEST, 0);
    shmcast_event e;
    char room[8];
    uint64_t timeout_ns = 0;
    FAILS(shmcast_subscriber_descriptor(s), SHMCAST_ERROR_NO_WAKER, "SHMCAST_WAIT_PARK");
    CHECK(shmcast_arm(s, &timeout_ns, &e) == SHMCAST_OK && timeout_ns == 1000000 && shmcast_disarm(s) == SHMCAST_OK);
    CHECK(shmcast_recv_into(s, 2000000, room, sizeof room, &e) == SHMCAST_OK);
    CHECK(shmcast_publish(p, "one", 3, NULL) == SHMCAST_OK && shmcast_publish(p, "number two", 10, NULL) == SHMCAST_OK);
    CHECK(shmcast_arm(s, NULL, &e) == SHMCAST_EVENT);
    is_message(&e, 1, "one");
    FAILS(shmcast_recv_into(s, SHMCAST_FOREVER, room, sizeof room, &e), SHMCAST_ERROR_TOO_SMALL, "10 B, the buffer 8 B");
    FAILS(shmcast_recv_into(s, 1, NULL, 8, &e), SHMCAST_ERROR_ARGUMENT, "8 B");
    char large[10];
    CHECK(shmcast_recv_into(s, SHMCAST_FOREVER, large, sizeof large, &e) == SHMCAST_EVENT && e.payload == large);
    is_message(&e, 2, "number two");
    FAILS(shmcast_arm(NULL, NULL, &e), SHMCAST_ERROR_ARGUMENT, "handle is NULL");
    CHECK(shmcast_disarm(NULL) == SHMCAST_ERROR_ARGUMENT && shmcast_subscriber_descriptor(NULL) == SHMCAST_ERROR_ARGUMENT);
    shmcast_publisher_close(p), shmcast_subscriber_close(s);
}

/* Whether an end was the channel's end. */
static void ends(void) {
    for (int i = 0; i < 2; i++) {
        shmcast_publisher *p = publisher("ends", 1 << 16);
        CHECK(shmcast_publish(p, &i, sizeof i, NULL) == SHMCAST_OK && shmcast_publisher_close(p) == SHMCAST_OK);
    }
    shmcast_subscriber *s = subscriber("ends", SHMCAST_START_OLDEST, 0);
    for (int turn = 0; turn < 2; turn++) {
        next(s, SHMCAST_MESSAGE);
        next(s, SHMCAST_END);
        CHECK(shmcast_subscriber_is_over(s) == 0);
        next(s, SHMCAST_NEW_EPOCH);
        next(s, SHMCAST_MESSAGE);
        next(s, SHMCAST_END);
        CHECK(shmcast_subscriber_is_over(s) == 1 && shmcast_subscriber_is_over(NULL) == 0);
        FAILS(shmcast_seek(s, 9), SHMCAST_ERROR_NOT_YET, "sequence 9 is not published yet");
        CHECK(shmcast_subscriber_is_over(s) == 1); /* it keeps its place, behind the end */
        CHECK(shmcast_seek(s, 1) == SHMCAST_OK && shmcast_subscriber_is_over(s) == 0);
    }
    CHECK(shmcast_subscriber_age_ns(s, 0) == 0);
    /* This subscriber begins on a closed channel that has no message for it, so it waits for the next publisher. */
    shmcast_subscriber *waiting = subscriber("ends", SHMCAST_START_LATEST, 0);
    next(waiting, SHMCAST_END);
    CHECK(shmcast_subscriber_is_over(waiting) == 0);
    shmcast_publisher_close(publisher("ends", 1 << 16));
    next(waiting, SHMCAST_NEW_EPOCH);
    next(waiting, SHMCAST_END);
    CHECK(shmcast_subscriber_is_over(waiting) == 1);
    shmcast_subscriber_close(waiting), shmcast_subscriber_close(s);
}

/* Boards: joined to the stream, for slow readers, and read key by key. */
static void boards(void) {
    shmcast_publish_options po = SHMCAST_PUBLISH_OPTIONS;
    po.dir = dir, po.capacity = 1 << 16, po.board_start = 0, po.board_stop = 3, po.board_keys = 8, po.board_value = 64;
    po.flags = SHMCAST_REMOVE_BY_TAG, po.board_remove_tag = 9;
    shmcast_publisher *p;
    CHECK(shmcast_publisher_open("boards", &po, &p) == SHMCAST_OK);
    shmcast_subscribe_options so = SHMCAST_SUBSCRIBE_OPTIONS;
    so.dir = dir, so.flags = SHMCAST_CONFLATE;
    shmcast_subscriber *slow, *late, *batch;
    CHECK(shmcast_subscriber_open("boards", &so, &slow) == SHMCAST_OK);
    for (int i = 0; i < 4000; i++) CHECK(shmcast_publish(p, i % 2 ? "EUR 1.08" : "GBP 1.27", 8, NULL) == SHMCAST_OK);
    for (int key = 0; key < 2; key++) {
        shmcast_event e = next(slow, SHMCAST_MESSAGE);
        CHECK(e.sequence == (uint64_t)(3999 + key) && e.what.conflated.from_board == 1 && e.what.conflated.left_out == 1999);
    }
    CHECK(next(slow, SHMCAST_LIVE).sequence == 4001);
    so.flags = 0, so.start = SHMCAST_START_BOARD;
    CHECK(shmcast_subscriber_open("boards", &so, &late) == SHMCAST_OK);
    CHECK(shmcast_subscriber_open("boards", &so, &batch) == SHMCAST_OK);
    shmcast_event first = next(late, SHMCAST_MESSAGE);
    CHECK(first.sequence == 3999 && first.what.conflated.from_board == 1 && first.what.conflated.left_out == 0);
    shmcast_batch b;
    CHECK(shmcast_recv_batch(batch, 100, &b) == 1 && b.first == 3999 && b.event.kind == 0 && b.event.what.conflated.from_board == 1);
    CHECK(shmcast_recv_batch(batch, 100, &b) == 1 && b.first == 4000);
    CHECK(shmcast_publish_with(p, "JPY 150", 7, 0, 0, NULL) == SHMCAST_OK);
    next(late, SHMCAST_MESSAGE), next(late, SHMCAST_LIVE);
    shmcast_event then = next(late, SHMCAST_MESSAGE);
    CHECK(then.sequence == 4001 && then.what.conflated.from_board == 0);
    so.start = 0;
    shmcast_board *board;
    shmcast_board_entry entry, all[4];
    CHECK(shmcast_board_open("boards", &so, &board) == SHMCAST_OK);
    CHECK(shmcast_board_get(board, "EUR", 3, &entry) == SHMCAST_EVENT && entry.sequence == 4000 && entry.count == 2000);
    CHECK(entry.key_length == 3 && memcmp(entry.key, "EUR", 3) == 0);
    is_message(&entry.message, 4000, "EUR 1.08");
    CHECK(shmcast_board_age_ns(board, entry.message.time) < UINT64_C(1000000000000));
    CHECK(shmcast_publish_with(p, "GBP gone", 8, 9, 0, NULL) == SHMCAST_OK);
    CHECK(shmcast_board_get(board, "GBP", 3, &entry) == SHMCAST_OK && shmcast_board_get(board, "no", 2, &entry) == SHMCAST_OK);
    CHECK(shmcast_board_entries(board, NULL, 0) == 2 && shmcast_board_entries(board, all, 4) == 2);
    CHECK(all[0].sequence == 4000 && all[1].sequence == 4001 && memcmp(all[1].key, "JPY", 3) == 0);
    shmcast_board_counters counters;
    CHECK(shmcast_publish(p, "x", 1, NULL) == SHMCAST_OK && shmcast_board_count(board, &counters) == SHMCAST_OK);
    CHECK(counters.since == 1);
    CHECK(counters.through == 4003 && counters.keys == 2 && counters.no_key == 1 && counters.no_room == 0);
    FAILS(shmcast_board_get(board, "EUR", 3, NULL), SHMCAST_ERROR_ARGUMENT, "entry");
    FAILS(shmcast_board_get(NULL, "EUR", 3, &entry), SHMCAST_ERROR_ARGUMENT, "handle is NULL");
    shmcast_board_close(board), shmcast_subscriber_close(slow), shmcast_subscriber_close(late), shmcast_subscriber_close(batch);
    FAILS(shmcast_board_open("choices", &so, &board), SHMCAST_ERROR_NO_BOARD, "has no board");
    CHECK(board == NULL);
    shmcast_publisher_close(p);
    po.board_stop = 0;
    FAILS(shmcast_publisher_open("none", &po, &p), SHMCAST_ERROR_ARGUMENT, "board_stop");
    so.conflate_behind = 1;
    FAILS(shmcast_subscriber_open("boards", &so, &slow), SHMCAST_ERROR_ARGUMENT, "SHMCAST_CONFLATE");
}

/* A reader that the publisher waits for. */
static void gates(void) {
    shmcast_gate risk = {.name = "risk", .lag_percent = 50, .wait_ns = 1000000};
    shmcast_gate all[2] = {risk, {.name = "ledger", .flags = SHMCAST_GATE_REFUSES | SHMCAST_GATE_NEVER_WAITS}};
    shmcast_publish_options po = SHMCAST_PUBLISH_OPTIONS;
    po.dir = dir, po.capacity = 1 << 20, po.gates = all, po.gate_count = 2;
    shmcast_publisher *p;
    CHECK(shmcast_publisher_open("gates", &po, &p) == SHMCAST_OK);
    shmcast_gate_status now[2];
    CHECK(shmcast_publisher_gates(p, now, 2) == 2 && strcmp(now[1].name, "ledger") == 0 && now[1].state == SHMCAST_GATE_ABSENT);
    shmcast_subscribe_options so = SHMCAST_SUBSCRIBE_OPTIONS;
    so.dir = dir, so.gate = "ledger";
    shmcast_subscriber *ledger, *second;
    CHECK(shmcast_subscriber_open("gates", &so, &ledger) == SHMCAST_OK);
    FAILS(shmcast_subscriber_open("gates", &so, &second), SHMCAST_ERROR_GATE, "ledger");
    so.gate = "nobody";
    FAILS(shmcast_subscriber_open("gates", &so, &second), SHMCAST_ERROR_GATE, "nobody");
    uint64_t published = 0, received = 0;
    int code;
    while ((code = shmcast_try_publish(p, "entry", 5, 7, 1, &published)) == SHMCAST_OK) CHECK(published < 100000);
    CHECK(code == SHMCAST_ERROR_FULL && strstr(shmcast_error_message(), "ledger"));
    CHECK(strcmp(shmcast_error_gate(), "ledger") == 0 && shmcast_error_behind() > 1000);
    CHECK(shmcast_publish(p, "entry", (size_t)1 << 30, NULL) == SHMCAST_ERROR_TOO_LARGE);
    CHECK(shmcast_error_gate()[0] == 0 && shmcast_error_behind() == 0);
    CHECK(shmcast_publish(p, "entry", 5, NULL) == SHMCAST_ERROR_FULL && strcmp(shmcast_error_gate(), "ledger") == 0);
    shmcast_event e;
    while (shmcast_try_recv(ledger, &e) == SHMCAST_EVENT)
        if (e.kind == SHMCAST_MESSAGE) received++, CHECK(e.sequence == received && e.tag == 7 && e.key == 1);
    CHECK(received == published && shmcast_publish(p, "entry", 5, NULL) == SHMCAST_OK);
    CHECK(shmcast_publisher_gates(p, now, 2) == 2 && now[1].state == SHMCAST_GATE_IN_FORCE && now[1].turned_away == 1);
    CHECK(now[1].refused == 1 && now[1].pid == (uint64_t)getpid() && now[0].state == SHMCAST_GATE_ABSENT);
    shmcast_subscriber_close(ledger), shmcast_publisher_close(p);
    all[1].name = "risk";
    FAILS(shmcast_publisher_open("gates", &po, &p), SHMCAST_ERROR_GATE, "risk");
    all[1].name = NULL;
    FAILS(shmcast_publisher_open("gates", &po, &p), SHMCAST_ERROR_ARGUMENT, "name");
    po.gate_count = 0;
    FAILS(shmcast_publisher_open("gates", &po, &p), SHMCAST_ERROR_ARGUMENT, "gate_count");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dir = argv[1];
    choices(), ends(), journals(), loops(), boards(), gates();
    puts("all calls are as the header says");
    return 0;
}
