"""What a server answers: the head at once, the body as it arrives.

A reader that lags holds the server back: its connection is not read while more than `HELD_BYTES` wait here. A body
that ends before its end is an error, never an end.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

HELD_BYTES = 256 * 1024


class Source(Protocol):
    """The connection that an answer comes from."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read on."""

    def close(self) -> None:
        """Cut it: what still comes is of no use to anybody."""


class HttpAnswer:
    """Status, headers and body; the body is read once, by `read` or by iterating."""

    __slots__ = ("_chunk_seconds", "_error", "_has_ended", "_pieces", "_raw", "_size", "_source", "_waiter", "status")

    def __init__(
        self, status: int, headers: list[tuple[bytes, bytes]], source: Source, chunk_seconds: float | None
    ) -> None:
        self.status = status
        self._raw = headers
        self._source = source
        self._chunk_seconds = chunk_seconds
        self._pieces: list[bytes] = []
        self._size = 0
        self._has_ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def headers(self) -> list[tuple[str, str]]:
        """All of them in their order, names in lower case."""
        return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in self._raw]

    def header(self, name: str) -> str | None:
        """The first header of this name, which is given in lower case."""
        wanted = name.encode("latin-1")
        for each, value in self._raw:
            if len(each) == len(wanted) and each.lower() == wanted:
                return value.decode("latin-1")
        return None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._pieces:
            if self._has_ended:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._take()

    async def read(self) -> bytes:
        """The whole body."""
        if self._has_ended:
            return self._take()
        try:
            return b"".join([piece async for piece in self])
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Done with it: the connection is cut unless the body has come to its end."""
        if not self._has_ended and self._error is None:
            self.fail(ConnectionAbortedError("the answer was closed before its end"))
            self._source.close()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if self._chunk_seconds is None else loop.call_later(self._chunk_seconds, self._give_up)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _give_up(self) -> None:
        self.fail(TimeoutError(f"nothing more of the answer came within {self._chunk_seconds:g} s"))
        self._source.close()

    def _take(self) -> bytes:
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._size > HELD_BYTES and not self._has_ended:
            self._source.resume()
        self._size = 0
        return piece

    # -- called by the connection --------------------------------------------------------------------

    def put(self, piece: bytes) -> None:
        """A piece of the body has come."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > HELD_BYTES:
            self._source.pause()
        self._wake()

    def end(self) -> None:
        """The body has come to its end."""
        self._has_ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing more will come, although it should."""
        if not self._has_ended and self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
