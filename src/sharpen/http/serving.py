"""Serving an ASGI application: in the loop of the caller, or in a thread of its own that nobody else keeps busy.

A connection is bounded before any application looks at it: the size and the time of a request's head, the pace of its
body, the time it may be idle. An answer is never cut: long polls and event streams last as long as they need.
"""

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .asgi import App
from .joined_head import JoinedHead

log = logging.getLogger(__name__)

GRACE_SECONDS = 5
LINGER_SECONDS = 1.0  # a refused client may still be sending; closing at once could destroy the refusal on its way
LOG_SECONDS = 60.0  # anyone who can connect can cause these events, so each kind is logged once in such a period
FRESH_SECONDS = 1.0  # a connection that was opened or used within this time is about to send its request
ACCEPTED_AT_ONCE = 2  # few, so that `make_room` is called before many more are accepted
QUEUED_CONNECTIONS = 2048


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


LIMITS = Limits()


async def serve_here(
    app: App,
    bound: socket.socket,
    ready: Callable[[], object],
    stopping: asyncio.Event,
    *,
    grace_seconds: int = GRACE_SECONDS,
    limits: Limits = LIMITS,
) -> None:
    """Serve on a listening socket until `stopping` is set; `ready` is called once connections are taken.

    At the end no more connections are taken, what is under way has `grace_seconds` to be answered, and the socket
    is closed. Signals are left to the caller.
    """
    try:
        await _Server(_config(app, grace_seconds, limits), limits, ready, stopping).serve(sockets=[bound])
    finally:
        bound.close()


