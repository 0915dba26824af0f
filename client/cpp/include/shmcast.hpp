// shmcast for C++17 and later. It uses the C interface shmcast.h, which documents each call, its cost, and the threads that can make it.
//
// Handles are closed when they go out of scope. They can be moved, but not copied. A call that fails throws shmcast::error. With a
// std::error_code as its last argument, the call stores the failure there and throws nothing, and shmcast_error_message() returns the
// sentence. Programs that are built without exceptions use these calls; any other call that fails aborts them. A loss of messages is no
// error. It is an event, with exact numbers.
#ifndef SHMCAST_HPP
#define SHMCAST_HPP

#include <shmcast.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace shmcast {

// The failure of a call: what() is the sentence, and the code is a number of enum shmcast_code.
class error : public std::runtime_error {
public:
    explicit error(std::int64_t code)
        : std::runtime_error(shmcast_error_message()), code_(static_cast<std::int32_t>(code)), os_(shmcast_error_os()),
          behind_(shmcast_error_behind()) {
        std::strncpy(gate_, shmcast_error_gate(), sizeof gate_ - 1);
    }
    std::int32_t code() const noexcept { return code_; }
    std::int32_t os() const noexcept { return os_; } // errno, or 0
    const char *name() const noexcept { return shmcast_error_name(code_); }
    // For SHMCAST_ERROR_FULL: the gate that refused the message, and the lag of the gate's reader in bytes of the ring. After a call that
    // throws nothing, use shmcast_error_gate() and shmcast_error_behind().
    const char *gate() const noexcept { return gate_; }
    std::uint64_t behind() const noexcept { return behind_; }

private:
    std::int32_t code_, os_;
    std::uint64_t behind_;
    char gate_[32] = {};
};

// The category of the error codes, whose numbers are those of enum shmcast_code.
inline const std::error_category &category() noexcept {
    struct named final : std::error_category {
        const char *name() const noexcept override { return "shmcast"; }
        std::string message(int code) const override { return shmcast_error_name(code); }
    };
    static const named one;
    return one;
}

#if defined(__GNUC__)
#define SHMCAST_COLD __attribute__((cold, noinline))
#else
#define SHMCAST_COLD
#endif

namespace detail {
// The ways in which a call reports a code of failure.
struct throwing {
    [[noreturn]] SHMCAST_COLD void operator()(std::int64_t code) const {
#if defined(__cpp_exceptions)
        throw error(code);
#else
        std::fprintf(stderr, "%s\n", shmcast_error_message());
        static_cast<void>(code);
        std::abort();
#endif
    }
};
struct returning {
    std::error_code &to;
    explicit returning(std::error_code &code) noexcept : to(code) {
        if (to) to.clear();
    }
    SHMCAST_COLD void operator()(std::int64_t code) const noexcept { to.assign(static_cast<int>(code), category()); }
};
// The text in the form of C. In place of a text with a zero byte, where a text of C would end, this is a text that each call refuses.
inline const char *whole(const std::string &text) noexcept {
    return text.find('\0') == std::string::npos ? text.c_str() : "\xff (there was a zero byte)";
}
inline const char *given(const std::string &text) noexcept { return text.empty() ? nullptr : whole(text); }
inline const char *given(const std::optional<std::string> &text) noexcept { return text ? whole(*text) : nullptr; }
// Whether the call succeeded.
template <class Integer, class Fail> bool check(Integer code, const Fail &fail) {
    if (code >= 0) return true;
    fail(code);
    return false;
}
} // namespace detail

// A view of bytes: of anything with data() and size(), such as string, vector, array or span.
class bytes {
public:
    constexpr bytes() noexcept = default;
    constexpr bytes(const void *data, std::size_t size) noexcept : data_(data), size_(size) {}
    constexpr bytes(const char *text) noexcept : bytes(std::string_view(text)) {}
    template <class Range, class = decltype(std::declval<const Range &>().data()),
              class = decltype(std::declval<const Range &>().size())>
    constexpr bytes(const Range &range) noexcept
        : data_(range.data()), size_(range.size() * sizeof(*std::declval<const Range &>().data())) {
        static_assert(std::is_trivially_copyable_v<std::remove_reference_t<decltype(*range.data())>>,
                      "only elements that are plain bytes can be published");
    }

