"""Tests of single messages and events, and of options and errors."""

import asyncio
import contextlib
import copy
import pickle
import re
import tempfile
import threading
import time
from array import array
from pathlib import Path

import pytest
from conftest import Program
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import Buffer

import shmcast
from shmcast._errors import _CLASSES


def test_what_is_published_is_received(room: str) -> None:
    with shmcast.Publisher("t", dir=room, capacity=1 << 20) as publisher:
        payloads: list[Buffer] = [b"", b"one", bytearray(b"two"), memoryview(b"-three-")[1:6], array("d", [1.5])]
        for tag, payload in enumerate(payloads):
            assert publisher.publish(payload, tag=tag, key=tag % 2 == 1) == tag + 1
    with shmcast.Subscriber("t", dir=room, start="oldest") as subscriber:
        events = list(subscriber)
        assert subscriber.next_sequence == 6
    messages = [event for event in events if isinstance(event, shmcast.Message)]
    assert len(messages) == len(events) == 5
    for tag, (message, payload) in enumerate(zip(messages, payloads, strict=True)):
        assert message.payload == bytes(payload)
        assert (message.sequence, message.tag, message.key) == (tag + 1, tag, tag % 2 == 1)
        assert message.time > 0 and len(message) == len(bytes(payload)) and bool(message)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=5000), max_size=30), st.integers(0, 0xFFFF))
def test_any_sizes_arrive_whole(payloads: list[bytes], tag: int) -> None:
    with tempfile.TemporaryDirectory(prefix="shmcast-test-") as room:
        with shmcast.Publisher("t", dir=room, capacity=1 << 20) as publisher:
            sequences = publisher.publish_batch(payloads, tag=tag, key=True)
            assert sequences == range(1, len(payloads) + 1)
        with shmcast.Subscriber("t", dir=room, start="oldest") as subscriber:
            one_by_one = list(subscriber)
            if payloads:
                subscriber.seek(1)
                batch = subscriber.recv_batch()
                assert list(batch) == one_by_one
                assert batch.events == [shmcast.End()]
    assert one_by_one == [
        shmcast.Message(payload, number, tag, True, getattr(event, "time", 0))
        for number, (payload, event) in enumerate(zip(payloads, one_by_one, strict=True), 1)
    ]


def test_events_match_and_compare() -> None:
    match shmcast.Lapped(missed=3, resumed_at=9):
        case shmcast.Lapped(missed=m, resumed_at=at):
            assert (m, at) == (3, 9)
        case _:
            raise AssertionError
    assert shmcast.Gap(1, 2) == shmcast.Gap(first=1, last=2) != shmcast.Gap(1, 3)
    assert {shmcast.End(), shmcast.End()} == {shmcast.End()}
    assert repr(shmcast.NewEpoch(7)) == "NewEpoch(epoch=7)" and repr(shmcast.End()) == "End()"
    assert repr(shmcast.NewSession(b"SESSION-01")) == "NewSession(session=b'SESSION-01')"
    message = shmcast.Message(b"x", 4)
    assert repr(message) == "Message(payload=b'x', sequence=4, tag=0, key=False, time=0)"
    assert message == shmcast.Message(b"x", 4) != shmcast.Message(b"y", 4) and message != "x"
    with pytest.raises(AttributeError):
        message.payload = b"y"  # type: ignore[misc]
    assert isinstance(message, shmcast.Event)


