"""The testee in Python of the suite in client/conformance. The suite's README says what a testee must do."""

import json
import sys
from collections.abc import Callable
from typing import Any

import shmcast

CLASSES = [
    ("truncated:", "truncated"),
    ("foreign:", "foreign"),
    ("layout version", "version"),
    ("header: checksum", "checksum"),
    ("impossible sizes", "geometry"),
    ("damaged header:", "field"),
    ("not published yet", "not yet"),
    ("another reader has it", "in use"),
    ("not a gate's page", "damaged"),
]
ENOUGH = 130


def crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F6_3B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC = crc_table()


def crc32c(payload: bytes) -> int:
    crc = 0xFFFF_FFFF
    for byte in payload:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 255]
    return crc ^ 0xFFFF_FFFF


def payload_table() -> bytes:
    table, x = bytearray(), 1
    for _ in range(65536 + 4093):
        x = (x * 1664525 + 1013904223) & 0xFFFF_FFFF
        table.append(x >> 24)
    return bytes(table)


TABLE = payload_table()


def checked(sequence: int, longest: int) -> bytes:
    """Returns the payload of a sequence. The payload checks itself."""
    hashed = sequence * 2654435761 & 0xFFFF_FFFF
    kind, rest = hashed >> 8 & 63, hashed >> 14
    length = rest & 255 if kind < 48 else rest & 4095 if kind < 60 else rest & 65535 if kind < 63 else 65536
    begin = sequence % 4093
    return TABLE[begin : begin + min(length, longest)]


def text(event: shmcast.Event, with_bytes: bool) -> str:
    match event:
        case shmcast.Message(payload, sequence, tag, key, time):
            length, crc = len(payload), crc32c(payload)
            told = f"message {sequence} tag={tag} key={int(key)} time={time} length={length} crc={crc:08x}"
            if event.conflated is not None:
                told += f" conflated={event.conflated}"
            return f"{told} bytes={payload.hex()}" if with_bytes else told
        case shmcast.Lapped(missed, resumed_at):
            return f"lapped {missed} {resumed_at}"
        case shmcast.Gap(first, last):
            return f"gap {first} {last}"
        case shmcast.Live(sequence):
            return f"live {sequence}"
        case shmcast.NewEpoch(epoch):
            return f"epoch {epoch}"
        case shmcast.NewSession(session):
            return f"session {session.hex()}"
        case shmcast.PublisherGone(epoch):
            return f"gone {epoch}"
        case shmcast.Restarted():
            return "restarted"
        case shmcast.End():
            return "end"


def reason(error: shmcast.Error) -> str:
    """Returns the suite's word for a refusal. For a segment, the error's text decides."""
    for words, name in CLASSES:
        if words in str(error):
            return name
    return named(error)


def named(error: shmcast.Error) -> str:
    return {"board": "no board", "gate": "unknown gate"}.get(error.code, error.code)


