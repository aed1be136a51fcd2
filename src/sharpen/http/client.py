"""`HttpClient`: kept HTTP/1.1 connections of one event loop to one server.

Written on a parser in C because it was measured: a small call costs a third of the CPU that a general client takes,
and nothing has to be imported for it, which is half of the start of a runner.
"""

import asyncio
import functools
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from urllib.parse import SplitResult, urlsplit

from ..errors import ConfigError
from .answer import HttpAnswer
from .connection import Connection, Stale
from .proxies import open_tunnel, proxy_for

__all__ = ["HttpAnswer", "HttpClient", "Unsent"]
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0  # most servers of ours close after 75: a connection is dropped before it can be stale
STALE_SECONDS = 1.0


class Unsent(ConnectionError):
    """The server has certainly not read the request: there is no connection to it."""


class HttpClient:
    """Requests to paths below one URL. `headers` go with every request.

    A kept connection that the server closes within `stale_seconds` of a request, without a byte of an answer, was
    closed while it rested: the request is sent again on another one. Closed later, the server may have read it, and
    it is a ConnectionResetError. `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` are respected unless `uses_proxy` is
    False; this machine itself is never reached through a proxy. `tls` replaces the default, verified settings.
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
        own = list(headers)
        if self._proxy is not None and not self._is_tls:
            self._prefix = f"http://{netloc}{self._prefix}"
            own += self._proxy.headers
        self._always = f" HTTP/1.1\r\nhost: {netloc}\r\n{_lines(own)}"
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
    ) -> HttpAnswer:
        """Send; returns when status and headers are there. Close the answer, or read it to its end.

        `Unsent` when the server read nothing, other OSErrors and TimeoutError when that is not certain. The body may
        take `chunk_seconds` from piece to piece. There is no way to ask with HEAD: its answer has no body.
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
    ) -> HttpAnswer:
        """Send; returns when the whole answer is there, which may take `seconds`. Cheaper for small answers."""
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
    ) -> HttpAnswer:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                try:
                    return await connection.ask(*message, seconds, is_whole=is_whole, chunk_seconds=chunk_seconds)
                except Stale:
                    continue
        connection = await self._connect(connect_seconds)
        return await connection.ask(*message, seconds, is_whole=is_whole, chunk_seconds=chunk_seconds)

    def close(self) -> None:
        """Close every connection; requests under way fail."""
        for connection in list(self._open):
            connection.close()
        self._idle.clear()

    def close_idle(self) -> None:
        """Close the connections that carry no request now."""
        while self._idle:
            self._idle.pop().close()

    def _head(self, method: str, path: str, headers: Sequence[tuple[str, str]], length: int) -> bytes:
        if not (path.isascii() and path.isprintable()) or " " in path:
            raise ValueError(f"the path {path!r} cannot be sent: quote it first")
        more = _lines(headers) if headers else ""
        return f"{method} {self._prefix}{path}{self._always}{more}content-length: {length}\r\n\r\n".encode("latin-1")

    # -- connections ---------------------------------------------------------------------------------

    async def _connect(self, seconds: float) -> Connection:
        connection = Connection(self, idle_seconds=self._idle_seconds, stale_seconds=self._stale_seconds)
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

    def rests(self, connection: Connection) -> None:
        """Called by a connection that is free for the next request."""
        self._idle.append(connection)
        while self._idle and self._idle[0].is_over:  # those that nobody needed for a while
            self._idle.popleft()

    def is_lost(self, connection: Connection) -> None:
        """Called by a connection that is closed."""
        self._open.discard(connection)


def _parts_of(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        is_known = False
    if not is_known:
        shown = url.rpartition("@")[2]  # without the password that it may hold
        raise ConfigError(f"the URL is {shown!r}: give one such as http://127.0.0.1:8000/v1")
    return parts


@functools.cache
def default_tls() -> ssl.SSLContext:
    """Verified against the certificates of this machine; read once."""
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
