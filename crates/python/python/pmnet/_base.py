"""The errors, by kind, and the kinds of items."""

import enum
from typing import ClassVar, Union

BytesLike = Union[bytes, bytearray, memoryview]
"""Types of bytes that are accepted. str is not, because a text has several encodings."""


class Error(Exception):
    """An error of pmnet. The class of an error is its kind. The text of an error says what
    happened, and gives advice."""

    code: ClassVar[int] = 0
    """The number of the kind, which is that of libpmnet (PMNET_E_... of pmnet.h)."""


class ArgumentError(Error, ValueError):
    """An argument is invalid."""

    code = -1


class HandleError(Error, ValueError):
    """The object was closed."""

    code = -2


class ThreadError(Error, RuntimeError):
    """Another thread is using the object at this moment."""

    code = -3


class ForkError(Error, RuntimeError):
    """The object was opened in another process, before a fork."""

    code = -4


class SystemCallError(Error, OSError):
    """The operating system refused a socket, memory or a thread."""

    code = -5


class FullError(Error):
    """Too many calls are in flight: take the results of some first."""

    code = -6


class LengthError(Error, ValueError):
    """A payload or a reply is longer than 16 MiB, or all rows together are too long for one
    watermark."""

    code = -7


class ClosedError(Error):
    """The session is closed, because the device no longer knows it. Open another client."""

    code = -8


class DataLossError(ClosedError):
    """Acknowledged updates are lost. The text says which."""

    code = -9


class CopiesError(ClosedError):
    """Fewer devices hold the updates than copies_min requires."""

    code = -10


class FailedError(Error):
    """The call has no effect, and will never have one."""

    code = -11


class UnknownError(Error):
    """The outcome is unknown: the call takes effect once or not at all."""

    code = -12


class RefusedError(Error):
    """The server refused the request. The text comes from the server."""

    code = -13


class PendingError(Error):
    """A read was requested while other calls of the session were in flight."""

    code = -14


class NoAnswerError(Error):
    """No device answered a read in time. Ask the server with a bypass."""

    code = -15


class RowsError(Error):
    """The stored rows are damaged, or come from different moments."""

    code = -16


class ShardError(Error):
    """The stored rows belong to another shard."""

    code = -17


class OrderError(Error):
    """The batch was confirmed before, is not the present batch, or its rows were not
    requested."""

    code = -18


class ReplyError(Error):
    """A reply is missing, was given twice, or was given for an update."""

    code = -19


class StoppedError(Error):
    """The server has ended. The text has the reason and advice."""

    code = -20


class BugError(Error):
    """The library has a bug. Please report it."""

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
"""The class of an error, by the number of its kind."""


class Kind(enum.IntEnum):
    """The kind of an item."""

    UPDATE = 1
    """An update. Its client knows that it is durable, and gets no reply."""
    BYPASS = 2
    """A bypass that may change the program's data. It gets a reply, which is stored with the rows."""
    READ = 3
    """A bypass that must not change anything. It gets a reply."""
