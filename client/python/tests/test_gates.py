"""Tests of gates: readers for which a publisher waits, up to a time limit."""

import _thread
import os
import pickle
import threading
import time

import pytest

import shmcast


def test_a_full_gate_refuses_and_loses_nothing(room: str) -> None:
    gates = [shmcast.Gate("ledger", refuse=True, wait=0.001), shmcast.Gate("risk", lag_percent=40)]
    with shmcast.Publisher("t", dir=room, capacity=1 << 20, gates=gates) as publisher:
        assert [gate.name for gate in publisher.gates] == ["ledger", "risk"] and publisher.gates[0].state == "absent"
        with shmcast.Subscriber("t", dir=room, gate="ledger") as ledger:
            published = 0
            while (sequence := publisher.try_publish(b"entry", tag=7)) is not None:
                published = sequence
            with pytest.raises(shmcast.FullError) as refused:
                publisher.publish(bytearray(b"entry"))
            assert refused.value.code == "full" and "ledger" in str(refused.value)
            for error in (refused.value, pickle.loads(pickle.dumps(refused.value))):
                assert error.gate == "ledger" and 100_000 < error.behind < 1 << 20
            received = [event for _ in range(published) if (event := ledger.recv(0)) is not None]
            assert [event.sequence for event in received if isinstance(event, shmcast.Message)] == list(range(1, published + 1))
            assert publisher.publish(b"entry") == published + 1
            gate = publisher.gates[0]
            assert (gate.state, gate.refused, gate.turned_away, gate.pid) == ("in-force", 1, 1, os.getpid())
            assert gate.longest >= 0.001 and gate.total >= gate.longest and gate.held >= 1 and "in-force" in repr(gate)
            for name in ("ledger", "nobody"):
                with pytest.raises(shmcast.ChannelError) as taken:
                    shmcast.Subscriber("t", dir=room, gate=name)
                assert taken.value.code == "gate"


def test_other_threads_run_while_a_message_waits(room: str) -> None:
    with shmcast.Publisher("t", dir=room, capacity=1 << 20, gates=[shmcast.Gate("slow", refuse=True, wait=30)]) as publisher:
        slow = shmcast.Subscriber("t", dir=room, gate="slow")
        while publisher.try_publish(b"x" * 1000) is not None:
            pass
        # This thread can take messages only if the publishing call releases the interpreter while it waits.
        def take() -> None:
            time.sleep(0.05)
            # All of these messages are already there. A call that finds nothing yields, which takes long on a busy machine.
            for _ in range(400):
                slow.recv(0)

        reader = threading.Thread(target=take)
        reader.start()
        began = time.monotonic()
        assert publisher.publish(b"y") > 0
        assert time.monotonic() - began < 25
        reader.join()
        slow.close()


def test_other_threads_run_while_a_batch_or_the_end_waits(room: str) -> None:
    """An earlier mistake: these two calls held the interpreter, so a reader in the same process could not make room."""
    gate = shmcast.Gate("slow", refuse=True, wait=60)
    with shmcast.Publisher("t", dir=room, capacity=64 << 10, gates=[gate]) as publisher:
        slow = shmcast.Subscriber("t", dir=room, gate="slow")
        sequences = []
        ready, ended = threading.Event(), threading.Event()

        def take() -> None:
            while not ended.is_set():
                match slow.recv(0.01):
                    case shmcast.Message(sequence=sequence, payload=payload) if len(payload) == 100:
                        sequences.append(sequence)
                    case shmcast.End():
                        ended.set()
                    case None:
                        ready.set()

        reader = threading.Thread(target=take)
        reader.start()
        assert ready.wait(120)
        rows = bytearray(b"x" * 100 * 2500)
        assert publisher.publish_batch([b"x" * 100] * 2500) == range(1, 2501)
        assert publisher.publish_batch(memoryview(rows).cast("B", [2500, 100])) == range(2501, 5001)
        while publisher.try_publish(b"") is not None:
            pass
        began = time.monotonic()
        publisher.close()
        assert time.monotonic() - began < 50
        assert ended.wait(120)
        reader.join()
        slow.close()
        assert sequences == list(range(1, 5001))