    const std::byte *data() const noexcept { return static_cast<const std::byte *>(data_); }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    const std::byte *begin() const noexcept { return data(); }
    const std::byte *end() const noexcept { return data() + size_; }
    std::string_view text() const noexcept { return {static_cast<const char *>(data_), size_}; }

private:
    const void *data_ = nullptr;
    std::size_t size_ = 0;
};

// The bytes of a value of fixed layout.
template <class T> bytes bytes_of(const T &value) noexcept {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>, "only plain bytes can be published");
    return {std::addressof(value), sizeof value};
}

// The marks that a publisher gives one message beside its payload.
struct mark {
    std::uint16_t tag = 0;
    bool key = false; // a reader can start afresh from this message
};

// As shmcast_publish_options; empty and 0 mean the default.
struct publish_options {
    std::string dir;
    std::optional<std::string> socket; // a daemon's socket; "" for the default socket
    std::uint64_t capacity = 0, max_message = 0;
    std::uint32_t mode = 0, prepare = 0;
    std::uint64_t schema_id = 0;
    std::string schema_name, labels;
    bool anew = false;
    bool monotonic = false; // stamps by CLOCK_MONOTONIC
    std::string continue_from; // directory of a journal
    std::optional<std::uint32_t> numa_node;
    // A new channel's board: the last message of each key, which is the bytes `start` to `stop` of a message.
    struct board_of {
        std::uint32_t start = 0, stop = 0;
        std::uint64_t keys = 0, value = 0;
        std::optional<std::uint16_t> remove_tag;
    };
    std::optional<board_of> board;
    // A reader that the publisher waits for, within a limit; see shmcast_gate.
    struct gate {
        std::string name;
        std::uint32_t lag_percent = 0;
        std::uint64_t lag_bytes = 0;
        std::optional<std::chrono::nanoseconds> wait; // 0: no message waits
        bool refuses = false;
    };
    std::vector<gate> gates;
};

// As shmcast_subscribe_options; empty and 0 mean the default.
struct subscribe_options {
    std::string dir;
    std::optional<std::string> socket; // a daemon's socket; "" for the default socket
    shmcast_start start = SHMCAST_START_LATEST;
    std::uint64_t start_sequence = 0;
    std::chrono::system_clock::time_point start_time;
    shmcast_wait wait = SHMCAST_WAIT_YIELD;
    shmcast_resume resume = SHMCAST_RESUME_OLDEST;
    std::uint32_t spins = 0, prepare = 0;
    std::chrono::nanoseconds sleep{0}, longest_nap{0}, wait_for_channel{0};
    std::uint64_t schema_id = 0;
    bool hidden = false, record_latency = false;
    bool watch_publisher = false; // events of SHMCAST_PUBLISHER_GONE
    std::optional<std::string> journal; // directory of the journal for missed messages; "" for none
    std::optional<std::vector<std::uint16_t>> tags; // receives only messages with one of these; not with conflate, or from the board
    bool conflate = false; // when behind, leaves out messages that are no longer the newest of their key
    std::uint64_t conflate_behind = 0; // behind by more than this many bytes of the ring; 0: half of the ring
    std::string gate; // takes this gate
};

namespace detail {
// A negative time means no wait.
inline std::uint64_t ns(std::chrono::nanoseconds time) noexcept {
    return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 0;
}
// The options in the form of C. They are valid as long as `options` is.
inline shmcast_subscribe_options given(const subscribe_options &options) noexcept {
    shmcast_subscribe_options c{};
    c.size = sizeof c;
    if (options.hidden) c.flags |= SHMCAST_HIDDEN;
    if (options.record_latency) c.flags |= SHMCAST_RECORD_LATENCY;
    if (options.watch_publisher) c.flags |= SHMCAST_WATCH_PUBLISHER;
    c.dir = detail::given(options.dir), c.socket = detail::given(options.socket);
    c.start = options.start, c.start_sequence = options.start_sequence;
    c.start_time_ns = ns(options.start_time.time_since_epoch());
    c.wait = options.wait, c.resume = options.resume, c.spins = options.spins, c.prepare = options.prepare;
    c.sleep_ns = ns(options.sleep), c.longest_nap_ns = ns(options.longest_nap);
    c.wait_for_channel_ns = ns(options.wait_for_channel), c.schema_id = options.schema_id;
    c.journal = detail::given(options.journal);
    static const std::uint16_t none = 0; // an empty list of tags is valid, too
    if (options.tags) c.tags = options.tags->empty() ? &none : options.tags->data(), c.tag_count = options.tags->size();
    if (options.conflate) c.flags |= SHMCAST_CONFLATE;
    c.conflate_behind = options.conflate_behind, c.gate = given(options.gate);
    return c;
}
} // namespace detail

