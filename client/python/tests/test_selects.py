"""Tests of one wait for several channels."""

import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Callable

import pytest
from conftest import PATIENCE, Daemon, Program, wait_until

import shmcast

WAITS = ["yield", "spin", "burst", "spin-then-yield", "backoff", "sleep", "park"]


def publisher(room: str, name: str, **options: bool) -> shmcast.Publisher:
    return shmcast.Publisher(name, dir=room, capacity=64 << 10, **options)  # type: ignore[arg-type]


def subscriber(room: str, name: str) -> shmcast.Subscriber:
    return shmcast.Subscriber(name, dir=room, start="oldest")


def test_they_take_turns_and_each_is_named(room: str) -> None:
    with publisher(room, "a") as a, publisher(room, "b") as b, publisher(room, "c") as c:
        readers = [subscriber(room, name) for name in "abc"]
        select = shmcast.Select(iter(readers))
        assert select.subscribers == readers and repr(select) == '<shmcast.Select of "a", "b", "c">'
        assert select.wait(0) is None and select.wait(0.001) is None
        for number in range(20):
            b.publish(b"%d" % number)
        for number in range(3):
            a.publish(b"%d" % number)
            c.publish(b"%d" % number)
        order = []
        for _ in range(9):
            found = select.wait(PATIENCE)
            assert found is not None
            reader, event = found
            assert isinstance(event, shmcast.Message)
            order.append((readers.index(reader), event.payload))
        assert order == [(index, b"%d" % number) for number in range(3) for index in range(3)]
        # The program can use the subscribers between the calls of the select.
        message = readers[1].recv(0)
        assert isinstance(message, shmcast.Message) and message.payload == b"3"
        readers[1].seek(20)
        found = select.wait()
        assert found is not None and found[0] is readers[1] and found[1].sequence == 20  # type: ignore[union-attr]
        # A loss or an end is an event, and comes with its subscriber.
        a.publish_batch([bytes(1000)] * 200)
        found = select.wait(PATIENCE)
        assert found is not None and found[0] is readers[0] and isinstance(found[1], shmcast.Lapped)
        c.close()
        for found in iter(select.wait, None):
            if isinstance(found[1], shmcast.End):
                break
        assert found[0] is readers[2] and readers[2].is_over and not readers[0].is_over


@pytest.mark.parametrize("wait", WAITS)
def test_an_iteration_ends_when_all_channels_are_over(room: str, wait: str) -> None:
    publishers = [publisher(room, name) for name in "ab"]
    readers = [subscriber(room, name) for name in "ab"]

    def publish() -> None:
        for number in range(100):
            for one in publishers:
                one.publish(b"%d" % number)
            if number % 20 == 0:
                time.sleep(0.002)
        publishers[0].close()
        publishers[1].publish(b"100")
        publishers[1].close()

    publishing = threading.Thread(target=publish)
    publishing.start()
    received: dict[shmcast.Subscriber, list[int]] = {reader: [] for reader in readers}
    ends = []
    for reader, event in shmcast.Select(readers, wait=wait):
        match event:
            case shmcast.Message(payload=payload):
                received[reader].append(int(payload))
            case shmcast.End():
                ends.append(reader)
            case other:
                raise AssertionError(other)
    publishing.join()
    assert received == {readers[0]: list(range(100)), readers[1]: list(range(101))}
    assert sorted(ends, key=readers.index) == readers
    assert list(shmcast.Select(readers)) == [], "they are over already"


def test_a_daemon_wakes_a_select_that_parks(daemon: Daemon, room: str) -> None:
    with shmcast.Publisher("ticks", socket=daemon.socket) as publisher:
        parked = [
            shmcast.Subscriber("ticks", socket=daemon.socket, wait="park", longest_nap=3600, start="oldest")
            for _ in range(3)
        ]
        select = shmcast.Select(parked, wait="park")
        for number in range(50):
            sent = threading.Timer(0.002 * (number % 3), publisher.publish, (b"%d" % number,))
            sent.start()
            found = [select.wait(PATIENCE) for _ in parked]
            assert {one[0] for one in found if one} == set(parked)
            sent.join()
        daemon.stop()
        publisher.publish(b"while it is away")
        assert select.wait(PATIENCE) is not None


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("how", ["select.wait()", "next(select)"])
def test_ctrl_c_ends_a_wait(room: str, wait: str, how: str) -> None:
    program = Program(
        f"""
        import shmcast, sys
        publishers = [shmcast.Publisher(name, dir=sys.argv[1], capacity=65536) for name in "ab"]
        readers = [shmcast.Subscriber(name, dir=sys.argv[1]) for name in "ab"]
        select = shmcast.Select(readers, wait={wait!r})
        print("waits", flush=True)
        try:
            {how}
        except KeyboardInterrupt:
            print("heard", flush=True)
            publishers[1].publish(b"x")
            reader, event = {how}  # nothing was lost, and it goes on
            print(reader is readers[1], event.payload)
        """,
        room,
    )
    program.line()
    time.sleep(0.1)
    program.process.send_signal(signal.SIGINT)
    assert program.line() == "heard"
    assert program.end() == "True b'x'\n"


