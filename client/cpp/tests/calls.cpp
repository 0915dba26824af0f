// Tests each call of shmcast.hpp, in the directory argv[1].
#include <shmcast.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

#define CHECK(...) \
    ((__VA_ARGS__) ? (void)0 : (std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #__VA_ARGS__), std::exit(1)))

namespace {

std::string dir;

struct quote {
    std::uint64_t instrument;
    std::int64_t bid, ask;
};

shmcast::publisher publisher(const char *name, std::uint64_t capacity = 1 << 16) {
    shmcast::publish_options options;
    options.dir = dir, options.capacity = capacity, options.prepare = SHMCAST_PREPARE_NOTHING;
    return shmcast::publisher(name, options);
}

shmcast::subscriber subscriber(const char *name, shmcast_start start = SHMCAST_START_OLDEST) {
    shmcast::subscribe_options options;
    options.dir = dir, options.start = start;
    return shmcast::subscriber(name, options);
}

template <class Call> std::int32_t code_of(Call call) {
    try {
        call();
    } catch (const shmcast::error &e) {
        CHECK(e.what()[0] != 0 && e.name()[0] != 0);
        return e.code();
    }
    return SHMCAST_OK;
}

void messages() {
    auto first = publisher("messages");
    auto p = std::move(first);
    auto s = subscriber("messages");
    CHECK(!s.try_recv() && !s.recv(std::chrono::milliseconds(1)));
    CHECK(p.publish("text") == 1);
    CHECK(p.publish(std::string("string"), {7, true}) == 2);
    CHECK(p.publish(std::vector<std::uint32_t>{1, 2, 3}) == 3);
    CHECK(p.publish(shmcast::bytes_of(quote{7, 10025, -1}), {}, p.now()) == 4);
#if __cplusplus >= 202002L
    const std::array<std::byte, 2> two{};
    CHECK(p.publish(std::span<const std::byte>(two)) == 5);
#else
    CHECK(p.publish(std::array<std::byte, 2>{}) == 5);
#endif
    CHECK(p.next_sequence() == 6 && p.epoch() == 1 && p.capacity() == 1 << 16 && p.max_message() == 8192 && !p.is_cut_off());
    auto e = s.recv();
    CHECK(e.is_message() && e.text() == "text" && e.sequence() == 1 && e.tag() == 0 && !e.key());
    CHECK(s.age(e) < std::chrono::minutes(1));
    e = *s.try_recv();
    CHECK(e.text() == "string" && e.tag() == 7 && e.key());
    char room[64];
    CHECK(code_of([&] { s.try_recv_into(room, 3); }) == SHMCAST_ERROR_TOO_SMALL);
    e = *s.try_recv_into(room, sizeof room);
    CHECK(e.payload().size() == 12 && e.payload().data() == reinterpret_cast<std::byte *>(room));
    e = *s.recv(std::chrono::seconds(1));
    CHECK(!e.as<int>() && e.as<quote>() && e.as<quote>()->bid == 10025 && e.as<quote>()->ask == -1);
    CHECK(s.recv().payload().size() == 2);
    s.seek(2);
    CHECK(s.next_sequence() == 2 && s.recv().sequence() == 2 && s.lag() <= 3);
    CHECK(code_of([&] { s.seek(99); }) == SHMCAST_ERROR_NOT_YET);
}

void claims() {
    auto p = publisher("claims");
    auto s = subscriber("claims");
    { auto dropped = p.claim(10); }
    auto claim = p.claim(100);
    CHECK(claim.size() == 100);
    std::memcpy(claim.data(), "claimed", 7);
    CHECK(code_of([&] { p.publish("x"); }) == SHMCAST_ERROR_MISUSE);
    CHECK(claim.commit(7, {3, false}) == 1);
    CHECK(s.recv().text() == "claimed");
    CHECK(code_of([&] { p.claim(1 << 20); }) == SHMCAST_ERROR_TOO_LARGE);
    CHECK(p.publish("after") == 2);
}

void events() {
    auto p = publisher("events");
    auto s = subscriber("events");
    p.gap(9);
    p.session({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    auto e = s.recv();
    CHECK(e.kind() == SHMCAST_GAP && e.from() == 1 && e.to() == 9 && e.missed() == 0 && e.payload().empty());
    e = s.recv();
    CHECK(e.kind() == SHMCAST_NEW_SESSION && e.session()[9] == 10);
    const std::vector<char> block(1000);
    for (int i = 0; i < 1000; i++) p.publish(block);
    e = s.recv();
    CHECK(e.kind() == SHMCAST_LAPPED && e.missed() > 0 && e.resumed_at() == 10 + e.missed());
    std::uint64_t received = 0;
    const auto missed = e.missed();
    p.close();
    CHECK(s.publisher_state() == SHMCAST_STATE_CLOSED);
    for (const auto &event : s) {
        CHECK(event.is_message() && event.payload().size() == 1000);
        received++;
    }
    CHECK(received + missed == 1000);
    auto next = publisher("events", 0);
    e = s.recv();
    CHECK(e.kind() == SHMCAST_NEW_EPOCH && e.epoch() == 2 && s.epoch() == 2);
    CHECK(!s.is_over());
    next.publish(shmcast::bytes_of(7));
    const auto due = next.next_sequence();
    next.close();
    // After the last message of the first publisher comes an end that is not the channel's end.
    s.seek(due - 2);
    std::vector<std::uint32_t> kinds;
    for (const auto &event : s) kinds.push_back(event.kind());
    CHECK(kinds == (std::vector<std::uint32_t>{SHMCAST_MESSAGE, SHMCAST_END, SHMCAST_NEW_EPOCH, SHMCAST_MESSAGE}) && s.is_over());
}

void batches() {
    auto p = publisher("batches");
    auto s = subscriber("batches");
    for (int i = 0; i < 100; i++) p.publish(shmcast::bytes_of(i));
    int sum = 0;
    CHECK(s.recv_batch(60, [&](const shmcast::event &e) { sum += *e.as<int>(); }) == 60 && sum == 59 * 60 / 2);
    const auto each = [&sum](const shmcast::event &e) { sum += *e.as<int>(); };
    CHECK(s.recv_batch(60, each) == 40 && sum == 99 * 100 / 2);
    CHECK(s.recv_batch(60, each) == 0);
}

void selects() {
    auto left = publisher("left"), right = publisher("right");
    auto a = subscriber("left"), b = subscriber("right");
    shmcast::select both({a, b});
    CHECK(both.size() == 2 && both.failed() == 2 && !both.try_recv() && !both.recv(std::chrono::milliseconds(1)));
    for (int i = 0; i < 3; i++) left.publish("left"), right.publish("right");
    for (std::size_t turn = 0; turn < 6; turn++) {
        const auto one = turn % 2 ? both.recv() : *both.recv(std::chrono::minutes(1));
        CHECK(one.index == turn % 2 && one.what.text() == (one.index == 0 ? "left" : "right") && one.what.sequence() == turn / 2 + 1);
    }
    // Handles can be moved, and the select still has them.
    auto moved = std::move(both);
    auto c = std::move(a);
    left.publish("moved");
    CHECK(moved.try_recv()->what.text() == "moved");
    std::thread later([&] { right.publish("later"); });
    CHECK(moved.recv().index == 1);
    later.join();
    left.close(), right.close();
    for (int end = 0; end < 2; end++) CHECK(moved.recv().what.kind() == SHMCAST_END);
    CHECK(c.is_over() && b.is_over());
    // A select of a whole vector, with another strategy.
    std::vector<shmcast::subscriber> all;
    auto p = publisher("one");
    all.push_back(subscriber("one")), all.push_back(subscriber("one"));
    shmcast::subscribe_options parks;
    parks.wait = SHMCAST_WAIT_PARK;
    shmcast::select parked(all, parks);
    std::thread soon([&] { p.publish("x"); });
    CHECK(parked.recv().index != parked.recv().index);
    soon.join();
    CHECK(code_of([&] { shmcast::select twice({b, b}); }) == SHMCAST_ERROR_ARGUMENT);
    CHECK(code_of([] { shmcast::select none(std::vector<shmcast::subscriber>{}); }) == SHMCAST_ERROR_ARGUMENT);
    std::error_code code;
    shmcast::select none(std::vector<shmcast::subscriber>{}, {}, code);
    CHECK(code.value() == SHMCAST_ERROR_ARGUMENT && code.category() == shmcast::category() && !none.get());
    // The select reports a subscriber that is gone, and no longer uses it.
    all.pop_back();
    CHECK(code_of([&] { parked.recv(); }) == SHMCAST_ERROR_MISUSE && parked.failed() == 1);
    CHECK(!parked.try_recv(code) && code.value() == SHMCAST_ERROR_MISUSE);
    CHECK(parked.recv(code).what.kind() == 0 && code.value() == SHMCAST_ERROR_MISUSE);
    CHECK(!parked.recv(std::chrono::seconds(1), code) && code.value() == SHMCAST_ERROR_MISUSE);
}

void errors() {
    shmcast::subscribe_options options;
    options.dir = dir;
    CHECK(code_of([&] { shmcast::subscriber("none", options); }) == SHMCAST_ERROR_NOT_FOUND);
    options.dir.clear(), options.socket = "/nowhere";
    CHECK(code_of([&] { shmcast::subscriber("none", options); }) == SHMCAST_ERROR_NO_DAEMON);
    auto p = publisher("held");
    CHECK(code_of([] { publisher("held"); }) == SHMCAST_ERROR_IN_USE);
    auto s = subscriber("held");
    auto moved = std::move(s);
    CHECK(code_of([&] { s.try_recv(); }) == SHMCAST_ERROR_ARGUMENT);
}

void choices() {
    auto p = publisher("choices");
    p.publish("one", {1, false}), p.publish("two", {2, true}), p.publish("three", {3, false});
    shmcast::subscribe_options options;
    options.dir = dir, options.start = SHMCAST_START_KEY, options.journal = "";
    CHECK(shmcast::subscriber("choices", options).recv().text() == "two");
    options.start = SHMCAST_START_TIME; // all messages
    CHECK(shmcast::subscriber("choices", options).recv().text() == "one");
    options.start = SHMCAST_START_OLDEST, options.tags = {3};
    CHECK(shmcast::subscriber("choices", options).recv().text() == "three");
    options.tags->clear();
    CHECK(!shmcast::subscriber("choices", options).try_recv());
}

// Each call that can fail, without exceptions. plain.cpp is a program that is built without exceptions.
void error_codes() {
    std::error_code code;
    shmcast::subscribe_options options;
    options.dir = dir;
    shmcast::subscriber none("none", options, code);
    CHECK(code.value() == SHMCAST_ERROR_NOT_FOUND && code.message() == "not found" && code.category() == shmcast::category());
    CHECK(!none.try_recv(code) && code.value() == SHMCAST_ERROR_ARGUMENT);
    CHECK(none.recv(code).kind() == 0 && code);
    CHECK(none.recv_batch(1, [](const shmcast::event &) {}, code) == 0 && code);
    auto p = publisher("codes");
    auto s = subscriber("codes");
    CHECK(p.publish("one", code) == 1 && !code && p.publish("two", {}, code) == 2 && p.publish("three", {}, p.now(), code) == 3);
    CHECK(s.recv(code).text() == "one" && !code && s.try_recv(code)->text() == "two");
    std::byte room[5];
    CHECK(!s.recv_into(std::chrono::seconds(1), room, 4, code) && code.value() == SHMCAST_ERROR_TOO_SMALL);
    CHECK(s.recv_into(std::chrono::seconds(1), room, sizeof room, code)->text() == "three" && !code);
    CHECK(!s.try_recv_into(room, sizeof room, code) && !code);
    s.seek(99, code);
    CHECK(code.value() == SHMCAST_ERROR_NOT_YET);
    std::chrono::nanoseconds timeout{};
    CHECK(s.descriptor() == -1 && !s.arm(timeout, code) && !code && timeout == std::chrono::milliseconds(1));
    s.disarm();
    CHECK(!p.claim(1 << 20, code) && code.value() == SHMCAST_ERROR_TOO_LARGE);
    auto claim = p.claim(4, code);
    CHECK(claim && claim.commit(5, {}, code) == 0 && code.value() == SHMCAST_ERROR_ARGUMENT);
    std::memcpy(claim.data(), "four", 4);
    CHECK(claim.commit(4, {}, code) == 4 && !claim && !code);
    CHECK(s.arm(timeout)->text() == "four");
    p.gap(9, code), CHECK(!code), p.session({1}, code), CHECK(!code);
    shmcast::publish_options taken;
    taken.dir = dir;
    CHECK(!shmcast::publisher("codes", taken, code).get() && code.value() == SHMCAST_ERROR_IN_USE);
}

void zero_bytes() {
    using namespace std::string_literals;
    std::error_code code;
    const auto is_refused = [&](const auto &handle) { return !handle.get() && code.value() == SHMCAST_ERROR_ARGUMENT; };
    shmcast::publish_options publish;
    publish.dir = dir, publish.capacity = 1 << 16;
    CHECK(is_refused(shmcast::publisher("prices\0.eu"s, publish, code)));
    publish.gates.push_back({});
    publish.gates[0].name = "risk\0y"s;
    CHECK(is_refused(shmcast::publisher("prices", publish, code)));
    shmcast::subscribe_options subscribe;
    subscribe.dir = dir;
    CHECK(!shmcast::subscriber("prices", subscribe, code).get() && code.value() == SHMCAST_ERROR_NOT_FOUND);
    CHECK(is_refused(shmcast::subscriber("prices\0.eu"s, subscribe, code)));
    CHECK(is_refused(shmcast::board("prices\0.eu"s, subscribe, code)));
    subscribe.dir = dir + "\0/away"s;
    CHECK(is_refused(shmcast::subscriber("codes", subscribe, code)));
    CHECK(std::string(shmcast_error_message()).find("dir") != std::string::npos);
}

void boards() {
    shmcast::publish_options made;
    made.dir = dir, made.capacity = 1 << 16;
    made.board.emplace(), made.board->stop = 3, made.board->remove_tag = std::uint16_t(9);
    shmcast::publisher p("boards", made);
    shmcast::subscribe_options options;
    options.dir = dir, options.conflate = true, options.conflate_behind = 8 << 10;
    shmcast::subscriber slow("boards", options), batch("boards", options);
    for (int i = 0; i < 5000; i++) p.publish("EUR 1.08");
    const auto newest = slow.recv();
    CHECK(newest.sequence() == 5000 && newest.conflated() == 4999u && slow.recv().kind() == SHMCAST_LIVE);
    CHECK(batch.recv_batch(10, [](const shmcast::event &e) { CHECK(e.sequence() == 5000 && e.conflated() == 4999u); }) == 1);
    p.publish("GBP 1.27");
    CHECK(!slow.recv().conflated());
    shmcast::board board("boards", options = [] { shmcast::subscribe_options o; o.dir = dir; return o; }());
    const auto euro = board.get("EUR");
    CHECK(euro && euro->count() == 5000 && euro->key().text() == "EUR" && euro->message().text() == "EUR 1.08");
    CHECK(board.age(euro->message()).count() >= 0 && board.size() == 2 && board.entries().size() == 2);
    p.publish("EUR", shmcast::mark{9, false});
    std::error_code code;
    CHECK(!board.get("EUR", code) && !code && board.entries()[0].sequence() == 5001 && board.counters().through == 5002);
    CHECK(!shmcast::board("none", options, code).get() && code.value() == SHMCAST_ERROR_NOT_FOUND);
}

void gates() {
    shmcast::publish_options made;
    made.dir = dir, made.capacity = 1 << 20;
    made.gates.push_back({"ledger", 50, 0, std::chrono::nanoseconds(0), true});
    shmcast::publisher p("gates", made);
    shmcast::subscribe_options options;
    options.dir = dir, options.gate = "ledger";
    shmcast::subscriber ledger("gates", options);
    std::uint64_t published = 0;
    while (const auto sequence = p.try_publish("entry")) published = *sequence;
    std::error_code code;
    CHECK(p.publish("entry", code) == 0 && code.value() == SHMCAST_ERROR_FULL);
    CHECK(std::string(shmcast_error_gate()) == "ledger" && shmcast_error_behind() > 1000);
    try {
        p.publish("entry");
        CHECK(!"it was refused");
    } catch (const shmcast::error &e) {
        CHECK(e.code() == SHMCAST_ERROR_FULL && std::string(e.gate()) == "ledger" && e.behind() > 1000);
    }
    std::uint64_t received = 0;
    while (const auto e = ledger.try_recv()) received += e->is_message();
    CHECK(received == published && published > 1000 && p.try_publish("entry", {}, code) == published + 1 && !code);
    CHECK(p.gates().size() == 1 && p.gates()[0].turned_away == 1 && std::string(p.gates()[0].name) == "ledger");
    CHECK(!shmcast::subscriber("gates", options, code).get() && code.value() == SHMCAST_ERROR_GATE);
}

void across_threads() {
    auto p = publisher("threads");
    std::thread reader([s = subscriber("threads")]() mutable {
        int received = 0;
        for (const auto &e : s) received += e.is_message();
        CHECK(received == 10);
    });
    for (int i = 0; i < 10; i++) p.publish("x");
    p.close();
    reader.join();
}

} // namespace

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dir = argv[1];
    messages(), claims(), events(), batches(), selects(), errors(), choices(), error_codes(), zero_bytes(), boards(), gates(), across_threads();
    std::puts("all calls are as the header says");
}