class publisher;

// Memory for one message. A claim that goes out of scope without commit() publishes nothing. The publisher must not be moved meanwhile.
class claim {
public:
    claim(claim &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), data_(other.data_), size_(other.size_) {}
    claim &operator=(claim &&) = delete;
    ~claim() {
        if (handle_) shmcast_abort(handle_);
    }
    std::byte *data() const noexcept { return static_cast<std::byte *>(data_); }
    std::size_t size() const noexcept { return size_; }
    // Publishes the first `length` bytes; returns the sequence.
    std::uint64_t commit(std::size_t length, mark with = {}) { return end(detail::throwing(), length, with); }
    std::uint64_t commit(std::size_t length, mark with, std::error_code &code) noexcept {
        return end(detail::returning(code), length, with);
    }
    // Whether the claim has memory; false after a failure that was returned.
    explicit operator bool() const noexcept { return handle_ != nullptr; }

private:
    friend class publisher;
    template <class Fail> std::uint64_t end(const Fail &fail, std::size_t length, mark with) {
        std::uint64_t sequence = 0;
        const auto done = shmcast_commit(handle_, length, with.tag, with.key, &sequence);
        // After these two the claim still has its memory. After any other failure it has none, and must not abort the next claim.
        if (done != SHMCAST_ERROR_ARGUMENT && done != SHMCAST_ERROR_MISUSE) handle_ = nullptr;
        detail::check(done, fail);
        return sequence;
    }
    claim(shmcast_publisher *handle, void *data, std::size_t size) noexcept : handle_(handle), data_(data), size_(size) {}
    shmcast_publisher *handle_;
    void *data_;
    std::size_t size_;
};

