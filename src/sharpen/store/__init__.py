"""Where rollouts, attempts, spans, resources and workers are kept."""

from typing import TYPE_CHECKING, Any

from ..types import UNSET, UnsetType
from .base import LightningStore, LightningStoreCapabilities, LightningStoreStatistics

if TYPE_CHECKING:
    from .client import LightningStoreClient as LightningStoreClient
    from .memory import InMemoryLightningStore as InMemoryLightningStore
    from .postgres import PostgresStore as PostgresStore
    from .redis import RedisLightningStore as RedisLightningStore
    from .server import LightningStoreServer as LightningStoreServer
    from .sqlite import SQLiteStore as SQLiteStore
    from .threading import LightningStoreThreaded as LightningStoreThreaded

__all__ = [
    "UNSET",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreServer",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "PostgresStore",
    "RedisLightningStore",
    "SQLiteStore",
    "UnsetType",
]

_MODULES = {
    "InMemoryLightningStore": "memory",
    "LightningStoreClient": "client",
    "LightningStoreServer": "server",
    "LightningStoreThreaded": "threading",
    "PostgresStore": "postgres",
    "RedisLightningStore": "redis",
    "SQLiteStore": "sqlite",
}


def __getattr__(name: str) -> Any:
    """Each store is loaded when it is asked for: a client needs no web server, a server no client."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
