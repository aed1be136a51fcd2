"""How the store of a run is served: by a process of its own, by a thread of this process, or by somebody else."""

import asyncio
import contextlib
import dataclasses
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, cast

from ..errors import ConfigError
from ..store import LightningStore
from ..store.client import connected
from ..web.serving import address, listen
from .checked_store import CheckedStore
from .jobs import StoreJob
from .mounts import Mount
from .store_process import StoreProcess

SQLITE = "sharpen.store.sqlite.SQLiteStore"


class Served(Protocol):
    """A store that runners reach by its address."""

    @property
    def url(self) -> str: ...
    @property
    def token(self) -> str | None: ...

    async def open(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Begin to serve; `on_end` is told when that is over too early."""

    async def close(self) -> None:
        """End after everybody else has ended."""

    def kill(self) -> None:
        """End at once."""

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        """The store, for somebody in this process, in the loop of the caller."""


def new_token() -> str:
    return secrets.token_urlsafe(32)


class ServedByProcess:
    """A SQLite file, served by a child: a heavy learning step here does not hold up the runners there."""

    def __init__(self, store: Any, host: str, port: int | None, token: str, mounts: Sequence[Mount] = ()) -> None:
        self._listening = listen(host, port or 0)
        self.url, self.token = address(host, self._listening.getsockname()[1]), token
        job = StoreJob(
            database=str(store.path.absolute()),
            synchronous=store._synchronous,
            busy_seconds=store._busy_seconds,
            max_kept_bytes=store._kept.max_bytes,
            host=host,
            token=token,
            mounts=[dataclasses.asdict(mount) for mount in mounts],
        )
        self._store, self._process = store, StoreProcess(job, self._listening)

    async def open(self, on_end: Callable[[BaseException | None], None]) -> None:
        self._store.expires_attempts = False  # heartbeats go to the child
        self._process.start(on_end)

    async def close(self) -> None:
        try:
            await self._process.stop()
        finally:
            self._listening.close()
            if self._store is not None:
                self._store.expires_attempts = True
                self._store = None  # its watchdog ends with the last one who holds it

    def kill(self) -> None:
        self._process.kill()

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        return connected(self.url, self.token)


class ServedHere:
    """Any other store, served by a thread of this process."""

    def __init__(
        self, store: LightningStore, host: str, port: int | None, token: str, mounts: Sequence[Mount] = ()
    ) -> None:
        self._listening = listen(host, port or 0)
        self.url, self.token = address(host, self._listening.getsockname()[1]), token
        self._host, self._mounts = host, mounts
        self._store = ThreadSafe(store)
        self._server: Any = None

    async def open(self, on_end: Callable[[BaseException | None], None]) -> None:
        from ..store.server import LightningStoreServer

        store = self._store.open()
        mounts = [(mount.prefix, mount.app(store, self.token)) for mount in self._mounts]
        self._server = LightningStoreServer(
            store, host=self._host, token=self.token, socket=self._listening, mounts=mounts
        )
        starting = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # a server can be stopped only once it has started
            raise

    async def close(self) -> None:
        try:
            if self._server is not None:
                await self._server.stop()
        finally:
            self._listening.close()
            await self._store.close()

    def kill(self) -> None:
        """A thread that answers ends with the run."""

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        return contextlib.nullcontext(CheckedStore(self._store.open()))


class ServedElsewhere:
    """A store behind somebody else's server. `options` are those of the clients of this run."""

    def __init__(
        self,
        url: str,
        token: str | None,
        store: LightningStore | None = None,
        token_file: Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url, self.token, self.token_file, self._store = url, token, token_file, store
        self.options = dict(options or {})

    async def open(self, on_end: Callable[[BaseException | None], None]) -> None:
        """It is open."""

    async def close(self) -> None:
        """It stays open."""

    def kill(self) -> None:
        """It stays alive."""

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        if self._store is not None:
            return contextlib.nullcontext(self._store)
        return connected(self.url, self.token, token_file=self.token_file, **self.options)


class ThreadSafe:
    """A store for the threads of a run; one that is not made for it gets a loop of its own."""

    def __init__(self, store: LightningStore, *, is_wrapped: bool | None = None) -> None:
        self._store = store
        self._is_wrapped = not store.capabilities.get("thread_safe") if is_wrapped is None else is_wrapped
        self._lock = threading.Lock()
        self._wrapper: LightningStore | None = None

    def open(self) -> LightningStore:
        if not self._is_wrapped:
            return self._store
        with self._lock:
            if self._wrapper is None:
                from ..store.threading import LightningStoreThreaded

                self._wrapper = LightningStoreThreaded(cast(LightningStore, _Borrowed(self._store)))
            return self._wrapper

    async def close(self) -> None:
        """Let go of the wrapper; the store itself belongs to the caller and stays open."""
        if self._wrapper is not None:
            wrapper, self._wrapper = self._wrapper, None
            await wrapper.close()


class _Borrowed:
    """A store that is not closed by whoever uses it."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def close(self) -> None:
        """Its owner closes it."""


def serve(
    store: LightningStore,
    *,
    managed: bool | None,
    host: str,
    port: int | None,
    token: str,
    mounts: Sequence[Mount] = (),
) -> Served:
    """Choose how the store is served. A taken port is an error here, before anything starts."""
    theirs = None if managed else _server_of(store)
    if theirs is not None:
        return theirs
    if managed is False:
        raise ConfigError(
            f"managed_store is False, but {type(store).__name__} is not being served: pass a LightningStoreClient "
            "or a started LightningStoreServer, or omit managed_store"
        )
    if _is_plain_file(store):
        return ServedByProcess(store, host, port, token, mounts)
    return ServedHere(store, host, port, token, mounts)


def _server_of(store: LightningStore) -> ServedElsewhere | None:
    """The server that answers for this store already."""
    of_store: Any = store
    if _is_a(store, "LightningStoreClient"):
        token = of_store._headers.get("authorization", "").removeprefix("Bearer ")
        # A client of our own is closed in the loop that it was used in; the user's stays as it is.
        return ServedElsewhere(of_store.url, token or None, token_file=of_store.token_file, options=of_store.options)
    if _is_a(store, "LightningStoreServer") and of_store.is_running:
        return ServedElsewhere(of_store.endpoint, of_store._options["token"], store)
    return None


def _is_a(store: LightningStore, name: str) -> bool:
    """Told by its name: importing the class would load a web server that this process may not need."""
    return any(kind.__name__ == name and kind.__module__.startswith("sharpen.store.") for kind in type(store).__mro__)


def _is_plain_file(store: LightningStore) -> bool:
    """Whether another process that opens the same file serves the same store."""
    of_store: Any = store
    return f"{type(store).__module__}.{type(store).__qualname__}" == SQLITE and of_store._clock.is_real
