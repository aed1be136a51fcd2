"""uvicorn's HTTP protocol with limits: what a client may take before an application sees its request.

The size and the duration of a request head, the pace of a body and the idle time are bounded. A response is never cut
off: long polls and event streams last as long as they need. When the process runs out of open files, idle connections
and slow bodies are closed first.
"""

import asyncio
import contextlib
import json
import logging
import os
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

log = logging.getLogger(__name__)

LINGER_SECONDS = 1.0  # for a client that is still sending to read the response
CANCEL_SECONDS = 1.0  # for requests that were cancelled at the end to send their error
LOG_SECONDS = 60.0  # anyone who can connect can cause these events, so each kind is logged once in such a period
FRESH_SECONDS = 1.0  # a connection that was opened or used within this time is about to send its request


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take before, between and during its requests."""

    head_bytes: int = 64 * 1024
    """The largest request head, and the largest trailer of a body."""
    head_seconds: float = 30.0
    """From the first byte of a head to its last."""
    body_seconds: float = 60.0
    """In every such period a body ends, or at least `body_bytes` of it arrive."""
    body_bytes: int = 64 * 1024
    idle_seconds: int = 75
    """Without any byte of a request."""
    check_seconds: float = 2.0
    """How often connections are compared with these times."""


class Connections(ServerState):
    """The connections of one server, compared with its limits every `check_seconds`."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__()
        self.limits = limits or Limits()
        self.idle: dict[BoundedProtocol, None] = {}
        """Those without a request under way, the longest idle first."""
        self.refused: Counter[int] = Counter()
        """Refusals by their HTTP status, since they were last logged."""
        self.closed = asyncio.Event()
        """Set whenever a connection ends."""
        self._closed_for_room: Counter[str] = Counter()
        self._limit_logged = self._refusals_logged = -LOG_SECONDS
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._open_files = 2**31 if open_files == resource.RLIM_INFINITY else open_files
        # The rest is for what the process opens besides: its database, its log.
        self._scarce_from = self._open_files - min(64, self._open_files // 4)

    async def watch(self) -> None:
        """Check the connections again and again, until cancelled."""
        while True:
            await asyncio.sleep(self.limits.check_seconds)
            self.check()

    def check(self) -> None:
        """Close what is too slow or idle for too long, and make room where no more files can be opened."""
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            cast(BoundedProtocol, connection).check(now)
        lowest = self._lowest_unused()
        for _ in range(self._scarce_from, lowest + 1):
            self._close_one(now)
        closed = self._closed_for_room
        if (closed or lowest >= self._open_files) and now - self._limit_logged >= LOG_SECONDS:
            self._limit_logged = now
            log.warning(
                "the limit of %d open files is near or reached; closed %d idle connections and %d that sent their "
                "request body slowly; raise the limit with `ulimit -n`",
                self._open_files,
                closed["idle"],
                closed["body"],
            )
            closed.clear()
        if self.refused and now - self._refusals_logged >= LOG_SECONDS:
            self._refusals_logged = now
            for status, count in sorted(self.refused.items()):
                log.warning("refused %d requests with HTTP %d: %s", count, status, _REFUSALS[status][2])
            self.refused.clear()

    async def drain(self, grace_seconds: float) -> None:
        """Finish the requests under way and close every connection; requests that take longer are cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(grace_seconds):
                while self.connections:
                    for connection in list(self.connections):  # a last one may have been accepted meanwhile
                        connection.shutdown()
                    self.closed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.closed.wait(), 0.1)
                while self.tasks:
                    await asyncio.wait(self.tasks)
        except TimeoutError:
            log.warning("cancelled %d requests that did not end within %g s", len(self.tasks), grace_seconds)
            for task in self.tasks:
                task.cancel()
            if self.tasks:
                await asyncio.wait(self.tasks, timeout=CANCEL_SECONDS)
        for connection in list(self.connections):
            connection.transport.close()
            loop.call_later(LINGER_SECONDS, connection.transport.abort)

    def make_room(self, newest: "BoundedProtocol", descriptor: int) -> None:
        """Close another connection if the newest one took one of the last descriptors."""
        # The system always gives the lowest unused number, so a number says how many are in use.
        if descriptor >= self._scarce_from:
            self._close_one(asyncio.get_running_loop().time(), newest)

    def _lowest_unused(self) -> int:
        """The descriptor that the next file would get."""
        try:
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return self._open_files
        os.close(descriptor)
        return descriptor

    def _close_one(self, now: float, newest: "BoundedProtocol | None" = None) -> None:
        """Close the longest idle connection, else the slowest body. Pending responses are never cut off."""
        oldest = next((each for each in self.idle if each is not newest), None)
        if oldest is None or oldest.idle_seconds(now) < FRESH_SECONDS:
            bodies = [each for each in cast(set[BoundedProtocol], self.connections) if each.is_body_awaited]
            if bodies:
                max(bodies, key=lambda each: each.seconds_behind(now)).transport.abort()
                self._closed_for_room["body"] += 1
                return
        if oldest is not None:
            del self.idle[oldest]
            oldest.transport.close()
            self._closed_for_room["idle"] += 1


class BoundedProtocol(HttpToolsProtocol):
    """One connection, within the limits of its `Connections`; sends a response head together with its body.

    It logs under our name. It does not log that a response was cut off: the code that does so logs the reason.
    """

    server_state: Connections

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _server_log
        self._limits, self._idle = self.server_state.limits, self.server_state.idle
        self._phase: Literal["idle", "head", "body", "response"] = "idle"
        self._since = self.loop.time()  # when the phase began, or the period of a body
        self._held_bytes = 0  # received since the parser last gave something whole; it may be holding them
        self._piece_bytes = 0  # of what was received last
        self._body_bytes = 0  # in this period
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, JoinedHead(transport, self.loop, self._take_no_more)))
        self._idle[self] = None
        self.server_state.make_room(self, transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        super().connection_lost(exc)
        self.server_state.closed.set()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._piece_bytes = len(data)
        self._held_bytes += self._piece_bytes
        if self._phase == "idle":
            self._phase, self._since = "head", self.loop.time()
        super().data_received(data)
        if self._held_bytes > self._limits.head_bytes:
            self._refuse(431)

    def on_headers_complete(self) -> None:
        limit = self._limits.head_bytes
        if max(self._held_bytes, self._piece_bytes) > limit and self._head_bytes() > limit:
            raise httptools.HttpParserError  # the parser stops, and `send_400_response` is called
        super().on_headers_complete()  # which raises where it cannot use the URL
        self._idle.pop(self, None)
        self._phase, self._since, self._held_bytes, self._body_bytes = "body", self.loop.time(), 0, 0

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._held_bytes = 0
        super().on_message_complete()
        self._phase = "response"
        if self.cycle.response_complete:
            self._become_idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # not so if the next one has begun
            self._become_idle()

    def send_400_response(self, msg: str) -> None:
        self._refuse(431 if self._head_bytes() > self._limits.head_bytes else 400)

    def check(self, now: float) -> None:
        """Close a connection that is idle for too long; refuse a request that comes too slowly."""
        limits, seconds = self._limits, now - self._since
        if self._phase == "idle" and seconds > limits.idle_seconds:
            self.transport.close()
        elif self._phase == "head" and seconds > limits.head_seconds:
            self._refuse(408)
        elif self._phase == "body" and (seconds > limits.body_seconds or not self.is_body_awaited):
            if self.is_body_awaited and self._body_bytes < limits.body_bytes:
                return self._refuse(408)
            self._since, self._body_bytes = now, 0
        return None

    @property
    def is_body_awaited(self) -> bool:
        """Whether a part of a request body is missing, and nobody but the client delays it."""
        return (
            self._phase == "body"
            and not self.transport.is_closing()
            and not (self.pipeline or self.flow.read_paused or self.cycle.waiting_for_100_continue)
        )

    def idle_seconds(self, now: float) -> float:
        """How long no request has been completed by this connection, which has none under way."""
        return now - self._since

    def seconds_behind(self, now: float) -> float:
        """How far the body is behind the pace that the limits ask for."""
        return now - self._since - self._limits.body_seconds * self._body_bytes / self._limits.body_bytes

    def _take_no_more(self) -> bool:
        """Ignore what the client still sends of a request that has been answered; whether it sends any."""
        is_sending = self._phase == "body" and not self._is_refused
        self._is_refused = self._is_refused or is_sending
        return is_sending

    def _become_idle(self) -> None:
        self._idle[self] = None
        if self._phase == "response":
            self._phase, self._since = "idle", self.loop.time()

    def _head_bytes(self) -> int:
        if self.headers is None:  # nothing has begun
            return 0
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse(self, status: Literal[400, 408, 431]) -> None:
        if self._is_refused or self.transport.is_closing():
            return None
        self._is_refused = True
        self.server_state.refused[status] += 1
        if self._phase in ("body", "response"):
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            # The refusal would be read as a part of an earlier response.
            if self._phase == "response" or self.pipeline or self.cycle.response_started:
                return self.transport.abort()
        kind, code, message = _REFUSALS[status]
        error = {"type": kind, "message": message, "param": None, "code": code}
        body = json.dumps({"type": "error", "error": error}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        return None


# The class that our store client raises, a word for programs, a sentence for people.
_REFUSALS = {
    400: ("InvalidInputError", "malformed_http", "the request is not valid HTTP"),
    408: ("InvalidInputError", "request_too_slow", "the request arrived too slowly"),
    431: ("TooLargeError", "head_too_large", "the request head is too large: send less in its URL and headers"),
}


class JoinedHead:
    """A transport that sends a response head together with the first part of the body.

    The head waits until something follows, or until the loop's next turn. Sent apart they cost two system calls and
    wake the client twice, which was measured as a sixth of what a short call costs. A client that `is_sending` when the
    transport is closed has `LINGER_SECONDS` to read the response: closing at once would destroy it on its way.
    """

    __slots__ = (
        *("_held", "_is_sending", "_loop", "_transport"),
        *("get_extra_info", "is_closing", "pause_reading", "resume_reading"),
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        is_sending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._transport, self._loop, self._is_sending = transport, loop, is_sending
        self._held = b""
        self.get_extra_info, self.is_closing = transport.get_extra_info, transport.is_closing
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data.startswith(b"HTTP/1."):
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        if not self._is_sending():
            return self._transport.close()
        self._transport.write_eof()
        self._loop.call_later(LINGER_SECONDS, self._transport.abort)
        return None

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


_LOGGED_ELSEWHERE = (
    "ASGI callable returned without completing response.",
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",  # it is answered like any other
    "No supported WebSocket library detected.",
)

_server_log = log.getChild("server")
_server_log.addFilter(lambda record: not str(record.msg).startswith(_LOGGED_ELSEWHERE))
