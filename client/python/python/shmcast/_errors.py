"""The exceptions. Each has a `code` whose meaning never changes. The C library has the same codes."""


class Error(Exception):
    """A failure. Its text says what went wrong, where, and what to do next."""

    code: str
    """The reason, for programs, such as `"not found"`."""
    os_errno: int | None
    """The system's error number, if the system refused."""

    def __init__(self, message: str, code: str = "other", os_errno: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.os_errno = os_errno

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.code, self.os_errno)


class MisuseError(Error):
    """The publisher or subscriber is closed, or another thread uses it right now."""


class ForkedError(MisuseError):
    """The publisher or subscriber belongs to the parent process. A forked child must open its own."""


class ChannelError(Error):
    """A channel could not be opened."""


class NotFoundError(ChannelError):
    """The channel does not exist."""


class InUseError(ChannelError):
    """A publisher or readers use the channel."""


class MismatchError(ChannelError):
    """The channel exists with another size or schema."""


class DeniedError(ChannelError):
    """The daemon's configuration does not allow this user to use the channel."""


class NoDaemonError(ChannelError):
    """No daemon answers at the socket."""


class PublishError(Error):
    """A message was not published."""


class TooLargeError(PublishError):
    """The payload exceeds the channel's largest message."""


class FullError(PublishError):
    """The reader of a gate is too far behind. Publish the message again later."""

    gate: str = ""
    """The gate that refused the message."""
    behind: int = 0
    """How far the gate's reader is behind, in bytes of the ring."""

    def __reduce__(self) -> tuple[object, ...]:
        return *super().__reduce__(), {"gate": self.gate, "behind": self.behind}


class CutOffError(PublishError):
    """The daemon gave the channel to another publisher."""


class ReceiveError(Error):
    """Nothing more can be received, or a seek to this sequence is not possible."""


class CorruptError(ReceiveError):
    """Another program wrote to the channel's memory."""


class SupersededError(ReceiveError):
    """The channel has moved to new memory. Subscribe again."""


class TooOldError(ReceiveError):
    """The message has been overwritten."""


class NotYetError(ReceiveError):
    """The message has not been published yet."""


_CLASSES: dict[str, type[Error]] = {
    "misuse": MisuseError,
    "forked": ForkedError,
    "not found": NotFoundError,
    "in use": InUseError,
    "mismatch": MismatchError,
    "denied": DeniedError,
    "no daemon": NoDaemonError,
    "too large": TooLargeError,
    "out of sequences": PublishError,
    "cut off": CutOffError,
    "full": FullError,
    "too small": ReceiveError,
    "corrupt": CorruptError,
    "unmapped": ReceiveError,
    "superseded": SupersededError,
    "stalled": ReceiveError,
    "board": ReceiveError,
    "too old": TooOldError,
    "not yet": NotYetError,
    "other": Error,
}


def make(code: str, message: str, os_errno: int | None) -> Error:
    """Makes the exception for a code."""
    return _CLASSES.get(code, ChannelError)(message, code, os_errno)