class publisher {
public:
    explicit publisher(const std::string &channel, const publish_options &options = {}) { open(channel, options, detail::throwing()); }
    publisher(const std::string &channel, const publish_options &options, std::error_code &code) noexcept {
        open(channel, options, detail::returning(code));
    }
    // Each of these calls returns the sequence of the message, or 0 if it failed.
    std::uint64_t publish(bytes payload) { return sent(detail::throwing(), shmcast_publish, payload); }
    std::uint64_t publish(bytes payload, std::error_code &code) noexcept { return sent(detail::returning(code), shmcast_publish, payload); }
    std::uint64_t publish(bytes payload, mark with) {
        return sent(detail::throwing(), shmcast_publish_with, payload, with.tag, std::int32_t(with.key));
    }
    std::uint64_t publish(bytes payload, mark with, std::error_code &code) noexcept {
        return sent(detail::returning(code), shmcast_publish_with, payload, with.tag, std::int32_t(with.key));
    }
    std::uint64_t publish(bytes payload, mark with, std::uint64_t time) {
        return sent(detail::throwing(), shmcast_publish_at, payload, with.tag, std::int32_t(with.key), time);
    }
    std::uint64_t publish(bytes payload, mark with, std::uint64_t time, std::error_code &code) noexcept {
        return sent(detail::returning(code), shmcast_publish_at, payload, with.tag, std::int32_t(with.key), time);
    }
    // Does the same as publish, but never waits for a gate: returns nothing if the gate's reader is too far behind.
    std::optional<std::uint64_t> try_publish(bytes payload, mark with = {}) { return tried(detail::throwing(), payload, with); }
    std::optional<std::uint64_t> try_publish(bytes payload, mark with, std::error_code &code) noexcept {
        return tried(detail::returning(code), payload, with);
    }
    // The channel's gates, with the counts of this publisher.
    std::vector<shmcast_gate_status> gates() const {
        std::vector<shmcast_gate_status> all(16);
        const auto count = shmcast_publisher_gates(get(), all.data(), all.size());
        detail::check(count, detail::throwing());
        all.resize(static_cast<std::size_t>(count));
        return all;
    }
    shmcast::claim claim(std::size_t length) { return lent(detail::throwing(), length); }
    shmcast::claim claim(std::size_t length, std::error_code &code) noexcept { return lent(detail::returning(code), length); }
    void gap(std::uint64_t to) { detail::check(shmcast_gap(get(), to), detail::throwing()); }
    void gap(std::uint64_t to, std::error_code &code) noexcept { detail::check(shmcast_gap(get(), to), detail::returning(code)); }
    void session(const std::array<std::uint8_t, 10> &identity) {
        detail::check(shmcast_session(get(), identity.data()), detail::throwing());
    }
    void session(const std::array<std::uint8_t, 10> &identity, std::error_code &code) noexcept {
        detail::check(shmcast_session(get(), identity.data()), detail::returning(code));
    }
    // Ends the stream for readers. The destructor does the same.
    void close() { handle_.reset(); }
    std::uint64_t next_sequence() const noexcept { return shmcast_publisher_next_sequence(get()); }
    std::uint64_t epoch() const noexcept { return shmcast_publisher_epoch(get()); }
    std::size_t max_message() const noexcept { return shmcast_publisher_max_message(get()); }
    std::uint64_t capacity() const noexcept { return shmcast_publisher_capacity(get()); }
    std::uint64_t now() const noexcept { return shmcast_publisher_now(get()); }
    bool is_cut_off() const noexcept { return shmcast_publisher_is_cut_off(get()) > 0; }
    shmcast_publisher *get() const noexcept { return handle_.get(); }

private:
    template <class Fail> void open(const std::string &channel, const publish_options &options, const Fail &fail) {
        shmcast_publish_options c{};
        c.size = sizeof c;
        if (options.anew) c.flags |= SHMCAST_ANEW;
        if (options.monotonic) c.flags |= SHMCAST_MONOTONIC;
        c.dir = detail::given(options.dir), c.socket = detail::given(options.socket);
        c.capacity = options.capacity, c.max_message = options.max_message;
        c.mode = options.mode, c.prepare = options.prepare, c.schema_id = options.schema_id;
        c.schema_name = detail::given(options.schema_name), c.labels = detail::given(options.labels);
        c.continue_from = detail::given(options.continue_from);
        if (options.numa_node) c.prepare |= SHMCAST_PREPARE_NUMA_NODE, c.numa_node = *options.numa_node;
        std::vector<shmcast_gate> gates;
        for (const auto &gate : options.gates) {
            shmcast_gate one{};
            one.name = detail::whole(gate.name), one.lag_percent = gate.lag_percent, one.lag_bytes = gate.lag_bytes;
            if (gate.refuses) one.flags |= SHMCAST_GATE_REFUSES;
            if (gate.wait) one.wait_ns = detail::ns(*gate.wait);
            if (gate.wait && one.wait_ns == 0) one.flags |= SHMCAST_GATE_NEVER_WAITS;
            gates.push_back(one);
        }
        if (!gates.empty()) c.gates = gates.data(), c.gate_count = gates.size();
        if (options.board) {
            c.board_start = options.board->start, c.board_stop = options.board->stop;
            c.board_keys = options.board->keys, c.board_value = options.board->value;
            if (options.board->remove_tag) c.flags |= SHMCAST_REMOVE_BY_TAG, c.board_remove_tag = *options.board->remove_tag;
        }
        shmcast_publisher *handle = nullptr;
        detail::check(shmcast_publisher_open(detail::whole(channel), &c, &handle), fail);
        handle_.reset(handle);
    }
    template <class Fail, class Call, class... More>
    std::uint64_t sent(const Fail &fail, Call call, bytes payload, More... more) {
        std::uint64_t sequence = 0;
        detail::check(call(get(), payload.data(), payload.size(), more..., &sequence), fail);
        return sequence;
    }
    template <class Fail> std::optional<std::uint64_t> tried(const Fail &fail, bytes payload, mark with) {
        std::uint64_t sequence = 0;
        const auto code = shmcast_try_publish(get(), payload.data(), payload.size(), with.tag, std::int32_t(with.key), &sequence);
        if (code == SHMCAST_ERROR_FULL || !detail::check(code, fail)) return std::nullopt;
        return sequence;
    }
    template <class Fail> shmcast::claim lent(const Fail &fail, std::size_t length) {
        void *data = nullptr;
        const bool is_there = detail::check(shmcast_claim(get(), length, &data), fail);
        return {is_there ? get() : nullptr, data, is_there ? length : 0};
    }
    struct closer {
        void operator()(shmcast_publisher *handle) const noexcept { shmcast_publisher_close(handle); }
    };
    std::unique_ptr<shmcast_publisher, closer> handle_;
};

