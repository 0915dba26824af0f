"""One publisher, a hundred local readers, one cache line a message.

A channel is a named stream of messages with one publisher. It is in shared memory: in files of a directory, or in a daemon's memory.

    with shmcast.Publisher("ticks") as ticks:
        ticks.publish(b"bid 100.25")

    with shmcast.Subscriber("ticks", start="oldest") as ticks:
        for event in ticks:                          # until the publisher closes the channel
            match event:
                case shmcast.Message(payload=p, sequence=n):
                    print(n, p)
                case shmcast.Lapped(missed=m):
                    print("missed", m)

A loss of messages is an event with exact numbers, never an exception. A failure is an exception of a subclass of `Error`, and has a code
that never changes. Only one thread at a time can use a subscriber or publisher, and a forked child must open its own.
"""

from ._errors import (
    ChannelError,
    CorruptError,
    CutOffError,
    DeniedError,
    Error,
    ForkedError,
    FullError,
    InUseError,
    MismatchError,
    MisuseError,
    NoDaemonError,
    NotFoundError,
    NotYetError,
    PublishError,
    ReceiveError,
    SupersededError,
    TooLargeError,
    TooOldError,
)
from ._shmcast import (
    Batch,
    Batches,
    Board,
    BoardEntry,
    BoardSpec,
    End,
    Gap,
    Gate,
    GateStatus,
    Lapped,
    Live,
    Message,
    NewEpoch,
    NewSession,
    Publisher,
    PublisherGone,
    Restarted,
    Select,
    Subscriber,
    __version__,
    remove,
)

Event = Message | Lapped | Gap | Live | NewEpoch | NewSession | PublisherGone | Restarted | End
"""An event that a subscriber receives."""

__all__ = [
    "Batch",
    "Batches",
    "Board",
    "BoardEntry",
    "BoardSpec",
    "ChannelError",
    "CorruptError",
    "CutOffError",
    "DeniedError",
    "End",
    "Error",
    "Event",
    "ForkedError",
    "FullError",
    "Gap",
    "Gate",
    "GateStatus",
    "InUseError",
    "Lapped",
    "Live",
    "Message",
    "MismatchError",
    "MisuseError",
    "NewEpoch",
    "NewSession",
    "NoDaemonError",
    "NotFoundError",
    "NotYetError",
    "PublishError",
    "Publisher",
    "PublisherGone",
    "ReceiveError",
    "Restarted",
    "Select",
    "Subscriber",
    "SupersededError",
    "TooLargeError",
    "TooOldError",
    "__version__",
    "remove",
]
