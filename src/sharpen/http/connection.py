"""One HTTP/1.1 connection: it belongs to one event loop and carries one request at a time."""

import asyncio
import select
import socket
from typing import Protocol, cast

import httptools

from .answer import HttpAnswer

MAX_HEAD_BYTES = 1024 * 1024
SURE_SECONDS = 1.0  # a connection that rested longer is looked at before it is used
LARGE_BODY = 64 * 1024  # worth a write of its own: joined to its head it would be copied


class Stale(ConnectionError):
    """A kept connection was closed by the server in the moment of sending: it never read the request."""


class Owner(Protocol):
    """Whoever keeps connections."""

    def rests(self, connection: "Connection") -> None:
        """It is free for the next request."""

    def is_lost(self, connection: "Connection") -> None:
        """It is closed."""


class Connection(asyncio.Protocol):
    """Sends a request and takes its answer apart."""

    def __init__(self, owner: Owner, *, idle_seconds: float, stale_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._idle_seconds, self._stale_seconds = idle_seconds, stale_seconds
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._answer: HttpAnswer | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        """What came since the last piece of a body: the head, or lines after the body."""
        self._chunk_seconds: float | None = None
        self._is_whole = False
        self._asked = 0
        self._asked_at = self._rested_at = 0.0
        self._has_begun = False
        self._is_open = True

    @property
    def is_over(self) -> bool:
        """Whether it is closed; one that rested too long is closed now."""
        if self._is_open and self._loop.time() - self._rested_at >= self._idle_seconds:
            self.close()
        return not self._is_open

    @property
    def is_usable(self) -> bool:
        """Whether it can carry another request."""
        if not self.is_over and self._loop.time() - self._rested_at > SURE_SECONDS and self._has_input():
            self.close()
        return self._is_open

    def _has_input(self) -> bool:
        """Whether something came that the loop has not read yet: on a resting connection that is its end."""
        assert self._transport is not None
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def ask(
        self, head: bytes, body: bytes, seconds: float | None, *, is_whole: bool, chunk_seconds: float | None = None
    ) -> HttpAnswer:
        """Send; the answer when its head is there or, where it `is_whole`, when all of it is."""
        waiting: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._waiting = waiting
        self._begin(is_whole, chunk_seconds)
        self._write(head, body)
        timer = None
        if seconds is not None:
            timer = self._loop.call_later(seconds, _time_out, waiting, seconds)
        try:
            return await waiting
        except BaseException:
            self.close()  # whatever still comes belongs to a request that nobody waits for
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _begin(self, is_whole: bool, chunk_seconds: float | None) -> None:
        self._asked += 1
        self._asked_at = self._loop.time()
        self._is_whole, self._chunk_seconds = is_whole, chunk_seconds
        self._answer, self._headers, self._head_bytes, self._has_begun = None, [], 0, False

    def _write(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        if len(body) < LARGE_BODY:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def close(self) -> None:
        """Cut it; whoever waits for an answer hears of it."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more until the reader has caught up; a whole answer is read as it comes."""
        if self._transport is not None and self._is_open and not self._is_whole:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and self._is_open and not self._transport.is_reading():
            self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None:
            self._answer.fail(error)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    # -- called by asyncio ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # An answer may take minutes in which nothing is sent, and somebody between us may forget the connection.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"this is no HTTP answer: {error}"))
            self.close()
            return
        if self._waiting is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                what = "head" if self._answer is None else "end"
                self._fail(ConnectionError(f"the {what} of the answer has more than {MAX_HEAD_BYTES} bytes"))
                self.close()

    def connection_lost(self, error: Exception | None) -> None:
        was_open, self._is_open = self._is_open, False
        self._owner.is_lost(self)
        if not was_open:
            self._fail(ConnectionAbortedError("the connection was closed here"))
        elif error is None and self._answer is not None and _ends_with_connection(self._answer):
            self._end()
        elif self._was_stale():
            self._fail(Stale())
        else:
            self._fail(ConnectionResetError(str(error or "the server closed the connection")))

    def _was_stale(self) -> bool:
        was_prompt = self._loop.time() - self._asked_at < self._stale_seconds
        return self._asked > 1 and not self._has_begun and was_prompt

    # -- called by the parser ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._has_begun = True
        if self._waiting is None:  # an answer to nothing
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is None:  # else it comes after the body, too late for a reader who has the head
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._waiting is None:
            self._headers = []
            return
        self._answer = HttpAnswer(status, self._headers, self, self._chunk_seconds)
        if not self._is_whole and not self._waiting.done():
            self._waiting.set_result(self._answer)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self._answer is not None:
            self._answer.put(body)

    def on_message_complete(self) -> None:
        if self._answer is not None:  # else it was a word in between, such as "100 Continue"
            is_kept = self._parser.should_keep_alive()
            self._end()
            if is_kept and self._is_open:
                self._rest()
            else:
                self.close()

    def _end(self) -> None:
        answer, waiting = self._answer, self._waiting
        self._answer = self._waiting = None
        assert answer is not None
        answer.end()
        if self._is_whole and waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _rest(self) -> None:
        assert self._transport is not None
        if self._transport.get_write_buffer_size():  # answered before the request was read: the rest is not wanted
            self.close()
            return
        self.resume()
        self._rested_at = self._loop.time()
        self._owner.rests(self)


def _time_out(waiting: asyncio.Future[HttpAnswer], seconds: float) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError(f"no answer within {seconds:g} s"))


def _ends_with_connection(answer: HttpAnswer) -> bool:
    """Whether only the end of the connection tells the end of the body."""
    if answer.status in (204, 304) or answer.header("content-length") is not None:
        return False
    return "chunked" not in (answer.header("transfer-encoding") or "").lower()
