"""The store of a gateway: checks, and serving one that only this process can open to the gateway's process.

The stores of this package that stand before another one (the algorithm's, the checked, the threaded, the served)
hold it as `store`. A wrapper from elsewhere is not looked through: it may have its reasons.
"""

import asyncio
import secrets

from ...errors import ConfigError
from ...secrets import shown
from ...store import LightningStore
from ...store.opening import ServerAddress, StoreAddress
from .threads import in_thread


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
        self.address = ServerAddress(self._server.endpoint, token)

    def close(self) -> None:
        """Stop serving; the store stays open."""
        in_thread(lambda: asyncio.run(self._server.stop())).result()
