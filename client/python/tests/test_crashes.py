"""Tests in which publishers and daemons are killed."""

import os

import pytest
from conftest import Daemon, Program, wait_until

import shmcast

# Publishes numbers without end, with each number also as the tag. Prints a line when it has begun.
PUBLISHER = """
import shmcast, sys
kind, place = sys.argv[1:3]
publisher = shmcast.Publisher("ticks", **{kind: place})
print(publisher.epoch, flush=True)
while True:
    n = publisher.next_sequence
    publisher.publish(n.to_bytes(8, "little") * (n % 50), tag=n & 0xffff)
"""


def is_right(message: shmcast.Message) -> bool:
    n = message.sequence
    return message.payload == n.to_bytes(8, "little") * (n % 50) and message.tag == n & 0xFFFF


@pytest.mark.parametrize("in_batches", [False, True])
def test_publishers_that_are_killed(room: str, in_batches: bool) -> None:
    epochs: list[int] = []
    received = missed = gone = 0
    subscriber = None
    for _ in range(4):
        publisher = Program(PUBLISHER, "dir", room)
        epoch = int(publisher.line())
        if subscriber is None:
            subscriber = shmcast.Subscriber("ticks", dir=room, start=1, watch_publisher=True)
        before = received
        is_gone = False
        while not is_gone:
            if received > before + 2000 and publisher.process.poll() is None:
                publisher.kill()
            if in_batches:
                batch = subscriber.recv_batch(500, timeout=60)
                events: list[shmcast.Event] = [*batch, *batch.events]
            else:
                event = subscriber.recv(60)
                events = [] if event is None else [event]
            assert events
            for event in events:
                match event:
                    case shmcast.Message():
                        received += 1
                        assert event.sequence == received + missed and is_right(event)
                    case shmcast.Lapped(missed=m):
                        missed += m
                    case shmcast.NewEpoch(epoch=e):
                        epochs.append(e)
                    case shmcast.PublisherGone(epoch=e):
                        assert e == epoch
                        gone, is_gone = gone + 1, True
    assert gone == 4 and epochs == sorted(set(epochs)) and epochs[-1] == epoch
    with shmcast.Publisher("ticks", dir=room) as last:
        assert last.next_sequence == received + missed + 1 and last.epoch == epoch + 1


def test_a_daemon_that_is_killed(daemon: Daemon) -> None:
    with shmcast.Publisher("ticks", socket=daemon.socket) as publisher:
        subscriber = shmcast.Subscriber("ticks", socket=daemon.socket, wait="park")
        for number in range(3):
            publisher.publish(b"with")
            message = subscriber.recv(60)
            assert isinstance(message, shmcast.Message) and message.payload == b"with"
            daemon.stop()
            publisher.publish(b"without")
            message = subscriber.recv(60)
            assert isinstance(message, shmcast.Message) and message.payload == b"without"
            assert message.sequence == 2 * number + 2
            daemon.start()
            wait_until("both are known again", lambda: subscriber.is_registered and publisher.is_registered)
    assert subscriber.recv(60) == shmcast.End()


def test_what_a_daemon_refuses(daemon: Daemon) -> None:
    if os.getuid() != 0:  # root is never refused
        with pytest.raises(shmcast.DeniedError):
            shmcast.Publisher("shut", socket=daemon.socket)
    with pytest.raises(shmcast.NotFoundError):
        shmcast.Subscriber("nobody", socket=daemon.socket)
    with shmcast.Publisher("ticks", socket=daemon.socket):
        with pytest.raises(shmcast.InUseError):
            shmcast.Publisher("ticks", socket=daemon.socket)