// An event that was received. A payload is valid until the next call on the subscriber.
class event {
public:
    event() noexcept : c_{} {}
    explicit event(const shmcast_event &c) noexcept : c_(c) {}
    std::uint32_t kind() const noexcept { return c_.kind; } // of enum shmcast_kind
    bool is_message() const noexcept { return c_.kind == SHMCAST_MESSAGE; }
    // The properties of a message.
    bytes payload() const noexcept { return {c_.payload, c_.length}; }
    std::string_view text() const noexcept { return payload().text(); }
    std::uint64_t sequence() const noexcept { return c_.sequence; } // for SHMCAST_LIVE, the sequence of the next message
    std::uint64_t time() const noexcept { return c_.time; }
    std::uint16_t tag() const noexcept { return c_.tag; }
    bool key() const noexcept { return c_.key != 0; }
    // A message's payload as a value of fixed layout; none if its size is another. Copies the value.
    template <class T> std::optional<T> as() const noexcept {
        static_assert(std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T>, "only plain bytes can be read so");
        if (!is_message() || c_.length != sizeof(T)) return std::nullopt;
        T value;
        std::memcpy(&value, c_.payload, sizeof value);
        return value;
    }
    // For a message from the channel's board: the number of messages of its key that were left out.
    std::optional<std::uint64_t> conflated() const noexcept {
        if (!is_message() || c_.what.conflated.from_board == 0) return std::nullopt;
        return c_.what.conflated.left_out;
    }
    // The numbers of the other kinds of events; 0 for an event of another kind.
    std::uint64_t missed() const noexcept { return c_.kind == SHMCAST_LAPPED ? c_.what.lapped.missed : 0; }
    std::uint64_t resumed_at() const noexcept { return c_.kind == SHMCAST_LAPPED ? c_.what.lapped.resumed_at : 0; }
    std::uint64_t from() const noexcept { return c_.kind == SHMCAST_GAP ? c_.what.gap.from : 0; }
    std::uint64_t to() const noexcept { return c_.kind == SHMCAST_GAP ? c_.what.gap.to : 0; }
    // Why the messages of a gap are missing: of enum shmcast_cause.
    std::uint16_t cause() const noexcept { return c_.kind == SHMCAST_GAP ? c_.tag : 0; }
    std::uint64_t epoch() const noexcept { return c_.kind == SHMCAST_NEW_EPOCH || c_.kind == SHMCAST_PUBLISHER_GONE ? c_.what.epoch : 0; }
    std::array<std::uint8_t, 10> session() const noexcept {
        std::array<std::uint8_t, 10> identity{};
        if (c_.kind == SHMCAST_NEW_SESSION) std::memcpy(identity.data(), c_.what.session, identity.size());
        return identity;
    }

private:
    friend class subscriber;
    friend class select;
    struct blank {
        explicit blank() = default;
    };
    shmcast_event c_;

public:
    // For the calls of a subscriber, which fill the event in. This constructor does not touch the memory.
    explicit event(blank) noexcept {}
};

