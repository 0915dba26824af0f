"""Measures the cost of a call from Python. The example `cost` of client/c runs this program and Rust in turns:

cargo run --profile dist -p shmcast-c --example cost -- -- python3 client/python/examples/cost.py
"""

import os
import sys
import time

import numpy as np

import shmcast

ROW = np.dtype([("number", "<u8"), ("rest", "3<u8")])


def one_at_a_time(full: shmcast.Subscriber, messages: int) -> int:
    last = 0
    for event in full:  # each event is a Message, because nobody overwrites the ring
        payload = event.payload  # type: ignore[union-attr]
        last += 1
        if last == messages:
            break
    assert len(payload) == 32 and full.try_recv() is None
    # The messages have consecutive numbers. The last number was checked, so this is the sum of all numbers.
    end = full.next_sequence - 1
    assert int.from_bytes(payload[:8], "little") == end - 1
    return sum(range(end - messages, end))


def in_batches(full: shmcast.Subscriber) -> int:
    total = 0
    while batch := full.recv_batch(timeout=0):
        total += int(batch.view(ROW)["number"].sum())
    return total


def publish(publisher: shmcast.Publisher, messages: int) -> int:
    payload = bytes(32)
    for _ in range(messages):
        publisher.publish(payload)
    return 0


def main() -> None:
    place, own, messages = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.sched_setaffinity(0, {1})
    full = shmcast.Subscriber("full", dir=place, start="oldest")
    publisher = shmcast.Publisher(own, dir=place)
    first = full.next_sequence
    for line in sys.stdin:
        full.seek(first)
        start = time.perf_counter_ns()
        match line.strip():
            case "r":
                total = one_at_a_time(full, messages)
            case "b":
                total = in_batches(full)
            case _:
                total = publish(publisher, messages)
        print((time.perf_counter_ns() - start) / messages, total, flush=True)


main()