class AppServer:
    """Serves an application in a thread of its own, once, on a listening socket that it closes at its end.

    `make_app` is called there with an event that is set when the server is about to stop: then long answers end.
    """

    def __init__(
        self,
        make_app: Callable[[asyncio.Event], App],
        bound: socket.socket,
        *,
        name: str = "sharpen-server",
        grace_seconds: int = GRACE_SECONDS,
        limits: Limits = LIMITS,
    ) -> None:
        self._make_app, self._bound, self._grace_seconds, self._limits = make_app, bound, grace_seconds, limits
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether it serves, or is on its way to."""
        return self._thread.is_alive()

    async def start(self) -> None:
        """Returns when it answers; what goes wrong in its thread is raised here."""
        self._thread.start()
        await asyncio.to_thread(self._ready.wait)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Answer what is under way and release the socket. It may be called twice, and before any start."""
        if self._thread.ident is None:
            self._bound.close()
            return
        await asyncio.to_thread(self._ready.wait)
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again by `start`, in the thread of its caller
            self._error = error
        finally:
            self._bound.close()
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        app = self._make_app(self._stopping)
        await serve_here(
            app,
            self._bound,
            self._ready.set,
            self._stopping,
            grace_seconds=self._grace_seconds,
            limits=self._limits,
        )


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop for a server: uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Server(uvicorn.Server):
    """Says when it is ready, sleeps between its checks of the connections, and leaves signals alone."""

    def __init__(
        self, config: uvicorn.Config, limits: Limits, ready: Callable[[], object], stopping: asyncio.Event
    ) -> None:
        super().__init__(config)
        self._limits, self._say_ready, self._stopping = limits, ready, stopping
        self.server_state = self._connections = Connections(limits)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for bound in sockets or ():
            bound.listen(QUEUED_CONNECTIONS)  # uvicorn has set it to `ACCEPTED_AT_ONCE`
        self._say_ready()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # sets the headers of every answer
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.check_seconds):
                    await self._stopping.wait()
            self._connections.check()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Connections(ServerState):
    """The connections of one server, compared with its limits now and then."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        super().__init__()
        self.limits = limits
        self.idle: dict[BoundedProtocol, None] = {}
        """Those without a request under way, the longest idle first."""
        self.refused: Counter[int] = Counter()
        """Refusals by their HTTP status, since they were last logged."""
        self._closed: Counter[str] = Counter()
        self._limit_logged = self._refusals_logged = -LOG_SECONDS
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._open_files = 2**31 if open_files == resource.RLIM_INFINITY else open_files
        # The rest is for what the process opens besides: its database, its log.
        self._scarce_from = self._open_files - min(64, self._open_files // 4)

    def check(self) -> None:
        """Close what is too slow or idle for too long, and make room where no more files can be opened."""
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            cast(BoundedProtocol, connection).check(now)
        lowest = self._lowest_unused()
        for _ in range(self._scarce_from, lowest + 1):
            self._close_one(now)
        if (self._closed or lowest >= self._open_files) and now - self._limit_logged >= LOG_SECONDS:
            self._limit_logged = now
            log.warning(
                "the limit of %d open files is near or reached; closed %d idle connections and %d that sent their "
                "request body slowly; raise the limit with `ulimit -n`",
                self._open_files,
                self._closed["idle"],
                self._closed["body"],
            )
            self._closed.clear()
        if self.refused and now - self._refusals_logged >= LOG_SECONDS:
            self._refusals_logged = now
            for status, count in sorted(self.refused.items()):
                log.warning("refused %d requests with HTTP %d: %s", count, status, _REFUSALS[status][1])
            self.refused.clear()

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
        """Close the longest idle connection, else the slowest body. Pending responses are never cut."""
        oldest = next((each for each in self.idle if each is not newest), None)
        if oldest is None or oldest.idle_seconds(now) < FRESH_SECONDS:
            bodies = [each for each in cast(set[BoundedProtocol], self.connections) if each.is_body_awaited]
            if bodies:
                max(bodies, key=lambda each: each.seconds_behind(now)).transport.abort()
                self._closed["body"] += 1
                return
        if oldest is not None:
            del self.idle[oldest]
            oldest.transport.close()
            self._closed["idle"] += 1


class BoundedProtocol(HttpToolsProtocol):
    """One connection, within the limits of its `Connections`; sends an answer's head with its body.

    It logs under our name. It does not log that a response was cut off: the code that does so logs the reason.
    """

    server_state: Connections

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _log_of_server
        self._limits, self._idle = self.server_state.limits, self.server_state.idle
        self._phase: Literal["idle", "head", "body", "answer"] = "idle"
        self._since = self.loop.time()  # when the phase began, or the period of a body
        self._held_bytes = 0  # received since the parser last gave something whole; it may be holding them
        self._piece_bytes = 0  # of what was received last
        self._body_bytes = 0  # in this period
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, JoinedHead(transport, self.loop)))
        self._idle[self] = None
        self.server_state.make_room(self, transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        super().connection_lost(exc)

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
        self._phase = "answer"
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

    def _become_idle(self) -> None:
        self._idle[self] = None
        if self._phase == "answer":
            self._phase, self._since = "idle", self.loop.time()

    def _head_bytes(self) -> int:
        if self.headers is None:  # nothing has begun
            return 0
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse(self, status: Literal[400, 408, 431]) -> None:
        if self._is_refused or self.transport.is_closing():
            return None
        self._is_refused = True
        kind, message = _REFUSALS[status]
        self.server_state.refused[status] += 1
        if self._phase in ("body", "answer"):
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            # The refusal would be read as a part of an earlier answer.
            if self._phase == "answer" or self.pipeline or self.cycle.response_started:
                return self.transport.abort()
        body = json.dumps({"error": {"type": kind, "message": message}}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        return None


_REFUSALS = {
    400: ("InvalidInputError", "the request is not HTTP"),
    408: ("InvalidInputError", "the request came too slowly"),
    431: ("TooLargeError", "the head of the request is too large: send less in its URL and headers"),
}


_LOGGED_ELSEWHERE = (
    "ASGI callable returned without completing response.",
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",  # it is answered like any other
    "No supported WebSocket library detected.",
)

_log_of_server = log.getChild("server")
_log_of_server.addFilter(lambda record: not str(record.msg).startswith(_LOGGED_ELSEWHERE))


def _config(app: App, grace_seconds: int, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=BoundedProtocol,
        proxy_headers=False,  # whoever calls is told by nobody else
        ws="none",
        backlog=ACCEPTED_AT_ONCE,  # without uvloop, asyncio also logs as many errors when no file can be opened
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=grace_seconds,
    )