class subscriber {
public:
    explicit subscriber(const std::string &channel, const subscribe_options &options = {}) { open(channel, options, detail::throwing()); }
    subscriber(const std::string &channel, const subscribe_options &options, std::error_code &code) noexcept {
        open(channel, options, detail::returning(code));
    }
    // The next event, however long it takes.
    event recv() { return one(detail::throwing()); }
    event recv(std::error_code &code) noexcept { return one(detail::returning(code)); } // kind 0 after a failure
    // The next event, or none if nothing comes in time.
    std::optional<event> recv(std::chrono::nanoseconds timeout) { return some(detail::throwing(), shmcast_recv, ns(timeout)); }
    std::optional<event> recv(std::chrono::nanoseconds timeout, std::error_code &code) noexcept {
        return some(detail::returning(code), shmcast_recv, ns(timeout));
    }
    // The next event, if there is one. With tags, none can also mean that many messages were left out, and that more can follow.
    std::optional<event> try_recv() { return some(detail::throwing(), shmcast_try_recv); }
    std::optional<event> try_recv(std::error_code &code) noexcept { return some(detail::returning(code), shmcast_try_recv); }
    // The same, with the payload copied into memory of the caller.
    std::optional<event> recv_into(std::chrono::nanoseconds timeout, void *buffer, std::size_t size) {
        return some(detail::throwing(), shmcast_recv_into, ns(timeout), buffer, size);
    }
    std::optional<event> recv_into(std::chrono::nanoseconds timeout, void *buffer, std::size_t size, std::error_code &code) noexcept {
        return some(detail::returning(code), shmcast_recv_into, ns(timeout), buffer, size);
    }
    std::optional<event> try_recv_into(void *buffer, std::size_t size) {
        return some(detail::throwing(), shmcast_try_recv_into, buffer, size);
    }
    std::optional<event> try_recv_into(void *buffer, std::size_t size, std::error_code &code) noexcept {
        return some(detail::returning(code), shmcast_try_recv_into, buffer, size);
    }
    // Passes up to `most` available events to each(const event &), and returns their number. `each` must not throw, or std::terminate is
    // called. Makes no call of the library for each message.
    template <class Each> std::size_t recv_batch(std::size_t most, Each &&each) { return many(detail::throwing(), most, each); }
    template <class Each> std::size_t recv_batch(std::size_t most, Each &&each, std::error_code &code) noexcept {
        return many(detail::returning(code), most, each);
    }
    void seek(std::uint64_t sequence) { detail::check(shmcast_seek(get(), sequence), detail::throwing()); }
    void seek(std::uint64_t sequence, std::error_code &code) noexcept {
        detail::check(shmcast_seek(get(), sequence), detail::returning(code));
    }
    // For event loops: the descriptor of shmcast_subscriber_descriptor(), or -1 if no daemon wakes the reader.
    int descriptor() const noexcept {
        const auto descriptor = shmcast_subscriber_descriptor(get());
        return descriptor < 0 ? -1 : descriptor;
    }
    // Call this before each sleep. Returns the event that came after all, or none. `timeout` becomes the longest time to sleep.
    std::optional<event> arm(std::chrono::nanoseconds &timeout) { return armed(detail::throwing(), timeout); }
    std::optional<event> arm(std::chrono::nanoseconds &timeout, std::error_code &code) noexcept {
        return armed(detail::returning(code), timeout);
    }
    void disarm() noexcept { shmcast_disarm(get()); }
    std::uint64_t lag() const noexcept { return shmcast_lag(get()); }
    std::uint64_t next_sequence() const noexcept { return shmcast_subscriber_next_sequence(get()); }
    std::uint64_t epoch() const noexcept { return shmcast_subscriber_epoch(get()); }
    std::chrono::nanoseconds age(const event &message) const noexcept {
        return std::chrono::nanoseconds(shmcast_subscriber_age_ns(get(), message.time()));
    }
    shmcast_publisher_state publisher_state() const noexcept {
        return static_cast<shmcast_publisher_state>(shmcast_subscriber_publisher_state(get()));
    }
    // Whether the channel is at its end now; see shmcast_subscriber_is_over().
    bool is_over() const noexcept { return shmcast_subscriber_is_over(get()) == 1; }
    shmcast_subscriber *get() const noexcept { return handle_.get(); }

    // for (const shmcast::event &e : subscriber) receives until the channel is at its end. The ends of earlier publishers are ordinary
    // events. The subscriber must not be moved meanwhile.
    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = event;
        using difference_type = std::ptrdiff_t;
        using pointer = const event *;
        using reference = const event &;
        iterator() noexcept = default;
        explicit iterator(subscriber &from) : from_(&from) { ++*this; }
        reference operator*() const noexcept { return now_; }
        pointer operator->() const noexcept { return &now_; }
        iterator &operator++() {
            // After an end, checks from time to time whether a daemon has decided that this was the last end.
            const std::uint64_t look = 50 * 1000 * 1000;
            for (;;) {
                const auto code = shmcast_recv(from_->get(), has_ended_ ? look : SHMCAST_FOREVER, &now_.c_);
                detail::check(code, detail::throwing());
                if (code == SHMCAST_EVENT) has_ended_ = now_.kind() == SHMCAST_END;
                if (has_ended_ && from_->is_over()) from_ = nullptr;
                if (code == SHMCAST_EVENT || !from_) return *this;
            }
        }
        void operator++(int) { ++*this; }
        bool operator==(const iterator &other) const noexcept { return from_ == other.from_; }
        bool operator!=(const iterator &other) const noexcept { return from_ != other.from_; }

    private:
        subscriber *from_ = nullptr;
        bool has_ended_ = false;
        event now_;
    };
    iterator begin() { return iterator(*this); }
    iterator end() noexcept { return iterator(); }

