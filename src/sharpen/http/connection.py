"""One HTTP/1.1 connection, which belongs to one event loop and carries one request at a time, and its responses.

The head of a response is there at once, the body is read as it arrives. A slow reader holds the server back: the
connection is not read while more than `HELD_BYTES` wait here. A body that is cut short is an error, never an end.
"""

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Callable
from typing import cast

import httptools

HELD_BYTES = 256 * 1024
MAX_HEAD_BYTES = 1024 * 1024
SURE_SECONDS = 1.0  # a connection that was idle for longer is checked before it is used
LARGE_BODY = 64 * 1024  # written separately: joined to its head it would be copied


class HttpResponse:
    """Status, headers and body of a response; the body is read once, by `read` or by iterating."""

    __slots__ = (
        "_chunk_seconds",
        "_connection",
        "_error",
        "_has_ended",
        "_pieces",
        "_raw",
        "_size",
        "_waiter",
        "status",
    )

    def __init__(
        self, status: int, headers: list[tuple[bytes, bytes]], connection: "Connection", chunk_seconds: float | None
    ) -> None:
        self.status = status
        self._raw = headers
        self._connection = connection
        self._chunk_seconds = chunk_seconds
        self._pieces: list[bytes] = []
        self._size = 0
        self._has_ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def headers(self) -> list[tuple[str, str]]:
        """All headers in their order, with names in lower case."""
        return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in self._raw]

    def header(self, name: str) -> str | None:
        """Return the first header of this name, which is given in lower case."""
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
        """Return the whole body."""
        if self._has_ended:
            return self._take()
        try:
            return b"".join([piece async for piece in self])
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the response; unless the body is complete, its connection is closed too."""
        if not self._has_ended and self._error is None:
            self.fail(ConnectionAbortedError("the response was closed before its end"))
            self._connection.close()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if self._chunk_seconds is None else loop.call_later(self._chunk_seconds, self._time_out)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _time_out(self) -> None:
        self.fail(TimeoutError(f"no more of the response arrived within {self._chunk_seconds:g} s"))
        self._connection.close()

    def _take(self) -> bytes:
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._size > HELD_BYTES and not self._has_ended:
            self._connection.resume()
        self._size = 0
        return piece

    # -- called by the connection --------------------------------------------------------------------

    def put(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > HELD_BYTES:
            self._connection.pause()
        self._wake()

    def end(self) -> None:
        """Mark the body as complete."""
        self._has_ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """Fail reads from now on: nothing more will arrive, although the body is not complete."""
        if not self._has_ended and self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StaleConnection(ConnectionError):
    """The server closed a kept connection at the moment of sending: it never read the request."""


class Connection(asyncio.Protocol):
    """Sends a request and parses its response.

    Args:
        on_idle: Called with the connection when it is free for the next request.
        on_closed: Called with the connection when it is closed.
        idle_seconds: How long it may be idle before it is closed.
        stale_seconds: How soon after a request a close means that the server never read it.
    """

    def __init__(
        self,
        *,
        on_idle: "Callable[[Connection], None]",
        on_closed: "Callable[[Connection], None]",
        idle_seconds: float,
        stale_seconds: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_idle, self._on_closed = on_idle, on_closed
        self._idle_seconds, self._stale_seconds = idle_seconds, stale_seconds
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[HttpResponse] | None = None
        self._response: HttpResponse | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        """The bytes since the last piece of a body: the head, or lines after the body."""
        self._chunk_seconds: float | None = None
        self._is_whole = False
        self._requests = 0
        self._sent_at = self._idle_since = 0.0
        self._has_begun = False
        self._is_open = True

    @property
    def is_closed(self) -> bool:
        """Whether it is closed; one that was idle for too long is closed now."""
        if self._is_open and self._loop.time() - self._idle_since >= self._idle_seconds:
            self.close()
        return not self._is_open

    @property
    def is_usable(self) -> bool:
        """Whether it can carry another request."""
        if not self.is_closed and self._loop.time() - self._idle_since > SURE_SECONDS and self._has_input():
            self.close()
        return self._is_open

    def _has_input(self) -> bool:
        """Whether there is input that the loop has not read yet: on an idle connection that is its end."""
        assert self._transport is not None
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def send(
        self, head: bytes, body: bytes, seconds: float | None, *, is_whole: bool, chunk_seconds: float | None = None
    ) -> HttpResponse:
        """Send a request; return its response when the head is there or, if `is_whole`, when all of it is."""
        waiter: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._waiter = waiter
        self._begin(is_whole, chunk_seconds)
        self._write(head, body)
        timer = None
        if seconds is not None:
            timer = self._loop.call_later(seconds, _fail_late, waiter, seconds)
        try:
            return await waiter
        except BaseException:
            self.close()  # whatever still arrives belongs to a request that nobody waits for
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _begin(self, is_whole: bool, chunk_seconds: float | None) -> None:
        self._requests += 1
        self._sent_at = self._loop.time()
        self._is_whole, self._chunk_seconds = is_whole, chunk_seconds
        self._response, self._headers, self._head_bytes, self._has_begun = None, [], 0, False

    def _write(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        if len(body) < LARGE_BODY:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def close(self) -> None:
        """Close it at once; the request under way fails."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading until the reader has caught up; a whole response is read as it arrives."""
        if self._transport is not None and self._is_open and not self._is_whole:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Continue reading."""
        if self._transport is not None and self._is_open and not self._transport.is_reading():
            self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        if self._response is not None:
            self._response.fail(error)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    # -- called by asyncio ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # A response may take minutes in which nothing is sent, and a device in between may drop the connection.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the server sent something that is not an HTTP response: {error}"))
            self.close()
            return
        if self._waiter is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                what = "head" if self._response is None else "end"
                self._fail(ConnectionError(f"the {what} of the response has more than {MAX_HEAD_BYTES} bytes"))
                self.close()

    def connection_lost(self, error: Exception | None) -> None:
        was_open, self._is_open = self._is_open, False
        self._on_closed(self)
        if not was_open:
            self._fail(ConnectionAbortedError("the connection was closed on this side"))
        elif error is None and self._response is not None and _ends_with_connection(self._response):
            self._end()
        elif self._was_stale():
            self._fail(StaleConnection())
        else:
            self._fail(ConnectionResetError(str(error or "the server closed the connection")))

    def _was_stale(self) -> bool:
        was_prompt = self._loop.time() - self._sent_at < self._stale_seconds
        return self._requests > 1 and not self._has_begun and was_prompt

    # -- called by the parser ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._has_begun = True
        if self._waiter is None:  # a response to nothing
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is None:  # otherwise it is a trailer, too late for a reader who has the head
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._waiter is None:
            self._headers = []
            return
        self._response = HttpResponse(status, self._headers, self, self._chunk_seconds)
        if not self._is_whole and not self._waiter.done():
            self._waiter.set_result(self._response)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self._response is not None:
            self._response.put(body)

    def on_message_complete(self) -> None:
        if self._response is not None:  # otherwise it was an interim response, such as "100 Continue"
            is_kept = self._parser.should_keep_alive()
            self._end()
            if is_kept and self._is_open:
                self._become_idle()
            else:
                self.close()

    def _end(self) -> None:
        response, waiter = self._response, self._waiter
        self._response = self._waiter = None
        assert response is not None
        response.end()
        if self._is_whole and waiter is not None and not waiter.done():
            waiter.set_result(response)

    def _become_idle(self) -> None:
        assert self._transport is not None
        if self._transport.get_write_buffer_size():  # the server answered without reading the whole request
            self.close()
            return
        self.resume()
        self._idle_since = self._loop.time()
        self._on_idle(self)


def _fail_late(waiter: asyncio.Future[HttpResponse], seconds: float) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError(f"no response within {seconds:g} s"))


def _ends_with_connection(response: HttpResponse) -> bool:
    """Whether only the end of the connection marks the end of the body."""
    if response.status in (204, 304) or response.header("content-length") is not None:
        return False
    return "chunked" not in (response.header("transfer-encoding") or "").lower()
