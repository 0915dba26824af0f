// The testee in C++ for client/conformance, whose README has the contract.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <limits>
#include <shmcast.hpp>
#include <thread>
#include <vector>

namespace {

// The payloads, as in src/payload.rs of the suite. Their bytes follow from the sequence.
class payloads {
public:
    payloads() {
        std::uint32_t x = 1;
        for (auto &byte : table_) x = x * 1664525u + 1013904223u, byte = static_cast<std::uint8_t>(x >> 24);
    }
    shmcast::bytes of(std::uint64_t sequence, std::size_t longest) const {
        const std::uint32_t hash = static_cast<std::uint32_t>(sequence) * 2654435761u, kind = hash >> 8 & 63;
        const std::size_t rest = hash >> 14;
        const std::size_t n = kind < 48 ? rest & 255 : kind < 60 ? rest & 4095 : kind < 63 ? rest & 65535 : 65536;
        return {table_.data() + sequence % 4093, std::min(n, longest)};
    }

private:
    std::array<std::uint8_t, 65536 + 4093> table_;
};
const payloads checked;

std::uint32_t crc32c(shmcast::bytes bytes) {
    std::uint32_t crc = ~std::uint32_t{0};
    for (const auto byte : bytes) {
        crc ^= std::to_integer<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

// A request. Values have no escapes.
class request {
public:
    explicit request(std::string line) : line_(std::move(line)) {}
    bool has(const std::string &name) const { return find(name) != std::string::npos; }
    std::string text(const std::string &name) const {
        const auto at = find(name);
        if (at == std::string::npos) return {};
        if (line_[at] == '"') return line_.substr(at + 1, line_.find('"', at + 1) - at - 1);
        return line_.substr(at, line_.find_first_of(",}", at) - at);
    }
    std::uint64_t number(const std::string &name, std::uint64_t otherwise = 0) const {
        return has(name) ? std::stoull(text(name)) : otherwise;
    }

private:
    std::size_t find(const std::string &name) const {
        const auto at = line_.find("\"" + name + "\":");
        return at == std::string::npos ? at : at + name.size() + 3;
    }
    std::string line_;
};

// The class of an error. For a refused segment, the class follows from the words with which the sentence begins.
std::string reason(const shmcast::error &e) {
    static constexpr std::array<std::array<std::string_view, 2>, 9> words{{
        {"truncated:", "truncated"}, {"foreign:", "foreign"}, {"layout version", "version"}, {"header: checksum", "checksum"},
        {"impossible sizes", "geometry"}, {"damaged header:", "field"}, {"not published yet", "not yet"},
        {"another reader has it", "in use"}, {"not a gate's page", "damaged"},
    }};
    if (e.code() == SHMCAST_ERROR_BOARD || e.code() == SHMCAST_ERROR_NO_BOARD) return "no board";
    if (e.code() != SHMCAST_ERROR_TOO_OLD)
        for (const auto &[begin, name] : words)
            if (std::string_view(e.what()).find(begin) != std::string_view::npos) return std::string(name);
    return e.code() == SHMCAST_ERROR_GATE ? "unknown gate" : e.name();
}

template <class Options> std::string place(const request &r, Options &options) {
    if (r.has("socket")) options.socket = r.text("socket");
    else options.dir = r.text("dir");
    options.prepare = SHMCAST_PREPARE_NOTHING;
    return r.text("channel");
}

std::string hexadecimal(shmcast::bytes payload) {
    std::string text;
    for (const auto byte : payload)
        for (const int shift : {4, 0}) text += "0123456789abcdef"[std::to_integer<int>(byte) >> shift & 15];
    return text;
}

// Whether messages are reported with their payloads.
bool with_bytes = false;

class testee {
public:
    std::string answer(const request &r) try {
        const auto what = r.text("do");
        with_bytes = r.number("bytes", 0) == 1;
        if (what == "poll" || what == "batch") return told(receive(what == "batch", r.number("most", std::numeric_limits<std::size_t>::max())));
        if (what == "get") return told(get(r));
        if (what == "consume") return told(consume(r));
        if (what == "drain") return told(drain(r));
        if (what == "live") return told(live(r));
        if (what == "fill") return told(fill(r));
        play(what, r);
        return R"({"ok":true})";
    } catch (const shmcast::error &e) {
        return R"({"refused":")" + reason(e) + R"("})";
    }

private:
    void play(const std::string &what, const request &r) {
        if (what == "open") open(r);
        else if (what == "close") subscriber_.reset(), board_.reset();
        else if (what == "seek") subscriber_->seek(r.number("sequence"));
        else if (what == "create") create(r);
        else if (what == "end") publisher_.reset();
        else if (what == "publish") {
            std::vector<std::uint8_t> payload(r.number("length"));
            auto byte = static_cast<std::uint8_t>(r.number("fill"));
            for (auto &b : payload) b = byte++;
            publisher_->publish(payload, {static_cast<std::uint16_t>(r.number("tag")), r.number("key") == 1});
        } else if (what == "produce") {
            const auto to = r.number("to"), longest = r.number("longest");
            for (auto next = publisher_->next_sequence(); next <= to; next++) publisher_->publish(checked.of(next, longest));
        }
    }

    void open(const request &r) {
        subscriber_.reset(), board_.reset();
        shmcast::subscribe_options options;
        const auto channel = place(r, options), start = r.text("start");
        where_ = options, channel_ = channel;
        options.start = start == "oldest"   ? SHMCAST_START_OLDEST
                        : start == "latest" ? SHMCAST_START_LATEST
                        : start == "board"  ? SHMCAST_START_BOARD
                                            : SHMCAST_START_SEQUENCE;
        options.conflate = r.number("conflate") == 1, options.gate = r.text("gate");
        if (options.start == SHMCAST_START_SEQUENCE) options.start_sequence = r.number("start");
        options.wait = SHMCAST_WAIT_SPIN, options.hidden = true, options.watch_publisher = r.number("watch") == 1;
        subscriber_.emplace(channel, options);
    }

    void create(const request &r) {
        publisher_.reset();
        shmcast::publish_options options;
        const auto channel = place(r, options);
        if (!options.socket) options.capacity = r.number("capacity");
        if (const auto key = r.text("board"); !key.empty()) {
            auto &board = options.board.emplace();
            board.start = static_cast<std::uint32_t>(std::stoul(key)), board.stop = static_cast<std::uint32_t>(std::stoul(key.substr(key.find("..") + 2)));
            board.keys = r.number("keys"), board.value = r.number("value");
        }
        if (const auto name = r.text("gate"); !name.empty()) {
            auto &gate = options.gates.emplace_back();
            gate.name = name, gate.lag_bytes = r.number("lag"), gate.refuses = r.number("refuse") == 1;
            gate.wait = std::chrono::nanoseconds(r.number("wait"));
        }
        publisher_.emplace(channel, options);
    }

    // Looks a key up on the board of the channel that is open.
    std::vector<std::string> get(const request &r) {
        std::vector<std::uint8_t> key;
        const auto digits = r.text("key");
        for (std::size_t i = 0; i < digits.size(); i += 2) key.push_back(static_cast<std::uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
        if (!board_) board_.emplace(channel_, where_);
        const auto entry = board_->get(key);
        if (!entry) return {};
        const auto count = " count=" + std::to_string(entry->count());
        return {(entry->message().is_message() ? tell(entry->message()) : "too large") + count};
    }

    std::vector<std::string> receive(bool in_batches, std::size_t most) {
        std::vector<std::string> events;
        try {
            for (int empty = 0; empty < 130 && events.size() < most; empty++) {
                const auto before = events.size();
                if (in_batches) {
                    if (subscriber_->recv_batch(64, [&](const shmcast::event &e) { events.push_back(tell(e)); }) > 0) empty = -1;
                } else if (const auto event = subscriber_->try_recv()) {
                    events.push_back(tell(*event));
                }
                if (events.size() > before) empty = -1;
            }
        } catch (const shmcast::error &e) {
            events.push_back(reason(e));
        }
        return events;
    }

    // Receives a channel from its first message to its end, and counts.
    static std::vector<std::string> consume(const request &r) {
        shmcast::subscribe_options options;
        const auto channel = place(r, options);
        options.start = SHMCAST_START_SEQUENCE, options.start_sequence = 1, options.wait_for_channel = std::chrono::seconds(30);
        shmcast::subscriber from(channel, options);
        const auto longest = r.number("longest");
        std::uint64_t received = 0, missed = 0, wrong = 0;
        bool is_over = false;
        const auto count = [&](const shmcast::event &e) {
            switch (e.kind()) {
            case SHMCAST_MESSAGE: ++(e.text() == checked.of(e.sequence(), longest).text() ? received : wrong); break;
            case SHMCAST_LAPPED: missed += e.missed(); break;
            case SHMCAST_GAP: missed += e.to() - e.from() + 1; break;
            case SHMCAST_END: is_over = true; break;
            case SHMCAST_NEW_EPOCH:
            case SHMCAST_LIVE: break;
            default: wrong++;
            }
        };
        const bool in_batches = r.text("how") == "batch";
        while (!is_over) {
            if (!in_batches) count(from.recv());
            else if (from.recv_batch(256, count) == 0) std::this_thread::yield();
        }
        return {"received " + std::to_string(received), "missed " + std::to_string(missed), "wrong " + std::to_string(wrong)};
    }

    using clock = std::chrono::steady_clock;
    static std::string since(clock::time_point began) {
        return "ns " + std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - began).count());
    }

    // Reads the available messages from a sequence on, again and again, and measures the time.
    std::vector<std::string> drain(const request &r) {
        std::uint64_t sum = 0, messages = 0;
        const auto add = [&](const shmcast::event &e) {
            if (!e.is_message()) return;
            std::uint64_t word = 0;
            if (e.payload().size() >= sizeof word) std::memcpy(&word, e.payload().data(), sizeof word);
            sum += word, messages++;
        };
        const bool in_batches = r.text("how") == "batch";
        const auto passes = r.number("passes"), sequence = r.number("sequence");
        const auto began = clock::now();
        for (std::uint64_t pass = 0; pass < passes; pass++) {
            subscriber_->seek(sequence);
            if (in_batches)
                while (subscriber_->recv_batch(256, add) > 0) {}
            else
                while (const auto event = subscriber_->try_recv()) add(*event);
        }
        const auto took = since(began);
        return {took, "messages " + std::to_string(messages), "sum " + std::to_string(sum)};
    }

    // Receives messages as they come, and keeps their ages.
    std::vector<std::string> live(const request &r) {
        std::vector<std::int64_t> ages;
        const auto messages = r.number("messages");
        ages.reserve(messages);
        while (ages.size() < messages)
            if (const auto event = subscriber_->try_recv(); event && event->is_message()) ages.push_back(subscriber_->age(*event).count());
        std::sort(ages.begin(), ages.end());
        return {"p50 " + std::to_string(ages[messages / 2]), "p99 " + std::to_string(ages[messages * 99 / 100])};
    }

    // Publishes a number of messages, and measures the time.
    std::vector<std::string> fill(const request &r) {
        const std::vector<std::uint8_t> payload(r.number("length"));
        const auto messages = r.number("messages");
        const auto began = clock::now();
        for (std::uint64_t i = 0; i < messages; i++) publisher_->publish(payload);
        return {since(began)};
    }

    static std::string tell(const shmcast::event &e) {
        std::array<char, 160> text{};
        switch (e.kind()) {
        case SHMCAST_MESSAGE:
            std::snprintf(text.data(), text.size(), "message %llu tag=%u key=%d time=%llu length=%zu crc=%08x",
                          static_cast<unsigned long long>(e.sequence()), e.tag(), e.key(), static_cast<unsigned long long>(e.time()),
                          e.payload().size(), crc32c(e.payload()));
            if (const auto left_out = e.conflated()) return text.data() + (" conflated=" + std::to_string(*left_out));
            return text.data() + (with_bytes ? " bytes=" + hexadecimal(e.payload()) : "");
        case SHMCAST_LAPPED: return "lapped " + std::to_string(e.missed()) + " " + std::to_string(e.resumed_at());
        case SHMCAST_GAP: return "gap " + std::to_string(e.from()) + " " + std::to_string(e.to());
        case SHMCAST_LIVE: return "live " + std::to_string(e.sequence());
        case SHMCAST_NEW_EPOCH: return "epoch " + std::to_string(e.epoch());
        case SHMCAST_PUBLISHER_GONE: return "gone " + std::to_string(e.epoch());
        case SHMCAST_RESTARTED: return "restarted";
        case SHMCAST_END: return "end";
        case SHMCAST_NEW_SESSION: {
            std::string said = "session ";
            for (const auto byte : e.session()) {
                std::snprintf(text.data(), text.size(), "%02x", byte);
                said += text.data();
            }
            return said;
        }
        default: return "kind " + std::to_string(e.kind());
        }
    }

    static std::string told(const std::vector<std::string> &events) {
        std::string line = R"({"events":[)";
        for (std::size_t i = 0; i < events.size(); i++) line += (i ? ",\"" : "\"") + events[i] + '"';
        return line + "]}";
    }

    std::optional<shmcast::subscriber> subscriber_;
    std::optional<shmcast::board> board_;
    shmcast::subscribe_options where_; // the options of the open channel
    std::string channel_;
    std::optional<shmcast::publisher> publisher_;
};

} // namespace

int main() {
    std::cout << R"({"testee":"cpp","version":")" << shmcast_version() << R"(","levels":[1,2,3,4,5,6,7,8,9]})" << std::endl;
    testee it;
    for (std::string line; std::getline(std::cin, line);) std::cout << it.answer(request(line)) << std::endl;
}