private:
    static std::uint64_t ns(std::chrono::nanoseconds time) noexcept { return detail::ns(time); }
    // The call writes the event into the caller's memory, because a copy would wait for these stores.
    template <class Fail, class Call, class... More> std::optional<event> some(const Fail &fail, Call call, More... more) {
        std::optional<event> next(std::in_place, event::blank());
        const std::int32_t code = call(get(), more..., &next->c_);
        if (code != SHMCAST_EVENT) {
            next.reset();
            detail::check(code, fail);
        }
        return next;
    }
    template <class Fail> event one(const Fail &fail) {
        event next;
        detail::check(shmcast_recv(get(), SHMCAST_FOREVER, &next.c_), fail);
        return next;
    }
    template <class Fail> std::optional<event> armed(const Fail &fail, std::chrono::nanoseconds &timeout) {
        std::uint64_t longest = 0;
        auto next = some(fail, shmcast_arm, &longest);
        timeout = std::chrono::nanoseconds(longest > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(longest));
        return next;
    }
    template <class Fail, class Each> std::size_t many(const Fail &fail, std::size_t most, Each &each) {
        shmcast_batch batch;
        const auto count = shmcast_recv_batch(get(), most, &batch);
        if (!detail::check(count, fail)) return 0;
        hand_out(batch, each);
        return static_cast<std::size_t>(count);
    }
    template <class Fail> void open(const std::string &channel, const subscribe_options &options, const Fail &fail) {
        const shmcast_subscribe_options c = detail::given(options);
        shmcast_subscriber *handle = nullptr;
        detail::check(shmcast_subscriber_open(detail::whole(channel), &c, &handle), fail);
        handle_.reset(handle);
    }
    template <class Each> static void hand_out(const shmcast_batch &batch, Each &each) noexcept {
        event now;
        now.c_.kind = SHMCAST_MESSAGE;
        if (batch.event.kind == 0) now.c_.what = batch.event.what; // a message from the board is alone in its batch
        SHMCAST_FOREACH(m, &batch) {
            now.c_.payload = m.payload, now.c_.length = m.length;
            now.c_.sequence = m.sequence, now.c_.time = m.time;
            now.c_.tag = m.tag, now.c_.key = m.key;
            each(std::as_const(now));
        }
        if (batch.event.kind != 0) each(static_cast<const event &>(event(batch.event)));
    }
    struct closer {
        void operator()(shmcast_subscriber *handle) const noexcept { shmcast_subscriber_close(handle); }
    };
    std::unique_ptr<shmcast_subscriber, closer> handle_;
};

// An event of one of several subscribers.
struct selected {
    std::size_t index; // index of the subscriber, in the order in which they were given
    event what;
};

// One wait for several subscribers, which take turns. The subscribers must stay open as long as the select is used. They can be moved.
class select {
public:
    using members = std::initializer_list<std::reference_wrapper<const subscriber>>;
    // Only the options wait, spins and sleep have an effect.
    explicit select(members of, const subscribe_options &options = {}) { open(of, options, detail::throwing()); }
    select(members of, const subscribe_options &options, std::error_code &code) noexcept { open(of, options, detail::returning(code)); }
    // The same for a vector, an array or the like.
    template <class Range, class = decltype(std::declval<const Range &>().begin())>
    explicit select(const Range &of, const subscribe_options &options = {}) {
        open(of, options, detail::throwing());
    }
    template <class Range, class = decltype(std::declval<const Range &>().begin())>
    select(const Range &of, const subscribe_options &options, std::error_code &code) noexcept {
        open(of, options, detail::returning(code));
    }
    // The next event of any subscriber, however long it takes.
    selected recv() { return one(detail::throwing()); }
    selected recv(std::error_code &code) noexcept { return one(detail::returning(code)); } // kind 0 after a failure
    // The next event, or none if nothing comes in time.
    std::optional<selected> recv(std::chrono::nanoseconds timeout) { return some(detail::throwing(), detail::ns(timeout)); }
    std::optional<selected> recv(std::chrono::nanoseconds timeout, std::error_code &code) noexcept {
        return some(detail::returning(code), detail::ns(timeout));
    }
    // The next event, if there is one. With tags, none can also mean that many messages were left out, and that more can follow.
    std::optional<selected> try_recv() { return some(detail::throwing(), 0); }
    std::optional<selected> try_recv(std::error_code &code) noexcept { return some(detail::returning(code), 0); }
    // The index of the subscriber that failed last; the number of subscribers if nothing failed, or if the failure belongs to none.
    std::size_t failed() const noexcept { return failed_; }
    std::size_t size() const noexcept { return size_; }
    shmcast_select *get() const noexcept { return handle_.get(); }

private:
    template <class Range, class Fail> void open(const Range &of, const subscribe_options &options, const Fail &fail) {
        std::vector<shmcast_subscriber *> handles;
        for (const subscriber &one : of) handles.push_back(one.get());
        const shmcast_subscribe_options c = detail::given(options);
        shmcast_select *handle = nullptr;
        detail::check(shmcast_select_open(handles.data(), handles.size(), &c, &handle), fail);
        handle_.reset(handle), failed_ = size_ = handles.size();
    }
    template <class Fail> std::int32_t next(const Fail &fail, std::uint64_t timeout, selected &to) {
        to.index = failed_ = size_;
        const auto code = shmcast_select_recv(get(), timeout, &to.index, &to.what.c_);
        if (code < 0) failed_ = to.index;
        detail::check(code, fail);
        return code;
    }
    template <class Fail> selected one(const Fail &fail) {
        selected to{size_, event()};
        next(fail, SHMCAST_FOREVER, to);
        return to;
    }
    template <class Fail> std::optional<selected> some(const Fail &fail, std::uint64_t timeout) {
        std::optional<selected> to(std::in_place, selected{size_, event()});
        if (next(fail, timeout, *to) != SHMCAST_EVENT) to.reset();
        return to;
    }
    struct closer {
        void operator()(shmcast_select *handle) const noexcept { shmcast_select_close(handle); }
    };
    std::unique_ptr<shmcast_select, closer> handle_;
    std::size_t size_ = 0, failed_ = 0;
};

