"""Tests of batches as arrays."""

import gc
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shmcast

np = pytest.importorskip("numpy")

QUOTE = np.dtype([("instrument", "<u8"), ("bid", "<i8"), ("ask", "<i8")])


def quotes(count: int) -> Any:
    rows = np.zeros(count, QUOTE)
    rows["instrument"] = np.arange(count)
    rows["bid"] = -np.arange(count)
    rows["ask"] = np.arange(count) * 2
    return rows


def test_records_of_one_size_are_a_view(room: str) -> None:
    rows = quotes(1000)
    with shmcast.Publisher("t", dir=room) as publisher:
        assert publisher.publish_batch(rows, tag=9, key=True) == range(1, 1001)
    with shmcast.Subscriber("t", dir=room, start="oldest") as subscriber:
        batch = subscriber.recv_batch()
    array = batch.view(QUOTE)
    assert len(batch) == 1000 and batch.first_sequence == 1 and batch.events == [shmcast.End()]
    assert (batch.payload_size, batch.stride) == (24, 64)
    assert array.tolist() == rows.tolist()
    assert array.strides == (64,) and not array.flags.owndata and not array.flags.writeable
    records = memoryview(batch)
    assert records.readonly and records.nbytes == 64_000 and np.shares_memory(array, np.frombuffer(records, "u1"))
    with pytest.raises(TypeError):
        records[0] = 1
    assert batch.sequence.tolist() == list(range(1, 1001))
    assert set(batch.tag.tolist()) == {9} and batch.tag.strides == (64,)
    assert batch.key.all() and set(batch.length.tolist()) == {24}
    assert len(set(batch.time.tolist())) == 1 and (batch.age_ns >= 0).all()
    with pytest.raises(ValueError, match="24 B"):
        batch.view("<u8")


def test_a_view_is_published_again_row_by_row(room: str) -> None:
    rows = quotes(50)
    with shmcast.Publisher("a", dir=room) as first, shmcast.Publisher("b", dir=room) as second:
        first.publish_batch(rows)
        with shmcast.Subscriber("a", dir=room, start=1) as a, shmcast.Subscriber("b", dir=room, start=1) as b:
            array = a.recv_batch().view(QUOTE)
            second.publish_batch(array)
            second.publish_batch(array[::-1])
            second.publish_batch(np.arange(12, dtype="<u4").reshape(3, 4))
            again = b.recv_batch(100).view(QUOTE)
            assert again[:50].tolist() == rows.tolist() and again[50:].tolist() == rows[::-1].tolist()
            assert b.recv_batch().view("4<u4").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
            with pytest.raises(ValueError, match="no rows"):
                second.publish_batch(np.array(1))
            with pytest.raises(BufferError):
                second.publish_batch(np.zeros((4, 4))[:, ::2])
            assert len(second.publish_batch(np.empty(0))) == 0


def test_several_sizes_and_tags_are_gathered(room: str) -> None:
    rows = quotes(100)
    with shmcast.Publisher("t", dir=room) as publisher:
        for number, row in enumerate(rows):
            publisher.publish(row, tag=7)
            publisher.publish(b"text" * (number % 40), tag=1, key=True)
        publisher.publish(np.uint64(5), tag=8)
    with shmcast.Subscriber("t", dir=room, start=1) as subscriber:
        batch = subscriber.recv_batch()
    assert batch.payload_size is None and batch.stride is None
    assert batch.gather(QUOTE, tag=7).tolist() == rows.tolist()
    assert batch.gather("<u8", tag=8).tolist() == [5]
    of_this_size = len([m for m in batch if len(m) == 24])
    assert len(batch.gather(QUOTE)) == of_this_size > 100
    assert len(batch.gather("<u8", tag=12)) == 0
    with pytest.raises(ValueError, match="several sizes"):
        batch.view(QUOTE)
    with pytest.raises(ValueError, match="message 2 with tag 1 has 0 B"):
        batch.gather(QUOTE, tag=1)
    messages = list(batch)
    assert batch.sequence.tolist() == [m.sequence for m in messages] == list(range(1, 202))
    assert batch.tag.tolist() == [m.tag for m in messages]
    assert batch.key.tolist() == [m.key for m in messages]
    assert batch.time.tolist() == [m.time for m in messages]
    assert batch.length.tolist() == [len(m) for m in messages]
    assert len(batch.age_ns) == 201 and (batch.age_ns >= 0).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3)), max_size=60), st.integers(1, 70))
