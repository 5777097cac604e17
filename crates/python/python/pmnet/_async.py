"""The client for asyncio. The event loop polls the session's descriptor, so the client needs no thread."""

import asyncio
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Optional, Union

from ._base import (
    BytesLike,
    ClosedError,
    CopiesError,
    DataLossError,
    Error,
    HandleError,
    ThreadError,
    UnknownError,
)
from ._pmnet import Client, Reading


class AsyncClient:
    """A client: one session of a shard, for one event loop. Many calls may be in flight at the same time.

    If a task is cancelled, its call stays in flight without a caller. The call takes effect once or not at all.
    """

    def __init__(
        self,
        devices: Union[str, "list[str]", "tuple[str, ...]"],
        *,
        shard: int = 0,
        copies_min: int = 1,
        timeout: float = 10.0,
        calls_max: int = 4096,
        key_file: "Union[str, os.PathLike[str], None]" = None,
    ) -> None:
        self._client = Client(
            devices,
            shard=shard,
            copies_min=copies_min,
            timeout=timeout,
            calls_max=calls_max,
            key_file=key_file,
        )
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._fd = -1
        self._over: Optional[Exception] = None
        self._closed = False
        self._last = 0
        self._calls: "dict[int, asyncio.Future[Any]]" = {}
        self._reading: "Optional[asyncio.Future[Reading]]" = None
        self._ending: "Optional[asyncio.Future[None]]" = None

    async def update(
        self, payload: BytesLike, *, key: Optional[BytesLike] = None
    ) -> int:
        """Sends an update, and waits until it is durable. Returns the number of devices that hold the update.

        If the result is 0, the log was full, and the server has applied the update.
        """
        copies = await self._call(lambda token: self._client.update_start(token, payload, key=key))
        assert isinstance(copies, int)
        return copies

    async def bypass(
        self,
        payload: BytesLike,
        *,
        key: Optional[BytesLike] = None,
        read_only: bool = False,
    ) -> bytes:
        """Sends a request to the server, and returns its reply.

        The server first applies every update that was acknowledged before. The server executes the request once; if the
        request only reads, the server may execute the request more than once.
        """
        reply = await self._call(
            lambda token: self._client.bypass_start(token, payload, key=key, read_only=read_only)
        )
        assert isinstance(reply, bytes)
        return reply

    async def read(self, key: Optional[BytesLike] = None) -> Reading:
        """Asks the head device, as Client.read does. Allowed only while no other call and no other read is in
        flight."""
        loop = self._begin()
        self._client._read_start(key)
        self._reading = loop.create_future()
        return await self._reading

    async def close(self) -> None:
        """Ends the session after all started calls, and closes the client. A second call has no effect.

        In a child of the process that opened the client, the call has no effect either.

        Raises DataLossError or CopiesError if the session has ended with such an error. The client is closed even then.
        """
        if self._closed:
            return
        if self._client._is_foreign():
            # The session belongs to the parent process. Both event loops may share one polling descriptor, so the child
            # removes nothing from its loop.
            self._closed = True
            return
        loop = self._own_loop()
        try:
            if self._over is None:
                if self._ending is None:
                    self._client._end_start()
                    self._ending = loop.create_future()
                await asyncio.shield(self._ending)
            elif _is_told(self._over):
                raise _again(self._over)
        finally:
            self._closed = True
            self._leave()
            self._client._forget()
            # Calls are left only if close() was cancelled or failed.
            text = "outcome unknown: the client was closed; it may or may not take effect, at most once"
            self._settle_left(UnknownError(text), None)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: Optional["type[BaseException]"],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            await self.close()
        except Error:
            # If the body failed, the caller gets the error of the body, and not this one.
            if kind is None:
                raise

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the running loop. The first call binds the client to this loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._fd = self._client.fileno()
            loop.add_reader(self._fd, self._turn)
            self._loop = loop
        elif self._loop is not loop:
            raise ThreadError("this client belongs to another event loop")
        return loop

    def _begin(self) -> asyncio.AbstractEventLoop:
        """Returns the loop for a new call."""
        if self._closed:
            raise HandleError("this client is closed")
        loop = self._own_loop()
        if self._over is not None:
            raise _again(self._over)
        return loop

    def _leave(self) -> None:
        if self._loop is not None and self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._fd = -1

    async def _call(self, start: "Callable[[int], None]") -> Union[int, bytes]:
        loop = self._begin()
        self._last += 1
        token = self._last
        start(token)
        future: "asyncio.Future[Union[int, bytes]]" = loop.create_future()
        self._calls[token] = future
        return await future

    def _turn(self) -> None:
        """Takes the calls that have ended. The loop calls this function whenever the descriptor is readable."""
        try:
            while True:
                events = self._client._drain()
                for event in events:
                    _settle(self._calls.pop(event.token), event.result)
                if not events:
                    break
            if self._reading is not None:
                self._take_reading(self._reading)
        except Exception as error:
            self._end(error)

    def _take_reading(self, future: "asyncio.Future[Reading]") -> None:
        result: "Union[Reading, Error, None]"
        try:
            result = self._client._read_ended()
        except Error as error:
            result = error
        if result is not None:
            self._reading = None
            _settle(future, result)

    def _end(self, error: Exception) -> None:
        """Notes that the session is over: all calls in flight fail, and no further call is possible."""
        self._over = error
        self._leave()
        self._settle_left(error, error if _is_told(error) else None)

    def _settle_left(self, error: Exception, closed: Optional[Exception]) -> None:
        """Ends all calls in flight with the error `error`, and a waiting close() with `closed`."""
        left: "list[asyncio.Future[Any]]" = list(self._calls.values())
        self._calls.clear()
        if self._reading is not None:
            left.append(self._reading)
            self._reading = None
        for future in left:
            _settle(future, _again(error))
        if self._ending is not None:
            _settle(self._ending, closed)


def _is_told(error: Exception) -> bool:
    """Returns whether close() must raise this error: the session has ended with a loss, or has not ended."""
    return isinstance(error, (DataLossError, CopiesError)) or not isinstance(error, ClosedError)


def _again(error: Exception) -> Exception:
    """Returns a copy of the error. If the same exception object were raised several times, its traceback would grow
    each time."""
    return type(error)(*error.args)


def _settle(future: "asyncio.Future[Any]", result: object) -> None:
    if future.done():
        # The task of the call was cancelled.
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
