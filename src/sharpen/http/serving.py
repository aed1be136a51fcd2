"""Serving an ASGI application: in the loop of the caller, or in a thread of its own that nobody else keeps busy."""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .asgi import App
from .joined_head import JoinedHead

log = logging.getLogger(__name__)

GRACE_SECONDS = 5
KEEP_ALIVE_SECONDS = 75


async def serve_here(
    app: App,
    bound: socket.socket,
    ready: Callable[[], object],
    stopping: asyncio.Event,
    *,
    grace_seconds: int = GRACE_SECONDS,
) -> None:
    """Serve on a listening socket until `stopping` is set; `ready` is called once connections are taken.

    At the end no more connections are taken, what is under way has `grace_seconds` to be answered, and the socket
    is closed. Signals are left to the caller.
    """
    try:
        await _Server(_config(app, grace_seconds), ready, stopping).serve(sockets=[bound])
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
    ) -> None:
        self._make_app, self._bound, self._grace_seconds = make_app, bound, grace_seconds
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
        await serve_here(app, self._bound, self._ready.set, self._stopping, grace_seconds=self._grace_seconds)


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop for a server: uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Server(uvicorn.Server):
    """Says when it is ready, sleeps until it is to stop instead of looking ten times a second, and leaves signals
    alone."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object], stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._say_ready, self._stopping = ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._say_ready()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # sets the headers of every answer
        await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(HttpToolsProtocol):
    """Sends an answer's head with its body.

    It logs under our name, and not that an answer was cut: whoever cuts it tells why.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _log_of_server

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, JoinedHead(transport, self.loop)))


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != "ASGI callable returned without completing response."


_log_of_server = log.getChild("server")
_log_of_server.addFilter(_is_news)


def _config(app: App, grace_seconds: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=_Protocol,
        proxy_headers=False,  # whoever calls is told by nobody else
        ws="none",
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace_seconds,
    )
