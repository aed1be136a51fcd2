"""Kept HTTP/1.1 connections from a client to its server.

Written for one purpose, small JSON calls to a server of ours, because it was measured: a call costs a third of the CPU
that a general client takes, and nothing has to be imported for it, which is half of the start of a runner. A
connection belongs to one event loop and carries one request at a time.
"""

import asyncio
import ssl
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0  # the server closes after 75: a connection is dropped before it can be stale


class Answer:
    """Status, the id of the store that answered, and the body."""

    __slots__ = ("body", "status", "store_id")

    def __init__(self, status: int, store_id: str | None, body: bytes) -> None:
        self.status, self.store_id, self.body = status, store_id, body


class Connections:
    """The connections of one event loop to one address."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self._host, self._tls = parts.hostname or "", ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = f" HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n{lines}"
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()

    async def exchange(self, verb: str, path: str, body: str, *, seconds: float, store_id: str | None = None) -> Answer:
        """Send one request and read its answer; OSError or TimeoutError when there is none."""
        message = self._message(verb, path, body, store_id)
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                try:
                    return await self._ask(connection, message, seconds)
                except _Stale:  # closed by the server in the moment of sending: it never read the request
                    continue
        return await self._ask(await self._connect(), message, seconds)

    def _message(self, verb: str, path: str, body: str, store_id: str | None) -> bytes:
        wanted = "" if store_id is None else f"sharpen-store: {store_id}\r\n"
        data = body.encode()
        return f"{verb} {self._prefix}{path}{self._head}{wanted}content-length: {len(data)}\r\n\r\n".encode() + data

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        return connection

    async def _ask(self, connection: "_Connection", message: bytes, seconds: float) -> Answer:
        self._busy.add(connection)
        try:
            answer = await connection.ask(message, seconds)
        finally:
            self._busy.discard(connection)
        if connection.is_usable:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close every connection; requests under way fail."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()


class _Stale(ConnectionError):
    """A kept connection was closed before the answer began."""


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._asked = 0
        self._used_at = 0.0
        self._has_begun = False
        self._is_open = True
        self._store_id: str | None = None
        self._body: list[bytes] = []

    @property
    def is_usable(self) -> bool:
        is_fresh = self._loop.time() - self._used_at < IDLE_SECONDS
        if self._is_open and not is_fresh:
            self.close()
        return self._is_open

    async def ask(self, message: bytes, seconds: float) -> Answer:
        assert self._transport is not None
        self._answer = self._loop.create_future()
        self._asked += 1
        self._has_begun, self._store_id, self._body = False, None, []
        self._transport.write(message)
        timer = self._loop.call_later(seconds, self._fail, TimeoutError(f"no answer within {seconds:g} s"))
        try:
            return await self._answer
        except BaseException:
            self.close()  # whatever still comes belongs to a request that nobody waits for
            raise
        finally:
            timer.cancel()
            self._answer, self._used_at = None, self._loop.time()

    def close(self) -> None:
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # -- called by asyncio ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"this is no HTTP answer: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        stale = self._asked > 1 and not self._has_begun
        self._fail(_Stale() if stale else ConnectionResetError(str(error or "the server closed the connection")))

    # -- called by the parser ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._has_begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"sharpen-store":
            self._store_id = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(self._parser.get_status_code(), self._store_id, body))
