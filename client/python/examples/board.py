"""A screen of last values that starts late: the newest price of each of 10,000 symbols, and then each later price."""

import struct

import shmcast

# A symbol of 8 bytes is the key; a price follows.
TICK = struct.Struct("8sd")
SPEC = shmcast.BoardSpec(0, 8, keys=10_000, value=TICK.size)

with shmcast.Publisher("symbols", board=SPEC) as publisher:
    for number in range(50_000):
        publisher.publish(TICK.pack(b"SYM%05d" % (number % 10_000), number / 100))

    # The screen starts now. It missed all of these messages.
    with shmcast.Subscriber("symbols", start="board") as prices:
        last: dict[bytes, float] = {}
        for event in prices:
            match event:
                case shmcast.Message(payload):
                    symbol, price = TICK.unpack(payload)
                    last[symbol] = price
                case shmcast.Live(sequence):
                    print(len(last), "symbols; the stream goes on with message", sequence)
                    break
        publisher.publish(TICK.pack(b"SYM00007", 1.5))
        print("then", prices.recv())

    # One symbol, without the stream.
    with shmcast.Board("symbols") as board:
        entry = board[b"SYM00007"]
        print(entry.key, "has had", entry.count, "messages; the newest is", entry.sequence)
