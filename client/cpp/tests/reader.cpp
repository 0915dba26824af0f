// A subscriber as a process of its own, with messages by the pattern.
//
//   reader recv|batch PLACE CHANNEL   receives from sequence 1 to the end, and prints its sums. PLACE is dir:PATH.
#include <cinttypes>
#include <cstdio>
#include <shmcast.hpp>

extern "C" {
#include "pattern.h"
}

struct sums {
    std::uint64_t received = 0, missed = 0, wrong = 0, disorder = 0, epochs = 0, lives = 0, ends = 0, next = 1;

    void count(const shmcast::event &e) {
        switch (e.kind()) {
        case SHMCAST_MESSAGE:
            received++;
            disorder += e.sequence() != next;
            next = e.sequence() + 1;
            wrong += pattern_wrong(e.sequence(), reinterpret_cast<const std::uint8_t *>(e.payload().data()), e.payload().size());
            break;
        case SHMCAST_LAPPED: missed += e.missed(), next = e.resumed_at(); break;
        case SHMCAST_LIVE: lives++, disorder += e.sequence() != next; break;
        case SHMCAST_NEW_EPOCH: epochs++; break;
        case SHMCAST_END: ends++; break;
        default: disorder++;
        }
    }
};

int main(int argc, char **argv) try {
    if (argc != 4 || std::string_view(argv[2]).substr(0, 4) != "dir:") return 2;
    shmcast::subscribe_options options;
    options.dir = argv[2] + 4, options.start = SHMCAST_START_SEQUENCE, options.start_sequence = 1;
    shmcast::subscriber from(argv[3], options);
    std::puts("attached");
    std::fflush(stdout);
    sums s;
    while (s.ends == 0) {
        if (std::string_view(argv[1]) == "batch") from.recv_batch(100, [&](const shmcast::event &e) { s.count(e); });
        else s.count(from.recv());
    }
    std::printf("received %" PRIu64 " missed %" PRIu64 " wrong %" PRIu64 " disorder %" PRIu64 " epochs %" PRIu64 " lives %" PRIu64 "\n",
                s.received, s.missed, s.wrong, s.disorder, s.epochs, s.lives);
    return 0;
} catch (const shmcast::error &failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
}
