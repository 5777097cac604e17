"""Clients and servers of pmnet, which makes a write durable in the network before it reaches the server.

Client sends updates, which the devices acknowledge, and requests, which the server answers. AsyncClient is the
client for asyncio. Server gives a program the updates and requests of all clients: in batches, in order, exactly
once.

Only one thread at a time may use an object; a second thread gets ThreadError. An object that was opened before a
fork belongs to the parent process: the child gets ForkError, and close() has no effect in the child.
"""

from ._async import AsyncClient
from ._base import (
    ArgumentError,
    BugError,
    ClosedError,
    CopiesError,
    DataLossError,
    Error,
    FailedError,
    ForkError,
    FullError,
    HandleError,
    Kind,
    LengthError,
    NoAnswerError,
    OrderError,
    PendingError,
    RefusedError,
    ReplyError,
    RowsError,
    ShardError,
    StoppedError,
    SystemCallError,
    ThreadError,
    UnknownError,
)
from ._pmnet import Batch, Client, Event, Item, Reading, Server, __version__, log_to

__all__ = [
    "ArgumentError",
    "AsyncClient",
    "Batch",
    "BugError",
    "Client",
    "ClosedError",
    "CopiesError",
    "DataLossError",
    "Error",
    "Event",
    "FailedError",
    "ForkError",
    "FullError",
    "HandleError",
    "Item",
    "Kind",
    "LengthError",
    "NoAnswerError",
    "OrderError",
    "PendingError",
    "Reading",
    "RefusedError",
    "ReplyError",
    "RowsError",
    "Server",
    "ShardError",
    "StoppedError",
    "SystemCallError",
    "ThreadError",
    "UnknownError",
    "__version__",
    "log_to",
]