def test_laps_are_counted_exactly(room: str) -> None:
    with shmcast.Publisher("t", dir=room, capacity=64 << 10) as publisher:
        reader = shmcast.Subscriber("t", dir=room, start=1)
        batches = shmcast.Subscriber("t", dir=room, start=1)
        published = 0
        counts = [[0, 0], [0, 0]]
        for burst in (10, 1000, 5000, 1, 20_000):
            for _ in range(burst):
                publisher.publish(b"x" * (published % 300))
                published += 1
            while (event := reader.try_recv()) is not None:
                match event:
                    case shmcast.Message(sequence=n, payload=payload):
                        counts[0][0] += 1
                        assert n == sum(counts[0]) and len(payload) == (n - 1) % 300
                    case shmcast.Lapped(missed=missed, resumed_at=at):
                        counts[0][1] += missed
                        assert at == sum(counts[0]) + 1
            while batch := batches.recv_batch(300, timeout=0):
                for event in [*batch, *batch.events]:
                    match event:
                        case shmcast.Message(sequence=n):
                            counts[1][0] += 1
                            assert n == sum(counts[1])
                        case shmcast.Lapped(missed=missed):
                            counts[1][1] += missed
    assert sum(counts[0]) == sum(counts[1]) == published
    assert counts[0][1] > 0 and counts[1][1] > 0
    assert reader.try_recv() == shmcast.End() and list(batches) == []


def test_an_iteration_ends_with_the_last_publisher(room: str) -> None:
    for letter in (b"a", b"b"):
        with shmcast.Publisher("t", dir=room, capacity=64 << 10) as publisher:
            publisher.publish(letter)
    end, epoch = shmcast.End(), shmcast.NewEpoch(2)

    def told(events: list[shmcast.Event]) -> list[object]:
        return [event.payload if isinstance(event, shmcast.Message) else event for event in events]

    async def collected(subscriber: shmcast.Subscriber) -> list[shmcast.Event]:
        return [event async for event in subscriber]

    with shmcast.Subscriber("t", dir=room, start="oldest") as subscriber:
        assert told(list(subscriber)) == [b"a", end, epoch, b"b"] and subscriber.is_over
    with shmcast.Subscriber("t", dir=room, start="oldest") as subscriber:
        assert told(asyncio.run(collected(subscriber))) == [b"a", end, epoch, b"b"]
    with shmcast.Subscriber("t", dir=room, start="oldest") as subscriber:
        batches = list(subscriber.batches())
        assert told([event for batch in batches for event in [*batch, *batch.events]]) == [b"a", end, epoch, b"b", end]
    # If a channel is closed and has no message for a subscriber, the subscriber waits for the next publisher.
    waiting = [shmcast.Subscriber("t", dir=room) for _ in range(3)]
    assert [subscriber.recv() for subscriber in waiting] == [end] * 3
    assert not any(subscriber.is_over for subscriber in waiting)
    with shmcast.Publisher("t", dir=room) as publisher:
        publisher.publish(b"c")
    expected: list[object] = [shmcast.NewEpoch(3), b"c"]
    assert told(list(waiting[0])) == expected and told(asyncio.run(collected(waiting[1]))) == expected
    last = [event for batch in waiting[2].batches() for event in [*batch, *batch.events]]
    assert told(last) == [*expected, end]
    for subscriber in waiting:
        subscriber.close()


def test_seeking_and_beginning(room: str) -> None:
    with shmcast.Publisher("t", dir=room, capacity=64 << 10) as publisher:
        publisher.publish_batch([b"x" * 100] * 2000)
        with shmcast.Subscriber("t", dir=room) as subscriber:
            assert subscriber.try_recv() is None
            with pytest.raises(shmcast.TooOldError) as refused:
                subscriber.seek(1)
            assert refused.value.code == "too old" and "t" in str(refused.value)
            with pytest.raises(shmcast.NotYetError):
                subscriber.seek(3000)
            subscriber.seek(1999)
            assert [n.sequence for n in subscriber.recv_batch()] == [1999, 2000]
            publisher.close()
            assert subscriber.recv(60) == shmcast.End() and subscriber.is_over
            with pytest.raises(shmcast.NotYetError):
                subscriber.seek(3000)
            assert subscriber.is_over, "it keeps its place, behind the end"
        with shmcast.Subscriber("t", dir=room, start=1, resume="latest") as late:
            lapped = late.recv()
            assert isinstance(lapped, shmcast.Lapped) and lapped.missed > 1000


