"""Errors by kind, and kinds of items."""

import enum
from typing import ClassVar, Union

BytesLike = Union[bytes, bytearray, memoryview]
"""Bytes of any kind. No str: it has no one encoding."""


class Error(Exception):
    """An error of pmnet: what happened, and what to do. Its class is its kind."""

    code: ClassVar[int] = 0
    """The number of the kind, as libpmnet has it (PMNET_E_... of pmnet.h)."""


class ArgumentError(Error, ValueError):
    """An argument makes no sense."""

    code = -1


class HandleError(Error, ValueError):
    """The object is closed."""

    code = -2


class ThreadError(Error, RuntimeError):
    """Another thread is using the object at this moment."""

    code = -3


class ForkError(Error, RuntimeError):
    """The object was opened before a fork, in another process."""

    code = -4


class SystemCallError(Error, OSError):
    """The system refused: a socket, memory, a thread."""

    code = -5


class FullError(Error):
    """Too many calls are under way: take the results of some first."""

    code = -6


class LengthError(Error, ValueError):
    """A payload or a reply is longer than 16 MiB, or all rows are longer than fits one watermark."""

    code = -7


class ClosedError(Error):
    """The session is closed: the device does not know it any more. Open another client."""

    code = -8


class DataLossError(ClosedError):
    """Updates that were acknowledged are lost. The text says which."""

    code = -9


class CopiesError(ClosedError):
    """Fewer devices hold the updates than were asked for."""

    code = -10


class FailedError(Error):
    """The call has no effect, and never will."""

    code = -11


class UnknownError(Error):
    """The outcome is unknown: the call takes effect at most once, or not at all."""

    code = -12


class RefusedError(Error):
    """The server refused the request. The text is the server's."""

    code = -13


class PendingError(Error):
    """A read was asked for while calls of the session were under way."""

    code = -14


class NoAnswerError(Error):
    """No device has answered a read in time: ask by a bypass."""

    code = -15


class RowsError(Error):
    """The stored rows are damaged, or do not belong together."""

    code = -16


class ShardError(Error):
    """The stored rows are those of another shard."""

    code = -17


class OrderError(Error):
    """A batch was confirmed twice, is not the present one, or its rows were not asked for."""

    code = -18


class ReplyError(Error):
    """A reply is missing, was given twice, or is for an update, which takes none."""

    code = -19


class StoppedError(Error):
    """The server has ended. The text says why, and what to do."""

    code = -20


class BugError(Error):
    """A fault of the library. Please report it."""

    code = -21


ERRORS: "dict[int, type[Error]]" = {
    one.code: one
    for one in (
        ArgumentError,
        HandleError,
        ThreadError,
        ForkError,
        SystemCallError,
        FullError,
        LengthError,
        ClosedError,
        DataLossError,
        CopiesError,
        FailedError,
        UnknownError,
        RefusedError,
        PendingError,
        NoAnswerError,
        RowsError,
        ShardError,
        OrderError,
        ReplyError,
        StoppedError,
        BugError,
    )
}
"""Each class under the number of its kind."""


class Kind(enum.IntEnum):
    """The kind of an item."""

    UPDATE = 1
    """Its client knows that it is durable, and waits for no reply."""
    BYPASS = 2
    """It may change the program's data. It wants a reply, which is stored with the rows."""
    READ = 3
    """It must not change anything. It wants a reply."""