@pytest.mark.parametrize("wait", WAITS)
def test_other_threads_run_during_a_wait(room: str, wait: str) -> None:
    with publisher(room, "a") as a, publisher(room, "b"):
        select = shmcast.Select([subscriber(room, "a"), subscriber(room, "b")], wait=wait)
        waiter = threading.Thread(target=select.wait, args=(PATIENCE,))
        waiter.start()
        time.sleep(0.05)
        # A wait that kept the interpreter would not let this thread come so far.
        assert waiter.is_alive()
        a.publish(b"the end of the wait")
        waiter.join()


def test_one_thread_at_a_time(room: str) -> None:
    with publisher(room, "a") as a:
        reader = subscriber(room, "a")
        select, other = shmcast.Select([reader]), shmcast.Select([reader])
        seen: list[object] = []
        waiter = threading.Thread(target=lambda: seen.append(select.wait(PATIENCE)))
        waiter.start()
        refused: dict[str, shmcast.MisuseError] = {}
        uses: dict[str, Callable[[], object]] = {
            "select": lambda: select.wait(0),
            "other": lambda: other.wait(0),
            "reader": reader.try_recv,
        }

        def are_refused() -> bool:
            for name, use in uses.items():
                try:
                    use()
                except shmcast.MisuseError as error:
                    refused[name] = error
            return refused.keys() == uses.keys()

        wait_until("all uses to be refused", are_refused)
        assert all("another thread" in str(error) for error in refused.values())
        # A wait that meets another use in the midst of it is refused as well.
        while waiter.is_alive():
            a.publish(b"x")
            waiter.join(0.1)


def test_what_is_no_select(room: str) -> None:
    with publisher(room, "a"), publisher(room, "b"):
        a, b = subscriber(room, "a"), subscriber(room, "b")
        with pytest.raises(ValueError, match="give some"):
            shmcast.Select([])
        with pytest.raises(ValueError, match='"a" is given twice'):
            shmcast.Select([a, b, a])
        with pytest.raises(TypeError, match="is none"):
            shmcast.Select([a, None])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="wait="):
            shmcast.Select([a], wait="forever")
        with pytest.raises(ValueError, match="pause"):
            shmcast.Select([a], wait="spin", pause=1)
        with pytest.raises(ValueError, match="timeout"):
            shmcast.Select([a]).wait(-1)
        select = shmcast.Select([a, b])
        b.close()
        uses: list[Callable[[], object]] = [lambda: select.wait(0), select.wait, lambda: next(select)]
        for use in uses:
            with pytest.raises(shmcast.MisuseError, match="closed"):
                use()
        assert a.try_recv() is None
        with pytest.raises(shmcast.MisuseError, match="closed"):
            shmcast.Select([b])


def test_a_handler_may_close_what_is_waited_for(room: str) -> None:
    with publisher(room, "a"), publisher(room, "b"):
        a, b = subscriber(room, "a"), subscriber(room, "b")
        before = signal.signal(signal.SIGALRM, lambda *_: b.close())
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(shmcast.MisuseError, match="closed"):
                shmcast.Select([a, b]).wait()
        finally:
            signal.signal(signal.SIGALRM, before)


def test_one_that_fails_holds_up_nobody(room: str) -> None:
    with publisher(room, "good") as good:
        publisher(room, "replaced").close()
        readers = [subscriber(room, "replaced"), subscriber(room, "good")]
        select = shmcast.Select(readers)
        found = select.wait(PATIENCE)
        assert found == (readers[0], shmcast.End())
        with publisher(room, "replaced", anew=True):
            good.publish_batch([b"x"] * 10)
            received, failures = 0, 0
            while received < 10 or failures == 0:
                try:
                    found = select.wait(PATIENCE)
                    assert found is not None and found[0] is readers[1]
                    received += 1
                except shmcast.SupersededError as error:
                    assert '"replaced"' in str(error)
                    failures += 1


def test_a_forked_child_gets_an_error(room: str) -> None:
    with publisher(room, "a") as a:
        select = shmcast.Select([subscriber(room, "a")])
        child = os.fork()
        if child == 0:
            try:
                select.wait(0)
            except shmcast.ForkedError:
                own = shmcast.Select([subscriber(room, "a")])
                os._exit(0 if own.wait(0) is None else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        a.publish(b"after")
        found = select.wait(PATIENCE)
        assert found is not None and isinstance(found[1], shmcast.Message) and found[1].payload == b"after"


def test_a_process_without_descriptors_is_told(daemon: Daemon) -> None:
    with shmcast.Subscriber("ticks", socket=daemon.socket, wait="park") as parked:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(shmcast.Error) as refused:
                shmcast.Select([parked])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (refused.value.code, refused.value.os_errno) == ("os", errno.EMFILE)