def test_other_threads_run_while_a_dropped_publisher_waits(room: str) -> None:
    gate = shmcast.Gate("slow", refuse=True, wait=60)
    publisher = shmcast.Publisher("t", dir=room, capacity=64 << 10, gates=[gate])
    slow = shmcast.Subscriber("t", dir=room, gate="slow")
    ready, full, ended = threading.Event(), threading.Event(), threading.Event()

    def take() -> None:
        assert slow.recv(0.01) is None
        ready.set()
        assert full.wait(120)
        while not isinstance(slow.recv(0.01), shmcast.End):
            pass
        ended.set()

    reader = threading.Thread(target=take)
    reader.start()
    assert ready.wait(120)
    while publisher.try_publish(b"8 bytes.") is not None:
        pass
    full.set()
    began = time.monotonic()
    del publisher
    assert time.monotonic() - began < 50
    assert ended.wait(120)
    reader.join()
    slow.close()


def test_a_batch_that_waits_can_be_interrupted(room: str) -> None:
    gate = shmcast.Gate("slow", refuse=True, wait=60)
    with shmcast.Publisher("t", dir=room, capacity=64 << 10, gates=[gate]) as publisher:
        slow = shmcast.Subscriber("t", dir=room, gate="slow")
        begun, stop = threading.Event(), threading.Event()

        # The reader is so slow that the batch would take minutes, and so fast that no message is refused.
        def take() -> None:
            received = 0
            while not stop.wait(0.01):
                received += sum(slow.recv(0) is not None for _ in range(20))
                # More than the lag: the batch waits.
                if received > 400:
                    begun.set()

        def interrupt() -> None:
            if begun.wait(60):
                _thread.interrupt_main()

        threads = [threading.Thread(target=work) for work in (take, interrupt)]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            publisher.publish_batch([b"x" * 100] * 500_000)
        assert time.monotonic() - began < 90
        assert 1 < publisher.next_sequence < 500_000
        stop.set()
        for thread in threads:
            thread.join()
        slow.close()


def test_what_cannot_be(room: str) -> None:
    with pytest.raises(ValueError):
        shmcast.Gate("x", lag=1, lag_percent=1)
    for wrong in ([shmcast.Gate("")], [shmcast.Gate("a"), shmcast.Gate("a")], [shmcast.Gate("a", lag=1)]):
        with pytest.raises(shmcast.ChannelError) as refused:
            shmcast.Publisher("t", dir=room, capacity=1 << 20, gates=wrong)
        assert refused.value.code == "gate"
    with pytest.raises(TypeError):
        shmcast.Publisher("t", dir=room, gates=["risk"])  # type: ignore[list-item]


def test_ctrl_c_ends_a_publish_that_waits(room: str) -> None:
    """An earlier mistake: a signal did nothing until the gate's limit had passed."""
    gates = [shmcast.Gate("slow", refuse=True, wait=10)]
    with shmcast.Publisher("t", dir=room, capacity=1 << 20, gates=gates) as publisher:
        slow = shmcast.Subscriber("t", dir=room, gate="slow")
        while publisher.try_publish(b"x" * 1000) is not None:
            pass
        before = publisher.next_sequence
        for publish in (lambda: publisher.publish(b"y" * 1000), lambda: publisher.publish_batch([b"y" * 1000, b"z"])):
            held = threading.Timer(0.2, _thread.interrupt_main)
            held.start()
            with pytest.raises(KeyboardInterrupt):
                publish()
            held.join()
            assert publisher.next_sequence == before
        for _ in range(400):
            slow.recv(0)
        assert publisher.publish(b"y") == before, "later calls wait again"
        slow.close()


def test_gates_that_are_none_are_named(room: str) -> None:
    for gates in (1, [1]):
        with pytest.raises(TypeError, match="argument 'gates'"):
            shmcast.Publisher("t", dir=room, capacity=1 << 20, gates=gates)  # type: ignore[arg-type]
