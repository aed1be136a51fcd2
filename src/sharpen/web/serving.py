"""Listening on a port, and serving an ASGI application there: in the caller's event loop or in a thread.

uvicorn is imported when serving begins, so whoever only needs an address does not load it.
"""

import asyncio
import contextlib
import errno
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from ..errors import ConfigError, PortTakenError, RunError
from ..http.proxies import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .protocol import Limits

GRACE_SECONDS = 5
ACCEPTED_AT_ONCE = 2  # few, so that idle connections are closed before many more are accepted
QUEUED_CONNECTIONS = 2048
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class ServerThread:
    """Serves an application in a thread of its own, once, on a listening socket that it closes at the end.

    Args:
        make_app: Called in the thread with an event that is set when the server is about to stop: long responses
            end then.
        bound: A listening socket, see `listen`.
        name: The name of the thread.
        grace_seconds: How long requests under way may take after `stop`.
        limits: What clients may take.
        on_stop: Called in the thread's event loop when the server is about to stop.
    """

    def __init__(
        self,
        make_app: "Callable[[asyncio.Event], ASGIApp]",
        bound: socket.socket,
        *,
        name: str = "sharpen-server",
        grace_seconds: float = GRACE_SECONDS,
        limits: "Limits | None" = None,
        on_stop: Callable[[], object] | None = None,
    ) -> None:
        self._make_app, self._bound, self._on_stop = make_app, bound, on_stop
        self._grace_seconds, self._limits = grace_seconds, limits
        self._lock, self._is_stopped = threading.Lock(), False  # `start` and `stop` may be called by two threads
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether it serves, or is about to."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Return when the server answers; an error in its thread is raised here."""
        with self._lock:
            if self._is_stopped:
                raise RunError("the server was stopped before it started")
            self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Finish the requests under way and release the port. May be called twice, and before `start`."""
        with self._lock:
            self._is_stopped = True
            if self._thread.ident is None:
                return self._bound.close()
        self._ready.wait()
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)
        return self._thread.join()

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
        async with serving(app, self._bound, grace_seconds=self._grace_seconds, limits=self._limits):
            self._ready.set()
            await self._stopping.wait()
            if self._on_stop is not None:
                self._on_stop()


@contextlib.asynccontextmanager
async def serving(
    app: "ASGIApp", bound: socket.socket, *, grace_seconds: float = GRACE_SECONDS, limits: "Limits | None" = None
) -> AsyncIterator[None]:
    """Answer on a listening socket inside the block.

    At its end no more connections are accepted, requests under way have `grace_seconds` to finish, and the socket is
    closed. Signals are left to the caller, see `stop_at_signals`.
    """
    import uvicorn

    from .protocol import BoundedProtocol, Connections

    connections = Connections(limits)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,  # nobody else decides who the caller is
        timeout_keep_alive=connections.limits.idle_seconds,
    )
    with bound:
        server = await asyncio.get_running_loop().create_server(
            lambda: BoundedProtocol(config=config, server_state=connections, app_state={}),
            sock=bound,
            # Without uvloop, asyncio also logs as many errors when no file can be opened.
            backlog=ACCEPTED_AT_ONCE,
        )
        bound.listen(QUEUED_CONNECTIONS)  # `create_server` has set it to `ACCEPTED_AT_ONCE`
        watching = asyncio.ensure_future(connections.watch())
        try:
            yield
        finally:
            watching.cancel()
            server.close()
            bound.close()
            await connections.drain(grace_seconds)
            connections.check()  # logs what was refused since the last time


def stop_at_signals() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set; for the main thread of a process that only serves."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for a server: uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises:
        PortTakenError: Another program listens there.
        ConfigError: This machine does not have that address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By the protocol's name asyncio knows that accepted connections must not wait before they send a small piece.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
        bound.listen(QUEUED_CONNECTIONS)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(
                f"port {port} on {host} is taken: another program listens there; "
                "choose another port, or leave it open (None; on a command line --port 0) for a free one"
            ) from error
        raise ConfigError(f"this machine cannot listen on host {host!r}, port {port}: {error.strerror}") from error
    return bound


def address(host: str, port: int) -> str:
    """Return the URL for clients on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name and not name.startswith('[') else name}:{port}"


def allowed_hosts(host: str) -> frozenset[str] | None:
    """Return the names to accept in `Host` headers: on loopback its own; None (any) elsewhere, where a token guards."""
    return LOOPBACK_NAMES | {host} if is_loopback(host) else None
