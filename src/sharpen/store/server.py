"""`LightningStoreServer`: a store served over HTTP from a thread of its own, so that the caller's loop may be busy."""

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import uvicorn

from ..errors import ConfigError, StoreError
from .application import MAX_WAIT_SECONDS, App, StoreApplication
from .base import LightningStore, LightningStoreCapabilities
from .listening import address, listen
from .methods import Method, forward_methods

GRACE_SECONDS = 5


def _pass_on(method: Method) -> Callable[..., Awaitable[Any]]:
    async def call(self: "LightningStoreServer", *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.store, method.name)(*args, **kwargs)

    return call


class _Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.is_ready.set()


@forward_methods(_pass_on)
class LightningStoreServer(LightningStore):
    """Serves a store under `/v1`. It is itself the store for callers in this process.

    Beyond loopback a token is required. `mounts` adds other ASGI applications under path prefixes. A `socket` that
    listens already is served instead of an address, and stays open: whoever connects after a stop waits.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
        mounts: Iterable[tuple[str, App]] = (),
        *,
        socket: socket.socket | None = None,
        max_body_bytes: int = 64 * 2**20,
        max_batch: int = 10_000,
        max_wait_seconds: float = MAX_WAIT_SECONDS,
    ) -> None:
        if token is None and not _is_loopback(host):
            raise ConfigError(
                f"host is {host!r}, which others can reach: give a token, or bind to 127.0.0.1 (the default)"
            )
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"port is {port}: use 1 to 65535, or None for a free one")
        if token is not None and (not token.isascii() or not token.isprintable() or " " in token or not token):
            raise ConfigError("the token must be printable ASCII without spaces")
        self.store = store
        self.host = host
        self.port = port
        self._socket = socket
        self._options: dict[str, Any] = {
            "token": token,
            "mounts": list(mounts),
            "max_body_bytes": max_body_bytes,
            "max_batch": max_batch,
            "max_wait_seconds": max_wait_seconds,
        }
        self._thread: threading.Thread | None = None
        self._server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._application: StoreApplication | None = None
        self._error: BaseException | None = None

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        if self.port is None:
            raise StoreError("the store server has no port yet: start it first")
        return address(self.host, self.port)

    async def start(self) -> None:
        """Bind the address and serve; a taken port is an error, and nothing is left running."""
        if self._thread is not None:
            return
        bound = listen(self.host, self.port or 0) if self._socket is None else self._socket.dup()
        self.port = bound.getsockname()[1]
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bound, ready), name="sharpen-store", daemon=True)
        self._thread.start()
        await asyncio.to_thread(ready.wait)
        if self._error is not None:
            raise self._error

    def _run(self, bound: socket.socket, ready: threading.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(self._serve(bound, ready))
        except BaseException as error:  # noqa: BLE001 - raised again by `start`, in the thread of its caller
            self._error = error
        finally:
            bound.close()
            ready.set()

    async def _serve(self, bound: socket.socket, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._application = StoreApplication(self.store, hosts=_allowed_hosts(self.host), **self._options)
        config = uvicorn.Config(
            self._application,
            log_config=None,
            access_log=False,
            lifespan="off",
            http="httptools",
            ws="none",
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _Server(config)
        self._server.is_ready = ready
        await self._server.serve(sockets=[bound])

    async def stop(self) -> None:
        """Answer what is under way, end long polls, release the port. The store itself stays open."""
        if self._thread is None or self._server is None:
            return
        if self._loop is not None and self._application is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._application.stopping.set)
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join)
        self._thread = None

    async def run_forever(self, announce: Callable[[str], object] | None = None) -> None:
        """Serve until SIGINT or SIGTERM, or until `stop` is called.

        `announce` is given the address once the server answers and the signals are caught.
        """
        await self.start()
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        for each in signals:
            loop.add_signal_handler(each, asked.set)
        try:
            if announce is not None:
                announce(self.endpoint)
            while self._thread is not None and self._thread.is_alive() and not asked.is_set():
                try:
                    await asyncio.wait_for(asked.wait(), 0.5)
                except TimeoutError:
                    continue
        finally:
            for each in signals:
                loop.remove_signal_handler(each)
            await self.stop()

    async def close(self) -> None:
        """Stop serving and close the store."""
        await self.stop()
        await self.store.close()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.store.capabilities, "otlp_traces": True}

    def otlp_traces_endpoint(self) -> str:
        return f"{self.endpoint}/v1/traces"


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _allowed_hosts(host: str) -> frozenset[str] | None:
    """On loopback only its own names are served; elsewhere a token guards, and names are the user's business."""
    return frozenset({"localhost", "127.0.0.1", "[::1]", host}) if _is_loopback(host) else None
