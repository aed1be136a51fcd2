"""How the store of a gateway reaches another process: as the address of a server, or as the path of a file.

The stores of this package that stand before another one (the algorithm's, the checked, the threaded, the served)
hold it as `store`. A wrapper from elsewhere is not looked through: it may have its reasons.
"""

import asyncio
import secrets
from typing import Any, Literal

import msgspec

from ...errors import ConfigError
from ...secrets import shown
from ...store import LightningStore
from .threads import in_thread

SQLITE = "sharpen.store.sqlite.SQLiteStore"
CLIENT = "sharpen.store.client.LightningStoreClient"


class ServedStore(msgspec.Struct, frozen=True, tag="server"):
    """A store behind a server."""

    url: str
    token: str | None = None

    def open(self) -> LightningStore:
        from ...store.client import LightningStoreClient

        return LightningStoreClient(self.url, self.token)

    def __repr__(self) -> str:
        return f"ServedStore({self.url!r})"


class StoreFile(msgspec.Struct, frozen=True, tag="file"):
    """A SQLite file that several processes may open."""

    path: str
    synchronous: Literal["normal", "full"] = "normal"
    busy_seconds: float = 10.0
    max_kept_bytes: int = 64 * 2**20

    def open(self) -> LightningStore:
        from ...store.sqlite import SQLiteStore

        return SQLiteStore(
            self.path,
            synchronous=self.synchronous,
            busy_seconds=self.busy_seconds,
            max_kept_bytes=self.max_kept_bytes,
            expires_attempts=False,  # heartbeats go to the process that has the store
        )


StoreAddress = ServedStore | StoreFile


def address_of(store: LightningStore) -> StoreAddress | None:
    """Where another process finds the same store; None when it lives in the memory of this one."""
    innermost: Any = _innermost(store)
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(innermost).__mro__}
    if CLIENT in kinds:
        token = innermost._headers.get("authorization", "").removeprefix("Bearer ")
        return ServedStore(innermost.url, token or None)
    exact = f"{type(innermost).__module__}.{type(innermost).__qualname__}"
    if exact == SQLITE and innermost._clock.is_real:
        return StoreFile(
            path=str(innermost.path.absolute()),
            synchronous=innermost._synchronous,
            busy_seconds=innermost._busy_seconds,
            max_kept_bytes=innermost._kept.max_bytes,
        )
    return None


def check_store(store: object) -> None:
    """A store, the address of one, or None."""
    if isinstance(store, type):
        raise ConfigError(f"store is the class {store.__name__}: pass an instance, {store.__name__}(…)")
    if store is not None and not isinstance(store, StoreAddress) and not hasattr(type(store), "capabilities"):
        raise ConfigError(
            f"store is {shown(store)}: pass a store such as InMemoryLightningStore() or SQLiteStore(PATH)"
        )


def is_same_store(one: LightningStore | None, other: LightningStore | None) -> bool:
    """Whether both names lead to one store of this process."""
    if one is None or other is None:
        return one is other
    return _innermost(one) is _innermost(other)


def _innermost(store: LightningStore) -> LightningStore:
    while type(store).__module__.startswith("sharpen.") and "store" in vars(store):
        store = vars(store)["store"]
    return store


def check_thread_safe(store: LightningStore) -> None:
    """A gateway answers in a thread of its own: the store must bear that."""
    if not store.capabilities.get("thread_safe"):
        raise ConfigError(
            f"the gateway runs in a separate thread, but its store, {type(store).__name__}, is not thread-safe: "
            "create it with thread_safe=True, or use LightningStoreThreaded(store) in its place everywhere"
        )


class StoreServing:
    """A store of this process, served on loopback for the gateway's process alone."""

    def __init__(self, store: LightningStore) -> None:
        from ...store.server import LightningStoreServer

        check_thread_safe(store)
        # The caller may stand in a running loop, which cannot wait: so another thread does.
        token = secrets.token_urlsafe(32)
        self._server = LightningStoreServer(store, token=token)
        in_thread(lambda: asyncio.run(self._server.start())).result()
        self.address = ServedStore(self._server.endpoint, token)

    def close(self) -> None:
        """Stop serving; the store stays open."""
        in_thread(lambda: asyncio.run(self._server.stop())).result()
