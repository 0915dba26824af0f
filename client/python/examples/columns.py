"""Quotes as arrays: a publisher of records, and a reader without a loop over messages."""

import numpy as np

import shmcast

quote = np.dtype([("instrument", "<u8"), ("bid", "<i8"), ("ask", "<i8")])

with shmcast.Publisher("quotes", capacity=8 << 20) as quotes:
    rows = np.zeros(100_000, quote)
    rows["instrument"] = np.arange(100_000) % 10
    rows["bid"] = 10_000
    rows["ask"] = 10_002
    quotes.publish_batch(rows, tag=1)  # one message a row

mid = np.zeros(10)
received = 0
with shmcast.Subscriber("quotes", start="oldest") as quotes:
    for batch in quotes.batches():  # until the channel is over
        a = batch.view(quote)  # a view of what was received, without a copy
        mid[a["instrument"]] = (a["bid"] + a["ask"]) / 2
        received += len(a)
        for event in batch.events:
            print(f"behind {received} quotes: {event}")
print(f"mid prices: {mid}")
