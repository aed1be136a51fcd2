"""`HttpClient`: kept HTTP/1.1 connections of one event loop to one server.

It uses a parser written in C for a measured reason: a small call takes a third of the CPU time of a general client, and
the imports of such a client would be half of the start of a runner.
"""

import asyncio
import functools
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from urllib.parse import SplitResult, urlsplit

from ..errors import ConfigError
from .connection import Connection, HttpResponse, StaleConnection
from .proxies import open_tunnel, proxy_for

__all__ = ["HttpClient", "HttpResponse", "Unsent"]
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0  # our servers close after 75: a connection is dropped before it can be stale
STALE_SECONDS = 1.0


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
    ) -> HttpResponse:
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
    ) -> HttpResponse:
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
    ) -> HttpResponse:
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

    async def _connect(self, seconds: float) -> Connection:
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

    async def _open_transport(self, connection: Connection) -> None:
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

    def _keep(self, connection: Connection) -> None:
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
