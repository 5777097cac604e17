import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Optional, Union, final

from typing_extensions import Self

from ._base import BytesLike, Error, Kind

__all__ = ["__version__", "Client", "Event", "Reading", "Server", "Batch", "Item", "log_to"]

__version__: str

def log_to(path: Optional[Union[str, os.PathLike[str]]], /) -> None:
    """Sets the file to which warnings are appended. None: warnings are dropped. By default they go to stderr."""

@final
class Client:
    """A client, which is one session of a shard. Only one thread at a time may use a client."""

    def __new__(
        cls,
        devices: Union[str, Sequence[str]],
        *,
        shard: int = 0,
        copies_min: int = 1,
        timeout: float = 10.0,
        calls_max: int = 4096,
        key_file: Union[str, os.PathLike[str], None] = None,
    ) -> Self: ...
    def update(self, payload: BytesLike, *, key: Optional[BytesLike] = None) -> int: ...
    def bypass(self, payload: BytesLike, *, key: Optional[BytesLike] = None, read_only: bool = False) -> bytes: ...
    def read(self, key: Optional[BytesLike] = None) -> Reading: ...
    def update_start(self, token: int, payload: BytesLike, *, key: Optional[BytesLike] = None) -> None: ...
    def bypass_start(
        self, token: int, payload: BytesLike, *, key: Optional[BytesLike] = None, read_only: bool = False
    ) -> None: ...
    def next(self, timeout: Optional[float] = None) -> Optional[Event]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType], /
    ) -> None: ...
    def _drain(self) -> list[Event]: ...
    def _read_start(self, key: Optional[BytesLike] = None) -> None: ...
    def _read_ended(self) -> Optional[Reading]: ...
    def _end_start(self) -> None: ...
    def _is_foreign(self) -> bool: ...
    def _forget(self) -> None: ...

@final
class Event:
    """A call that was started and has ended."""

    @property
    def token(self) -> int:
        """The token by which the caller knows the call."""

    @property
    def result(self) -> Union[int, bytes, Error]:
        """For an update: the number of devices that hold it. For a bypass: the reply. For a failed call: the
        exception."""

@final
class Reading:
    """The answer to a read."""

    @property
    def payload(self) -> Optional[bytes]:
        """The newest update of the key; None: the device does not have it."""

    @property
    def epoch(self) -> int:
        """The epoch of the device's chain."""

    @property
    def order(self) -> int:
        """Order of the newest update. If there is none: the order up to which a server must have applied the log to
        know the key."""

@final
class Server:
    """A server of one shard whose store is the calling program. Iterating over the server gives batches."""

    def __new__(
        cls,
        listen: str,
        *,
        shard: int = 0,
        rows: Optional[Iterable[tuple[BytesLike, BytesLike]]] = None,
        watermark: Optional[BytesLike] = None,
        batch_entries_max: int = 1024,
        batch_bytes_max: int = 4194304,
        key_file: Union[str, os.PathLike[str], None] = None,
    ) -> Self: ...
    @property
    def port(self) -> int:
        """The UDP port of the server. If the server was opened with port 0, the system has chosen the port."""

    def next(self, timeout: Optional[float] = None) -> Optional[Batch]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType], /
    ) -> None: ...

@final
class Batch:
    """The program's next work, which it must store in one transaction: updates or bypasses, in the order in which
    they take effect."""

    @property
    def number(self) -> int:
        """Number of the batch, counted from 1 for each server."""

    @property
    def items(self) -> tuple[Item, ...]:
        """The items of the batch. If there are none, the program must only store rows."""

    def reply(self, item: int, reply: BytesLike) -> None: ...
    def rows(self) -> list[tuple[bytes, Optional[bytes]]]: ...
    def watermark(self) -> bytes: ...
    def done(self) -> None: ...
    def undone(self) -> None: ...

@final
class Item:
    """One update or bypass."""

    @property
    def kind(self) -> Kind:
        """Kind.UPDATE, Kind.BYPASS or Kind.READ."""

    @property
    def session(self) -> int:
        """The client's session."""

    @property
    def number(self) -> int:
        """For an update: its number in the session. For a bypass: the request's id. Both numbers rise within a
        session."""

    @property
    def order(self) -> int:
        """For an update: its order in the log. For a bypass, and for an update for which the log was full: the order
        up to which the log was applied before it."""

    @property
    def payload(self) -> bytes:
        """The client's bytes."""