def test_columns_say_what_messages_say(kinds: list[tuple[int, int]], most: int) -> None:
    with tempfile.TemporaryDirectory(prefix="shmcast-test-") as room:
        with shmcast.Publisher("t", dir=room, capacity=1 << 20) as publisher:
            for size, tag in kinds:
                publisher.publish(bytes([tag]) * size, tag=tag)
        seen: list[tuple[int, int, int]] = []
        with shmcast.Subscriber("t", dir=room, start="oldest") as subscriber:
            for batch in subscriber.batches(most):
                seen += zip(batch.sequence.tolist(), batch.length.tolist(), batch.tag.tolist(), strict=True)
                assert len(batch) <= most
                for size, tag in set(kinds):
                    fitting = [m.payload for m in batch if len(m) == size]
                    if size > 0:
                        assert [row.tobytes() for row in batch.gather(f"V{size}")] == fitting
    assert seen == [(number, size, tag) for number, (size, tag) in enumerate(kinds, 1)]


def test_empty_batches(room: str) -> None:
    with shmcast.Publisher("t", dir=room), shmcast.Subscriber("t", dir=room) as subscriber:
        batch = subscriber.recv_batch(timeout=0)
        assert not batch and len(batch) == 0 and batch.events == [] and list(batch) == []
        assert memoryview(batch).nbytes == 0 and batch.first_sequence == 0
        columns = (batch.sequence, batch.tag, batch.key, batch.time, batch.length, batch.age_ns)
        assert [len(column) for column in columns] == [0] * 6
        assert len(batch.view(QUOTE)) == 0 and len(batch.gather(QUOTE)) == 0
        quiet = next(iter(subscriber.batches(timeout=0.01)))
        assert not quiet


def test_payloads_of_no_bytes(room: str) -> None:
    with shmcast.Publisher("t", dir=room) as publisher:
        publisher.publish_batch([b""] * 3)
    with shmcast.Subscriber("t", dir=room, start=1) as subscriber:
        batch = subscriber.recv_batch()
    assert (len(batch), batch.payload_size, batch.stride) == (3, 0, 64)
    assert batch.length.tolist() == [0, 0, 0] and batch.sequence.tolist() == [1, 2, 3]


def test_a_batch_keeps_its_memory_while_somebody_looks(room: str) -> None:
    with shmcast.Publisher("t", dir=room) as publisher:
        subscriber = shmcast.Subscriber("t", dir=room)
        publisher.publish_batch(np.full(100, 7, "<u8"))
        first = subscriber.recv_batch().view("<u8")
        for value in range(20):
            publisher.publish_batch(np.full(100, value, "<u8"))
            later = subscriber.recv_batch().view("<u8")
            assert set(later.tolist()) == {value}
            address = later.__array_interface__["data"][0]
            del later
            gc.collect()
        assert set(first.tolist()) == {7}
        subscriber.close()
        assert set(first.tolist()) == {7}, "also when the subscriber is closed"
        assert address != first.__array_interface__["data"][0]


def test_memory_is_used_again(room: str) -> None:
    with shmcast.Publisher("t", dir=room) as publisher, shmcast.Subscriber("t", dir=room) as subscriber:
        addresses = set()
        for _ in range(50):
            publisher.publish_batch(np.arange(100))
            batch = subscriber.recv_batch()
            addresses.add(batch.view("<u8").__array_interface__["data"][0])
            del batch
        assert len(addresses) <= 2


def test_messages_larger_than_a_batch(room: str) -> None:
    with shmcast.Publisher("t", dir=room, capacity=16 << 20) as publisher:
        with shmcast.Subscriber("t", dir=room, batch_bytes=4096) as subscriber:
            publisher.publish_batch([b"a" * 100, b"b" * 1_000_000, b"c" * 100])
            sizes: list[int] = []
            while len(sizes) < 3:
                sizes += subscriber.recv_batch().length.tolist()
            assert sizes == [100, 1_000_000, 100]
