"""Where rollouts, attempts, spans, resources and workers are kept."""

from typing import TYPE_CHECKING, Any

from ..types import UNSET, UnsetType
from .base import LightningStore, LightningStoreCapabilities, LightningStoreStatistics

if TYPE_CHECKING:
    from .client import LightningStoreClient as LightningStoreClient
    from .local import LocalStore as LocalStore
    from .memory import InMemoryLightningStore as InMemoryLightningStore, MemoryTables as MemoryTables
    from .methods import forward_methods as forward_methods
    from .postgres import PostgresStore as PostgresStore
    from .redis import RedisLightningStore as RedisLightningStore
    from .rules import StoreRules as StoreRules
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
    "LocalStore",
    "MemoryTables",
    "PostgresStore",
    "RedisLightningStore",
    "SQLiteStore",
    "StoreRules",
    "UnsetType",
    "forward_methods",
]

_MODULES = {
    "InMemoryLightningStore": "memory",
    "LightningStoreClient": "client",
    "LightningStoreServer": "server",
    "LightningStoreThreaded": "threading",
    "LocalStore": "local",
    "MemoryTables": "memory",
    "PostgresStore": "postgres",
    "RedisLightningStore": "redis",
    "SQLiteStore": "sqlite",
    "StoreRules": "rules",
    "forward_methods": "methods",
}


def __getattr__(name: str) -> Any:
    """Each store is loaded when it is asked for: a client needs no web server, a server no client."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