// A key of a board. Its bytes and those of its message are valid until the next call on the board.
class board_entry {
public:
    explicit board_entry(const shmcast_board_entry &c) noexcept : c_(c) {}
    bytes key() const noexcept { return {c_.key, c_.key_length}; }
    std::uint64_t sequence() const noexcept { return c_.sequence; }
    std::uint64_t count() const noexcept { return c_.count; }
    // The newest message. Its kind is 0 if the board does not have the message.
    event message() const noexcept { return event(c_.message); }

private:
    shmcast_board_entry c_;
};

// The last message of each key of a channel.
class board {
public:
    explicit board(const std::string &channel, const subscribe_options &options = {}) { open(channel, options, detail::throwing()); }
    board(const std::string &channel, const subscribe_options &options, std::error_code &code) noexcept {
        open(channel, options, detail::returning(code));
    }
    // The entry of a key, or none.
    std::optional<board_entry> get(bytes key) { return one(detail::throwing(), key); }
    std::optional<board_entry> get(bytes key, std::error_code &code) noexcept { return one(detail::returning(code), key); }
    // All keys as they were at one moment, in the order of their sequences.
    std::vector<board_entry> entries() {
        std::vector<shmcast_board_entry> all;
        for (;;) {
            const auto count = shmcast_board_entries(get(), all.data(), all.size());
            detail::check(count, detail::throwing());
            const bool fits = static_cast<std::size_t>(count) <= all.size();
            all.resize(static_cast<std::size_t>(count) + (fits ? 0 : 16));
            if (fits) return {all.begin(), all.end()};
        }
    }
    std::size_t size() const noexcept { return static_cast<std::size_t>(counters().keys); }
    shmcast_board_counters counters() const noexcept {
        shmcast_board_counters counters{};
        shmcast_board_count(get(), &counters);
        return counters;
    }
    std::chrono::nanoseconds age(const event &message) const noexcept {
        return std::chrono::nanoseconds(shmcast_board_age_ns(get(), message.time()));
    }
    shmcast_board *get() const noexcept { return handle_.get(); }

private:
    template <class Fail> void open(const std::string &channel, const subscribe_options &options, const Fail &fail) {
        const shmcast_subscribe_options c = detail::given(options);
        shmcast_board *handle = nullptr;
        detail::check(shmcast_board_open(detail::whole(channel), &c, &handle), fail);
        handle_.reset(handle);
    }
    template <class Fail> std::optional<board_entry> one(const Fail &fail, bytes key) {
        shmcast_board_entry entry;
        const std::int32_t code = shmcast_board_get(get(), key.data(), key.size(), &entry);
        detail::check(code, fail);
        if (code != SHMCAST_EVENT) return std::nullopt;
        return board_entry(entry);
    }
    struct closer {
        void operator()(shmcast_board *handle) const noexcept { shmcast_board_close(handle); }
    };
    std::unique_ptr<shmcast_board, closer> handle_;
};

} // namespace shmcast
#undef SHMCAST_COLD
#endif
