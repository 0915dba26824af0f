// A program without exceptions, in the directory argv[1].
#include <shmcast.hpp>

// This function makes no call of the library for each message: a test checks its machine code.
extern "C" std::uint64_t sum_of_batch(shmcast::subscriber &from, std::error_code &code) {
    std::uint64_t sum = 0;
    from.recv_batch(1024, [&](const shmcast::event &e) { sum += e.as<std::uint64_t>().value_or(0); }, code);
    return sum;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    std::error_code code;
    shmcast::publish_options of_publisher;
    of_publisher.dir = argv[1], of_publisher.capacity = 1 << 20;
    shmcast::publisher to("plain", of_publisher, code);
    shmcast::subscribe_options of_subscriber;
    of_subscriber.dir = argv[1];
    if (code) return std::fprintf(stderr, "%s\n", shmcast_error_message()), 1;
    shmcast::subscriber from("plain", of_subscriber, code);
    for (std::uint64_t n = 1; n <= 100 && !code; n++) to.publish(shmcast::bytes_of(n), code);
    if (code || sum_of_batch(from, code) != 5050 || code) return std::fprintf(stderr, "%s\n", shmcast_error_message()), 1;
    shmcast::select all({from}, {}, code);
    to.publish("x", code);
    const auto one = all.recv(std::chrono::minutes(1), code);
    if (code || !one || one->index != 0 || one->what.text() != "x") return std::fprintf(stderr, "%s\n", shmcast_error_message()), 1;
    return 0;
}
