"""`LightningStoreServer`: a store served over HTTP from a thread of its own, so that the caller's loop may be busy."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from starlette.types import ASGIApp as App

from ..errors import ConfigError, StoreError
from ..http.proxies import is_loopback
from ..types import Span
from ..web.serving import ServerThread, address, allowed_hosts, listen
from .application import MAX_WAIT_SECONDS, StoreApplication
from .base import LightningStore, LightningStoreCapabilities
from .methods import Method, call_method, forward_methods
from .opening import ServerAddress, StoreAddress


def _pass_on(method: Method) -> Callable[..., Awaitable[Any]]:
    async def call(self: "LightningStoreServer", *args: Any, **kwargs: Any) -> Any:
        self._check_process(method.name)
        return await call_method(self.store, method.name, args, kwargs)

    return call


@forward_methods(_pass_on, derived=True)
class LightningStoreServer(LightningStore):
    """An HTTP server for a store, under `/v1`. Code in the same process can use the server as a store.

    Args:
        store: The store to serve.
        host: The address to bind. Other than on loopback, a token is required.
        port: The port to bind, or None for a free one.
        token: The token that clients must send.
        mounts: Other ASGI applications, as pairs of a path prefix and an application.
        socket: A listening socket to use instead of `host` and `port`. It stays open when the server stops, so that
            clients that connect after that wait.
        max_body_bytes: The maximum size of a request body.
        max_batch: The maximum number of items in one call.
        max_wait_seconds: The maximum duration of a long poll.
        cors_allow_origins: The origins whose pages may use the server from a browser, `"*"` for any. They need the
            token too.
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
        cors_allow_origins: Sequence[str] | str | None = None,
    ) -> None:
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"host is {host!r}, which other machines can reach: pass a token, or use 127.0.0.1 (the default)"
            )
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"port is {port}: use 1 to 65535, or None for a free one")
        if token is not None and (not token.isascii() or not token.isprintable() or " " in token or not token):
            raise ConfigError("the token is not printable ASCII without spaces: choose another one")
        self.store = store
        self._pid = os.getpid()
        self.host = host
        self.port = port
        self._socket = socket
        origins = cors_allow_origins or ()
        self._options: dict[str, Any] = {
            "token": token,
            "mounts": list(mounts),
            "max_body_bytes": max_body_bytes,
            "max_batch": max_batch,
            "max_wait_seconds": max_wait_seconds,
            "cors_allow_origins": [origins] if isinstance(origins, str) else origins,
        }
        self._server: ServerThread | None = None
        self._application: StoreApplication | None = None

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        self._check_process("add_otel_span")
        return await self.store.add_otel_span(rollout_id, attempt_id, readable_span, sequence_id)

    def _check_process(self, name: str) -> None:
        """A forked child has a copy of the store: what it wrote there would be acknowledged and lost."""
        if os.getpid() != self._pid:
            address = f"LightningStoreClient({self.endpoint!r})" if self.port is not None else "a LightningStoreClient"
            raise StoreError(
                f"{name} was called in process {os.getpid()}, but the store is served by process {self._pid}: "
                f"use {address} in a forked child"
            )

    @property
    def endpoint(self) -> str:
        """The URL for clients."""
        if self.port is None:
            raise StoreError("the store server has no port yet: call start() first")
        return address(self.host, self.port)

    @property
    def is_running(self) -> bool:
        """Whether the server is running."""
        return self._server is not None

    async def start(self) -> None:
        """Bind the address and start serving; a port in use raises an error."""
        if self._server is not None:
            return
        self._pid = os.getpid()
        bound = listen(self.host, self.port or 0) if self._socket is None else self._socket.dup()
        self.port = bound.getsockname()[1]
        self._server = ServerThread(self._make_application, bound, name="sharpen-store")
        try:
            await asyncio.to_thread(self._server.start)
        except Exception:
            self._server = None
            raise

    def _make_application(self, stopping: asyncio.Event) -> StoreApplication:
        hosts = allowed_hosts(self.host)
        self._application = StoreApplication(self.store, hosts=hosts, stopping=stopping, **self._options)
        return self._application

    async def stop(self) -> None:
        """Finish the requests in progress, end long polls and release the port. The store stays open."""
        server = self._server
        if server is not None:
            await asyncio.to_thread(server.stop)
            if self._server is server:
                self._server = None

    async def run_forever(self, announce: Callable[[str], object] | None = None) -> None:
        """Serve until SIGINT or SIGTERM, or until `stop` is called.

        `announce` is called with the URL once the server responds and the signal handlers are installed.
        """
        await self.start()
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        for each in signals:
            loop.add_signal_handler(each, asked.set)
        try:
            if announce is not None:
                announce(self.endpoint)
            while self._server is not None and self._server.is_alive and not asked.is_set():
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

    def address(self) -> StoreAddress | None:
        if self.is_running:
            return ServerAddress(self.endpoint, self._options["token"])
        return self.store.address()

    def otlp_traces_endpoint(self) -> str:
        return f"{self.endpoint}/v1/traces"
