"""The cost of a call from Python, for the example `cost` of client/c, which runs it in turns with Rust:

cargo run --release -p shmcast-c --example cost -- -- python3 client/python/examples/cost.py
"""

import os
import sys
import time

import numpy as np

import shmcast

dir, own, messages = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.sched_setaffinity(0, {1})
full = shmcast.Subscriber("full", dir=dir, start="oldest")
first = full.next_sequence
publisher = shmcast.Publisher(own, dir=dir)
row = np.dtype([("number", "<u8"), ("rest", "3<u8")])
payload = bytes(32)

for line in sys.stdin:
    total = 0
    full.seek(first)
    start = time.perf_counter_ns()
    match line.strip():
        case "r":  # a loop over messages, which looks at the payload and the sequence of each
            left = messages
            for event in full:
                if isinstance(event, shmcast.Message):
                    payload = event.payload
                    total += event.sequence - 1  # the number that it holds
                left -= 1
                if left == 0:
                    break
            assert len(payload) == 32
        case "b":
            while batch := full.recv_batch(timeout=0):
                total += int(batch.view(row)["number"].sum())
        case _:
            publish = publisher.publish
            for _ in range(messages):
                publish(payload)
    ns = (time.perf_counter_ns() - start) / messages
    print(ns, total, flush=True)
