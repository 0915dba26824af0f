"""Two channels in one wait."""

import shmcast

with shmcast.Publisher("bids", capacity=1 << 20) as quotes, shmcast.Publisher("deals", capacity=1 << 20) as trades:
    quotes.publish(b"bid 100.25")
    trades.publish(b"5 at 100.30")

readers = [shmcast.Subscriber(name, start="oldest") for name in ("bids", "deals")]
for reader, event in shmcast.Select(readers):  # until both channels are over
    match event:
        case shmcast.Message(payload=payload):
            print(f"{reader.channel}: {payload.decode()}")
        case other:
            print(f"{reader.channel}: {other}")