def test_only_some_tags(room: str) -> None:
    with shmcast.Publisher("t", dir=room) as publisher:
        with shmcast.Subscriber("t", dir=room, tags=[3, 5]) as subscriber:
            for tag in range(8):
                publisher.publish(b"", tag=tag)
            batch = subscriber.recv_batch()
            assert [(m.sequence, m.tag) for m in batch] == [(4, 3), (6, 5)]


def test_a_channel_that_appears_later_is_read_from_its_beginning(room: str) -> None:
    program = Program(
        """
        import shmcast, sys
        print("waits", flush=True)
        with shmcast.Subscriber("late", dir=sys.argv[1], wait_for_channel=60) as subscriber:
            print([event.payload for event in subscriber])
        """,
        room,
    )
    program.line()
    time.sleep(0.3)  # longer than one slice of the wait
    with shmcast.Publisher("late", dir=room) as publisher:
        publisher.publish_batch([b"a", b"b"])
    assert program.end() == "[b'a', b'b']\n"


def test_times_and_ages(room: str) -> None:
    with shmcast.Publisher("t", dir=room, clock="monotonic") as publisher:
        with shmcast.Subscriber("t", dir=room) as subscriber:
            before = time.monotonic_ns()
            publisher.publish(b"x")
            message = subscriber.recv()
            assert isinstance(message, shmcast.Message)
            age = subscriber.age_ns(message.time)
            assert age is not None and 0 <= age <= time.monotonic_ns() - before
            assert subscriber.age_ns(0) is None


def test_a_channel_that_nobody_uses_is_removed(room: str) -> None:
    publisher = shmcast.Publisher("t", dir=room, capacity=64 << 10)
    with pytest.raises(shmcast.InUseError):
        shmcast.remove("t", dir=room)
    publisher.close()
    with shmcast.Subscriber("t", dir=room), pytest.raises(shmcast.InUseError):
        shmcast.remove("t", dir=room)
    assert shmcast.remove("t", dir=room) == ["lock", "readers", "segment"]
    with pytest.raises(shmcast.NotFoundError):
        shmcast.remove("t", dir=room)
    with shmcast.Publisher("t", dir=room, capacity=64 << 10):
        (Path(room) / "t" / "notes").touch()
    with pytest.raises(shmcast.ChannelError) as refused:
        shmcast.remove("t", dir=room)
    assert refused.value.code == "not a channel"


def test_errors_say_what_and_where(room: str) -> None:
    with pytest.raises(shmcast.NotFoundError, match='no channel "nobody"') as absent:
        shmcast.Subscriber("nobody", dir=room)
    assert absent.value.code == "not found" and absent.value.os_errno is None
    copy = pickle.loads(pickle.dumps(absent.value))
    assert (type(copy), copy.code, str(copy)) == (shmcast.NotFoundError, "not found", str(absent.value))
    with pytest.raises(shmcast.NoDaemonError) as away:
        shmcast.Subscriber("t", socket=f"{room}/nothing.sock")
    assert away.value.os_errno == 2
    with pytest.raises(shmcast.ChannelError) as name:
        shmcast.Publisher("a/b", dir=room)
    assert name.value.code == "name"
    with shmcast.Publisher("t", dir=room, capacity=1 << 20) as publisher:
        with pytest.raises(shmcast.InUseError):
            shmcast.Publisher("t", dir=room)
        with pytest.raises(shmcast.TooLargeError):
            publisher.publish(bytes(publisher.max_message + 1))
        assert publisher.next_sequence == 1 and publisher.capacity == 1 << 20
        with pytest.raises(shmcast.ChannelError) as parked:
            shmcast.Subscriber("t", dir=room, wait="park")
        assert parked.value.code == "no waker"
    with pytest.raises(shmcast.MismatchError):
        shmcast.Publisher("t", dir=room, capacity=2 << 20)
    with pytest.raises(shmcast.MisuseError, match="closed"):
        publisher.publish(b"")


