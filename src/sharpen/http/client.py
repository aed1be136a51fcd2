"""`HttpClient`: kept HTTP/1.1 connections of one event loop to one server.

It uses a parser written in C for a measured reason: a small call takes a third of the CPU time of a general client, and
the imports of such a client would be half of the start of a runner.

A connection carries one request at a time. The head of a response is there at once, the body is read as it arrives. A
slow reader holds the server back: the connection is not read while more than `HELD_BYTES` wait here. A body that is cut
short is an error, never an end.
"""

import asyncio
import functools
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools

from ..errors import ConfigError
from .proxies import open_tunnel, proxy_for

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0  # our servers close after 75: a connection is dropped before it can be stale
STALE_SECONDS = 1.0
HELD_BYTES = 256 * 1024
MAX_HEAD_BYTES = 1024 * 1024
SURE_SECONDS = 1.0  # a connection that was idle for longer is checked before it is used
LARGE_BODY = 64 * 1024  # written separately: joined to its head it would be copied


class Unsent(ConnectionError):
    """The server has certainly not read the request, as there is no connection to it."""


class HttpClient:
    """Sends requests to paths below one URL.

    A kept connection that the server closes within `stale_seconds` of a request, without a byte of a response, was
    closed while it was idle: the request is sent again on another one. If it is closed later, the server may have read
    the request, and the error is a ConnectionResetError.

    Args:
        url: The URL that paths are appended to.
        headers: Sent with every request.
        idle_seconds: How long a connection may be idle before it is closed.
        stale_seconds: See above.
        uses_proxy: Whether `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` are respected; this machine itself is never
            reached through a proxy.
        tls: Replaces the default settings, which verify certificates.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        idle_seconds: float = IDLE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
        uses_proxy: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = _parts_of(url)
        self._host, self._is_tls, self._tls = parts.hostname or "", parts.scheme == "https", tls
        self._port = parts.port or (443 if self._is_tls else 80)
        self._proxy = proxy_for(parts.scheme, self._host, self._port) if uses_proxy else None
        netloc = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        always = list(headers)
        if self._proxy is not None and not self._is_tls:
            self._prefix = f"http://{netloc}{self._prefix}"
            always += self._proxy.headers
        self._after_path = f" HTTP/1.1\r\nhost: {netloc}\r\n{_lines(always)}"
        self._idle_seconds, self._stale_seconds = idle_seconds, stale_seconds
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        connect_seconds: float = CONNECT_SECONDS,
        head_seconds: float | None = None,
        chunk_seconds: float | None = None,
    ) -> "HttpResponse":
        """Send a request and return when status and headers are there. Close the response, or read it to its end.

        The body may take `chunk_seconds` from piece to piece. HEAD is not supported, as its response has no body.

        Raises:
            Unsent: The server read nothing.
            OSError, TimeoutError: The server may have read the request.
        """
        message = self._head(method, path, headers, len(body)), body
        return await self._send(message, connect_seconds, head_seconds, chunk_seconds, is_whole=False)

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        connect_seconds: float = CONNECT_SECONDS,
        seconds: float | None = None,
    ) -> "HttpResponse":
        """Send a request and return the whole response, which may take `seconds`. Cheaper for small responses."""
        message = self._head(method, path, headers, len(body)), body
        return await self._send(message, connect_seconds, seconds, None, is_whole=True)

    async def _send(
        self,
        message: tuple[bytes, bytes],
        connect_seconds: float,
        seconds: float | None,
        chunk_seconds: float | None,
        *,
        is_whole: bool,
    ) -> "HttpResponse":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                try:
                    return await connection.send(*message, seconds, is_whole=is_whole, chunk_seconds=chunk_seconds)
                except StaleConnection:
                    continue
        connection = await self._connect(connect_seconds)
        return await connection.send(*message, seconds, is_whole=is_whole, chunk_seconds=chunk_seconds)

    def close(self) -> None:
        """Close every connection; requests under way fail."""
        for connection in list(self._open):
            connection.close()
        self._idle.clear()

    def close_idle(self) -> None:
        """Close the connections that carry no request at the moment."""
        while self._idle:
            self._idle.pop().close()

    def _head(self, method: str, path: str, headers: Sequence[tuple[str, str]], length: int) -> bytes:
        if not (path.isascii() and path.isprintable()) or " " in path:
            raise ValueError(f"the path {path!r} cannot be sent: quote it first")
        more = _lines(headers) if headers else ""
        return f"{method} {self._prefix}{path}{self._after_path}{more}content-length: {length}\r\n\r\n".encode(
            "latin-1"
        )

    # -- connections ---------------------------------------------------------------------------------

    async def _connect(self, seconds: float) -> "Connection":
        connection = Connection(
            on_idle=self._keep,
            on_closed=self._open.discard,
            idle_seconds=self._idle_seconds,
            stale_seconds=self._stale_seconds,
        )
        try:
            async with asyncio.timeout(seconds):
                await self._open_transport(connection)
        except TimeoutError as error:
            raise Unsent(f"no connection to {self._host}:{self._port} within {seconds:g} s") from error
        except OSError as error:
            what = type(error).__name__
            raise Unsent(f"no connection to {self._host}:{self._port}: {what}: {error}") from error
        self._open.add(connection)
        return connection

    async def _open_transport(self, connection: "Connection") -> None:
        loop = asyncio.get_running_loop()
        tls = (self._tls or default_tls()) if self._is_tls else None
        proxy = self._proxy
        if proxy is None:
            await loop.create_connection(lambda: connection, self._host, self._port, ssl=tls)
        elif tls is None:
            await loop.create_connection(lambda: connection, proxy.host, proxy.port)
        else:
            tunnel = await open_tunnel(proxy, self._host, self._port)
            through = await loop.start_tls(tunnel, connection, tls, server_hostname=self._host)
            if through is None:
                raise ConnectionError("the proxy closed the connection")
            connection.connection_made(through)

    def _keep(self, connection: "Connection") -> None:
        self._idle.append(connection)
        while self._idle and self._idle[0].is_closed:  # not needed for a while
            self._idle.popleft()


def _parts_of(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        is_known = False
    if not is_known:
        shown = url.rpartition("@")[2]  # without the password that it may hold
        raise ConfigError(f"the URL is {shown!r}: use one such as http://127.0.0.1:8000/v1")
    return parts


@functools.cache
def default_tls() -> ssl.SSLContext:
    """Return settings that verify against the certificates of this machine, which are read once."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    lines = []
    for name, value in headers:
        if "\n" in value or "\r" in value or "\0" in value:
            # The value may be a key, so it is not shown.
            raise ValueError(f"the header {name!r} has a line break in its value: it cannot be sent")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines)


# -- responses and connections ----------------------------------------------------------------------


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
    ) -> "HttpResponse":
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
