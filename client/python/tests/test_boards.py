"""Tests of boards, which have the last message of each key."""

import os
import random
import signal
import time

import pytest
from conftest import Program

import shmcast


def prices(room: str, **options: int) -> shmcast.Publisher:
    spec = shmcast.BoardSpec(0, 3, **options)
    return shmcast.Publisher("t", dir=room, capacity=64 << 10, board=spec)


def test_a_board_is_read_like_a_mapping(room: str) -> None:
    with prices(room, keys=4, value=64) as publisher:
        with shmcast.Board("t", dir=room) as board:
            assert len(board) == 0 and bool(board) and board.channel == "t"
            assert board.spec == shmcast.BoardSpec(0, 3, keys=4, value=64)
            publisher.publish(b"EUR 1.08", tag=7)
            publisher.publish(b"GBP 1.27")
            publisher.publish(b"EUR 1.09", key=True)
            publisher.publish(b"x")
            publisher.publish(b"JPY" + bytes(100))
            entry = board[b"EUR"]
            assert entry.message is not None
            assert (entry.key, entry.sequence, entry.count) == (b"EUR", 3, 2)
            assert entry.message == shmcast.Message(b"EUR 1.09", 3, 0, True, entry.message.time)
            age = board.age_ns(entry.message.time)
            assert age is not None and 0 <= age < 10**12
            assert b"GBP" in board and b"USD" not in board and board.get(b"USD") is None
            with pytest.raises(KeyError):
                board[b"USD"]
            too_large = board[b"JPY"]
            assert too_large.message is None and too_large.sequence == 5
            assert [entry.key for entry in board.entries()] == [b"GBP", b"EUR", b"JPY"]
            assert board.counters == {"through": 5, "since": 1, "keys": 3, "no_room": 0, "too_large": 1, "no_key": 1}
            publisher.publish(b"EUR")
            assert b"EUR" not in board and len(board) == 2
        with pytest.raises(shmcast.MisuseError):
            board.get(b"EUR")


def test_a_late_reader_gets_the_board_and_then_the_stream(room: str) -> None:
    with prices(room) as publisher:
        for number in range(5000):
            publisher.publish(b"%03d %d" % (number % 100, number))
        with shmcast.Subscriber("t", dir=room, start="board") as late:
            publisher.publish(b"007 last")
            first = [late.recv(0) for _ in range(100)]
            messages = [event for event in first if isinstance(event, shmcast.Message)]
            assert [message.sequence for message in messages] == list(range(4901, 5001))
            assert all(message.conflated == 0 for message in messages)
            assert late.recv(0) == shmcast.Live(5001)
            match late.recv(0):
                case shmcast.Message(payload=b"007 last", sequence=5001) as message:
                    assert message.conflated is None and "conflated" not in repr(message)
                case other:
                    raise AssertionError(other)


def test_a_slow_reader_gets_the_newest_and_the_number_left_out(room: str) -> None:
    rng = random.Random(7)
    with prices(room) as publisher:
        for conflate in (True, 8 << 10):
            with shmcast.Subscriber("t", dir=room, conflate=conflate) as slow:
                published: dict[bytes, int] = {}
                for number in range(5000):
                    key = b"%03d" % rng.randrange(50)
                    published[key] = published.get(key, 0) + 1
                    publisher.publish(key + b" %d" % number)
                seen: dict[bytes, int] = {}
                while isinstance(event := slow.recv(0), shmcast.Message):
                    key = event.payload[:3]
                    seen[key] = seen.get(key, 0) + 1 + (event.conflated or 0)
                assert isinstance(event, shmcast.Live)
                assert seen == published


