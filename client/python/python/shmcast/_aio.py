"""Receives in asyncio's event loop, which waits for the descriptor of the subscriber's bell. No thread waits.

The first call that needs this module imports it, because asyncio makes `import shmcast` several times slower.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ._errors import MisuseError
from ._shmcast import End

if TYPE_CHECKING:
    from . import Event, Subscriber

# After this many events, a stream that always has more lets other tasks run.
_TURN = 64


async def _rest(subscriber: "Subscriber", limit: float) -> None:
    """Sleeps until the bell rings, or for `limit` seconds."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    bell = subscriber.descriptor
    if bell is not None:
        # The subscriber can be closed meanwhile, and its descriptor's number can then belong to another file.
        bell = os.dup(bell)
    timer = loop.call_later(limit, wake)
    try:
        if bell is not None:
            loop.add_reader(bell, wake)
        await woken
    finally:
        timer.cancel()
        if bell is not None:
            loop.remove_reader(bell)
            os.close(bell)
            # A subscriber that was closed meanwhile has no sleep to end.
            with contextlib.suppress(MisuseError):
                subscriber.disarm()


async def _receive(subscriber: "Subscriber", is_behind_end: bool) -> "Event | None":
    """Returns the next event; `None` if the last event was an end and the channel is over."""
    while True:
        event = subscriber.try_recv()
        if event is not None:
            return event
        if is_behind_end and subscriber.is_over:
            return None
        armed = subscriber.arm()
        if not isinstance(armed, float):
            return armed
        await _rest(subscriber, armed)


async def recv(subscriber: "Subscriber") -> "Event":
    event = await _receive(subscriber, False)
    assert event is not None
    return event


async def events(subscriber: "Subscriber") -> "AsyncIterator[Event]":
    turn, is_behind_end = 0, False
    while True:
        event = subscriber.try_recv()
        if event is None:
            event, turn = await _receive(subscriber, is_behind_end), 0
        is_behind_end = isinstance(event, End)
        if event is None or is_behind_end and subscriber.is_over:
            return
        yield event
        turn += 1
        if turn == _TURN:
            turn = 0
            await asyncio.sleep(0)


async def enter(subscriber: "Subscriber") -> "Subscriber":
    return subscriber


async def leave(subscriber: "Subscriber") -> None:
    subscriber.close()
