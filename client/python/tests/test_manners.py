"""Tests that the module lets other threads run, handles signals, refuses calls in a forked child, and needs no threads."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from conftest import Daemon, Program

import shmcast

WAITS = ["yield", "spin", "burst", "spin-then-yield", "backoff", "sleep"]


@pytest.mark.parametrize("wait", WAITS)
def test_other_threads_run_during_a_wait(room: str, wait: str, record_property: Callable[[str, object], None]) -> None:
    def count(until: float) -> int:
        turns = 0
        while time.monotonic() < until:
            turns += 1
        return turns

    with shmcast.Publisher("t", dir=room) as publisher, shmcast.Subscriber("t", dir=room, wait=wait) as subscriber:
        alone = count(time.monotonic() + 0.2)
        # If a wait kept the interpreter, the other threads would not run for its 60 s.
        waiter = threading.Thread(target=subscriber.recv, args=(60,))
        waiter.start()
        time.sleep(0.05)
        beside = count(time.monotonic() + 0.2)
        assert waiter.is_alive(), "it waited all the while"
        publisher.publish(b"the end of the wait")
        waiter.join()
    record_property("pace", beside / alone)
    assert beside > 0


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("how", ["recv()", "recv_batch()", "__next__()"])
def test_ctrl_c_ends_a_wait(room: str, wait: str, how: str) -> None:
    program = Program(
        f"""
        import shmcast, sys, time
        publisher = shmcast.Publisher("t", dir=sys.argv[1], capacity=65536)
        subscriber = shmcast.Subscriber("t", dir=sys.argv[1], wait={wait!r})
        print("waits", flush=True)
        try:
            subscriber.{how}
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
            publisher.publish(b"x")
            print(subscriber.recv().payload)  # nothing was lost, and it goes on
        """,
        room,
    )
    program.line()
    time.sleep(0.1)
    sent = time.monotonic()
    program.process.send_signal(signal.SIGINT)
    ended = float(program.line())
    print(f"{how} by {wait}: ended after {(ended - sent) * 1e3:.0f} ms")
    assert program.end() == "b'x'\n"


def test_a_handler_may_close_what_is_waited_for(room: str) -> None:
    with shmcast.Publisher("t", dir=room), shmcast.Subscriber("t", dir=room) as subscriber:
        before = signal.signal(signal.SIGALRM, lambda *_: subscriber.close())
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(shmcast.MisuseError, match="closed"):
                subscriber.recv()
        finally:
            signal.signal(signal.SIGALRM, before)


def test_one_thread_at_a_time(room: str) -> None:
    with shmcast.Publisher("t", dir=room) as publisher, shmcast.Subscriber("t", dir=room) as subscriber:
        seen: list[object] = []
        waiter = threading.Thread(target=lambda: seen.append(subscriber.recv()))
        waiter.start()
        errors: list[shmcast.MisuseError] = []
        deadline = time.monotonic() + 60
        while not errors and time.monotonic() < deadline:
            try:
                subscriber.try_recv()
            except shmcast.MisuseError as error:
                errors.append(error)
        assert "another thread" in str(errors[0]) and errors[0].code == "misuse"
        while waiter.is_alive():
            publisher.publish(b"x")
            waiter.join(0.1)
        assert isinstance(seen[0], shmcast.Message) or isinstance(seen[0], type(None))


def test_a_forked_child_gets_an_error(room: str) -> None:
    program = Program(
        """
        import os, sys, warnings, shmcast
        warnings.simplefilter("ignore")
        room = sys.argv[1]
        publisher = shmcast.Publisher("t", dir=room, capacity=65536)
        subscriber = shmcast.Subscriber("t", dir=room)
        child = os.fork()
        if child == 0:
            for use in (subscriber.recv, subscriber.try_recv, subscriber.recv_batch, lambda: publisher.publish(b"")):
                try:
                    use()
                    os._exit(1)
                except shmcast.ForkedError as error:
                    assert error.code == "forked", error.code
            subscriber.close()
            publisher.close()
            with shmcast.Subscriber("t", dir=room, start=1) as own:
                assert own.recv().payload == b"after"
            del subscriber, publisher
            os._exit(0)
        publisher.publish(b"after")
        assert os.waitpid(child, 0)[1] == 0
        assert subscriber.recv().payload == b"after"
        publisher.publish(b"more")
        assert subscriber.recv(1).payload == b"more"
        """,
        room,
    )
    program.end()


def test_a_forked_child_opens_a_daemons_channel_of_its_own(room: str, daemon: Daemon) -> None:
    program = Program(
        """
        import os, sys, warnings, shmcast
        warnings.simplefilter("ignore")
        socket = sys.argv[1]
        publisher = shmcast.Publisher("ticks", socket=socket)
        subscriber = shmcast.Subscriber("ticks", socket=socket, wait="park")
        child = os.fork()
        if child == 0:
            try:
                subscriber.recv()
                os._exit(1)
            except shmcast.ForkedError:
                pass
            with shmcast.Subscriber("ticks", socket=socket, wait="park", start=1) as own:
                assert own.recv().payload == b"after" and own.is_registered
            os._exit(0)
        publisher.publish(b"after")
        assert os.waitpid(child, 0)[1] == 0
        assert subscriber.recv().payload == b"after" and publisher.is_registered
        """,
        daemon.socket,
    )
    program.end()


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("hosted", [False, True])
def test_asyncio_without_threads(room: str, daemon: Daemon, hosted: bool) -> None:
    place = {"socket": daemon.socket} if hosted else {"dir": room}

    async def publish(publisher: shmcast.Publisher) -> None:
        for number in range(300):
            publisher.publish(str(number).encode())
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        publisher.close()

    async def receive(subscriber: shmcast.Subscriber, before: int) -> list[int]:
        numbers = []
        async with subscriber:
            async for event in subscriber:
                assert isinstance(event, shmcast.Message)
                numbers.append(int(event.payload))
                assert threads() <= before
        return numbers

    async def main() -> None:
        publisher = shmcast.Publisher("ticks", **place)  # type: ignore[arg-type]
        wait = "park" if hosted else "yield"
        readers = [shmcast.Subscriber("ticks", wait=wait, **place) for _ in range(5)]  # type: ignore[arg-type]
        assert all((reader.descriptor is not None) == hosted for reader in readers)
        before = threads()
        cancelled = asyncio.create_task(readers[0].recv_async())
        await asyncio.sleep(0.05)
        cancelled.cancel()
        received = asyncio.gather(*(receive(reader, before) for reader in readers))
        await publish(publisher)
        assert await asyncio.wait_for(received, 60) == [list(range(300))] * 5
        assert threads() <= before

    asyncio.run(main())


def test_a_close_during_a_wait_disturbs_no_other_socket(daemon: Daemon) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        subscriber = shmcast.Subscriber("ticks", socket=daemon.socket, wait="park")
        bell = subscriber.descriptor
        task = asyncio.create_task(subscriber.recv_async())
        await asyncio.sleep(0.05)
        subscriber.close()
        # One of these sockets gets the number of the bell.
        pairs = [socket.socketpair() for _ in range(20)]
        assert any(end.fileno() == bell for pair in pairs for end in pair)
        heard = {end: asyncio.Event() for pair in pairs for end in pair}
        for end, event in heard.items():
            loop.add_reader(end, event.set)
        with pytest.raises(shmcast.MisuseError):
            await asyncio.wait_for(task, 60)
        for one, other in pairs:
            one.send(b"x")
            other.send(b"x")
        for end, event in heard.items():
            await asyncio.wait_for(event.wait(), 60)
            loop.remove_reader(end)
            end.close()

    asyncio.run(main())


def test_other_tasks_run_beside_a_stream_that_always_has_more(room: str) -> None:
    async def main() -> None:
        with shmcast.Publisher("t", dir=room, capacity=8 << 20) as publisher:
            publisher.publish_batch([b"x"] * 50_000)
        turns, is_over = 0, False

        async def beside() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(beside())
        received = 0
        async with shmcast.Subscriber("t", dir=room, start=1) as subscriber:
            async for _ in subscriber:
                received += 1
        is_over = True
        await task
        assert received == 50_000 and turns > 100

    asyncio.run(main())


def test_an_event_loop_of_ones_own(daemon: Daemon) -> None:
    with shmcast.Publisher("ticks", socket=daemon.socket) as publisher:
        with shmcast.Subscriber("ticks", socket=daemon.socket, wait="park", longest_nap=30) as subscriber:
            bell = subscriber.descriptor
            assert bell is not None
            limit = subscriber.arm()
            assert limit == 30.0
            assert select.select([bell], [], [], 0.05)[0] == [], "nothing is there"
            publisher.publish(b"x")
            assert select.select([bell], [], [], 30)[0] == [bell]
            subscriber.disarm()
            assert select.select([bell], [], [], 0)[0] == []
            message = subscriber.try_recv()
            assert isinstance(message, shmcast.Message) and message.payload == b"x"
            publisher.publish(b"y")
            armed = subscriber.arm()
            assert isinstance(armed, shmcast.Message) and armed.payload == b"y"


def test_importing_needs_neither_numpy_nor_asyncio() -> None:
    code = "import sys, shmcast; print(sorted({'numpy', 'asyncio', 'threading', 'typing'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert output.stdout == "[]\n"