class Counts:
    """The counts of a reader. The channel's payloads check themselves."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.received = self.missed = self.wrong = 0
        self.is_over = False

    def add(self, event: shmcast.Event) -> None:
        match event:
            case shmcast.Message(payload, sequence):
                if payload == checked(sequence, self.longest):
                    self.received += 1
                else:
                    self.wrong += 1
            case shmcast.Lapped(missed):
                self.missed += missed
            case shmcast.Gap(first, last):
                self.missed += last - first + 1
            case shmcast.End():
                self.is_over = True
            case shmcast.NewEpoch() | shmcast.Live():
                pass
            case _:
                self.wrong += 1


class Testee:
    def __init__(self) -> None:
        self.subscriber: shmcast.Subscriber | None = None
        self.board: shmcast.Board | None = None
        self.channel = ""
        self.dir: str | None = None
        self.socket: str | None = None
        self.publisher: shmcast.Publisher | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        do = request.pop("do")
        try:
            if do in ("poll", "batch", "consume", "get"):
                return {"events": getattr(self, do)(**request)}
            getattr(self, do)(**request)
        except shmcast.Error as error:
            return {"refused": reason(error)}
        return {"ok": True}

    def open(
        self,
        channel: str,
        start: str | int,
        dir: str | None = None,
        socket: str | None = None,
        conflate: int = 0,
        gate: str | None = None,
        watch: int = 0,
    ) -> None:
        self.close()
        self.channel, self.dir, self.socket = channel, dir, socket
        self.subscriber = shmcast.Subscriber(
            channel,
            dir=dir,
            socket=socket,
            start=start,
            wait="spin",
            hidden=True,
            prepare=[],
            watch_publisher=watch == 1,
            conflate=True if conflate else None,
            gate=gate,
        )

    def close(self) -> None:
        if self.subscriber is not None:
            self.subscriber.close()
        if self.board is not None:
            self.board.close()
        self.subscriber = self.board = None

    def get(self, key: str) -> list[str]:
        """Looks up a key on the board of the open channel."""
        if self.board is None:
            self.board = shmcast.Board(self.channel, dir=self.dir, socket=self.socket)
        entry = self.board.get(bytes.fromhex(key))
        if entry is None:
            return []
        told = "too large" if entry.message is None else text(entry.message, False)
        return [f"{told} count={entry.count}"]

    def seek(self, sequence: int) -> None:
        assert self.subscriber is not None
        self.subscriber.seek(sequence)

    def poll(self, most: int = sys.maxsize, bytes: int = 0) -> list[str]:
        subscriber = self.subscriber
        assert subscriber is not None

        def take() -> list[shmcast.Event]:
            event = subscriber.try_recv()
            return [] if event is None else [event]

        return self.receive(most, take, with_bytes=bytes == 1)

    def batch(self, most: int = sys.maxsize, bytes: int = 0) -> list[str]:
        subscriber = self.subscriber
        assert subscriber is not None

        def take() -> list[shmcast.Event]:
            batch = subscriber.recv_batch(64, timeout=0)
            return [*batch, *batch.events]

        return self.receive(most, take, with_bytes=bytes == 1)

    @staticmethod
    def receive(most: int, take: Callable[[], list[shmcast.Event]], with_bytes: bool) -> list[str]:
        """Returns the events until nothing has arrived for a while."""
        events: list[str] = []
        empty = 0
        try:
            while empty < ENOUGH and len(events) < most:
                taken = take()
                empty = 0 if taken else empty + 1
                events.extend(text(event, with_bytes) for event in taken)
        except shmcast.Error as error:
            events.append(named(error))
        return events

    def consume(
        self, channel: str, how: str, longest: int, dir: str | None = None, socket: str | None = None
    ) -> list[str]:
        counts = Counts(longest)
        with shmcast.Subscriber(
            channel, dir=dir, socket=socket, start=1, wait_for_channel=30, prepare=[]
        ) as subscriber:
            while not counts.is_over:
                if how == "poll":
                    event = subscriber.recv()
                    if event is not None:
                        counts.add(event)
                    continue
                batch = subscriber.recv_batch(256)
                for message in batch:
                    counts.add(message)
                for event in batch.events:
                    counts.add(event)
        return [f"received {counts.received}", f"missed {counts.missed}", f"wrong {counts.wrong}"]

    def create(
        self,
        channel: str,
        dir: str | None = None,
        socket: str | None = None,
        capacity: int | None = None,
        board: str = "",
        keys: int = 0,
        value: int = 0,
        gate: str = "",
        lag: int = 0,
        wait: int = 0,
        refuse: int = 0,
    ) -> None:
        self.end()
        spec: shmcast.BoardSpec | None = None
        gates: list[shmcast.Gate] = []
        if board:
            first, stop = board.split("..")
            spec = shmcast.BoardSpec(int(first), int(stop), keys=keys, value=value)
        if gate:
            gates = [shmcast.Gate(gate, lag=lag, wait=wait / 1e9, refuse=refuse == 1)]
        if socket is not None:
            capacity = None  # a daemon's channel has its own capacity
        self.publisher = shmcast.Publisher(channel, dir=dir, socket=socket, capacity=capacity, board=spec, gates=gates, prepare=[])

    def publish(self, length: int, fill: int, tag: int, key: int) -> None:
        assert self.publisher is not None
        payload = bytes((fill + i) & 255 for i in range(length))
        self.publisher.publish(payload, tag=tag, key=key == 1)

    def produce(self, to: int, longest: int) -> None:
        assert self.publisher is not None
        for sequence in range(self.publisher.next_sequence, to + 1):
            self.publisher.publish(checked(sequence, longest))

    def end(self) -> None:
        if self.publisher is not None:
            self.publisher.close()
        self.publisher = None


def main() -> None:
    version = shmcast.__version__
    print(json.dumps({"testee": "python", "version": version, "levels": [1, 2, 3, 4, 5, 6, 7, 8, 9]}), flush=True)
    testee = Testee()
    for line in sys.stdin:
        print(json.dumps(testee.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