def test_a_call_that_does_not_wait_misses_no_lap_and_no_end(room: str) -> None:
    with prices(room, keys=4, value=64) as publisher, shmcast.Subscriber("t", dir=room, start="board") as reader:
        assert reader.try_recv() == shmcast.Live(1)
        for _ in range(1024):  # together as many bytes as the ring has
            publisher.publish(b"EUR 1.08")
        event = reader.try_recv()
        assert isinstance(event, shmcast.Lapped) and event.missed > 0
        while isinstance(reader.try_recv(), shmcast.Message):
            pass
        publisher.close()
        assert reader.try_recv() == shmcast.End()
        assert reader.try_recv() is None and reader.is_over


def test_batches_have_a_message_of_the_board_alone(room: str) -> None:
    with prices(room) as publisher:
        for number in range(300):
            publisher.publish(b"%03d" % (number % 3) + b"value")
        with shmcast.Subscriber("t", dir=room, start="board") as late:
            batches = [late.recv_batch() for _ in range(4)]
            assert [[message.sequence for message in batch] for batch in batches[:3]] == [[298], [299], [300]]
            assert [message.conflated for batch in batches[:3] for message in batch] == [0, 0, 0]
            assert [batch.conflated.tolist() for batch in batches] == [[0], [0], [0], []]
            publisher.publish(b"001")
            publisher.publish(b"002")
            assert late.recv_batch().conflated.tolist() == [-1, -1]
            assert batches[3].events == [shmcast.Live(301)]


def test_what_cannot_be(room: str) -> None:
    for wrong in ((3, 3, 1), (0, 8, 0), (0, 900, 1)):
        with pytest.raises(ValueError):
            shmcast.BoardSpec(wrong[0], wrong[1], keys=wrong[2])
    with shmcast.Publisher("plain", dir=room, capacity=64 << 10):
        for opened in (
            lambda: shmcast.Board("plain", dir=room),
            lambda: shmcast.Subscriber("plain", dir=room, start="board"),
            lambda: shmcast.Subscriber("plain", dir=room, conflate=True),
        ):
            with pytest.raises(shmcast.ChannelError) as refused:
                opened()
            assert refused.value.code == "no board"
            # In an earlier version, this error's text named a function of the Rust library.
            assert "::" not in str(refused.value) and "shmcast pub --set board.key" in str(refused.value)
    with prices(room), pytest.raises(ValueError):
        shmcast.Subscriber("t", dir=room, conflate="yes")  # type: ignore[arg-type]
    with pytest.raises(shmcast.MismatchError):
        shmcast.Publisher("t", dir=room, board=shmcast.BoardSpec(0, 4))


def test_ctrl_c_ends_the_wait_for_a_channel(room: str) -> None:
    program = Program(
        """
        import shmcast, sys
        print("waits", flush=True)
        try:
            shmcast.Board("t", dir=sys.argv[1], wait_for_channel=3600)
        except KeyboardInterrupt:
            print("heard", flush=True)
            sys.stdin.readline()
            with shmcast.Board("t", dir=sys.argv[1], wait_for_channel=3600) as board:
                print(board.channel)
        """,
        room,
    )
    program.line()
    time.sleep(0.1)
    program.process.send_signal(signal.SIGINT)
    assert program.line() == "heard"
    with prices(room):
        assert program.process.stdin is not None
        program.process.stdin.write("\n")
        program.process.stdin.flush()
        assert program.end() == "t\n"
    with pytest.raises(shmcast.NotFoundError):
        shmcast.Board("none", dir=room, wait_for_channel=0.01)
    with pytest.raises(ValueError, match="wait_for_channel"):
        shmcast.Board("none", dir=room, wait_for_channel=-1)


def test_a_forked_child_opens_its_own(room: str) -> None:
    with prices(room) as publisher, shmcast.Board("t", dir=room) as board:
        publisher.publish(b"EUR 1.08")
        child = os.fork()
        if child == 0:
            try:
                board.get(b"EUR")
            except shmcast.ForkedError:
                with shmcast.Board("t", dir=room) as own:
                    os._exit(0 if b"EUR" in own else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert b"EUR" in board