def test_arguments_that_mean_nothing(room: str) -> None:
    with shmcast.Publisher("t", dir=room) as publisher:
        for wrong in ("newest", 1.5, -1):
            with pytest.raises(ValueError, match="start"):
                shmcast.Subscriber("t", dir=room, start=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="wait"):
            shmcast.Subscriber("t", dir=room, wait="hard")
        with pytest.raises(ValueError, match="pause"):
            shmcast.Subscriber("t", dir=room, wait="spin", pause=0.1)
        with pytest.raises(ValueError, match="not both"):
            shmcast.Subscriber("t", dir=room, socket="")
        with pytest.raises(TypeError, match="list of steps"):
            shmcast.Subscriber("t", dir=room, prepare="lock")
        with pytest.raises(ValueError, match="no step"):
            shmcast.Subscriber("t", dir=room, prepare=["hope"])
        with shmcast.Subscriber("t", dir=room) as subscriber:
            for timeout in (-1.0, float("nan")):
                with pytest.raises(ValueError, match="timeout"):
                    subscriber.recv(timeout)
            with pytest.raises(ValueError):
                subscriber.recv_batch(0)
        for tag in (-1, 65536):
            with pytest.raises(OverflowError):
                publisher.publish(b"", tag=tag)
        with pytest.raises(TypeError):
            publisher.publish("text")  # type: ignore[arg-type]
        with pytest.raises(BufferError):
            publisher.publish(memoryview(b"abcdef")[::2])
        for one in (b"abc", bytearray(b"abc")):
            with pytest.raises(ValueError, match="one message"):
                publisher.publish_batch(one)
        with pytest.raises(TypeError):
            publisher.publish_batch([b"good", "bad"])  # type: ignore[list-item]
        assert publisher.next_sequence == 1


def test_the_codes_are_those_of_the_c_library() -> None:
    header = Path(__file__).parents[2] / "c/include/shmcast.h"
    if not header.exists():
        pytest.skip("shmcast.h is not beside this package")
    of_c = {name.lower().replace("_", " ") for name in re.findall(r"SHMCAST_ERROR_(\w+)\s*=", header.read_text())}
    assert of_c and set(_CLASSES) <= of_c, set(_CLASSES) - of_c


def test_an_error_between_batches_does_not_hide_the_end(room: str) -> None:
    shmcast.Publisher("t", dir=room, capacity=1 << 16).close()
    subscriber = shmcast.Subscriber("t", dir=room, start="oldest")
    batches = subscriber.batches(timeout=60)
    assert list(next(batches).events) == [shmcast.End()]
    stop = threading.Event()

    # Another thread uses the subscriber, so calls of this thread fail now and then.
    def use() -> None:
        while not stop.is_set():
            with contextlib.suppress(shmcast.MisuseError):
                subscriber.recv(0.1)

    user = threading.Thread(target=use)
    user.start()
    failed = False
    while not failed:
        try:
            next(batches)
        except StopIteration:
            pass
        except shmcast.MisuseError:
            failed = True
    stop.set()
    user.join()
    with pytest.raises(StopIteration):
        next(batches)
    subscriber.close()


@pytest.mark.parametrize(
    "event",
    [
        shmcast.Message(b"x", 7, tag=3, key=True, time=9, conflated=2),
        shmcast.Gap(1, 2, "overrun"),
        shmcast.Lapped(3, 4),
        shmcast.Live(5),
        shmcast.NewEpoch(6),
        shmcast.PublisherGone(7),
        shmcast.NewSession(b"0123456789"),
        shmcast.Restarted(),
        shmcast.End(),
    ],
)
def test_an_event_can_be_pickled_and_copied(event: shmcast.Event) -> None:
    assert pickle.loads(pickle.dumps(event)) == event and copy.copy(event) == event
    assert repr(pickle.loads(pickle.dumps(event))) == repr(event)
