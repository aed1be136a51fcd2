"""Where rollouts, attempts, spans, resources and workers are kept."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names
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

# A client needs no web server, a server no client.
__getattr__ = lazy_names(
    __name__,
    {
        ".client": ["LightningStoreClient"],
        ".local": ["LocalStore"],
        ".memory": ["InMemoryLightningStore", "MemoryTables"],
        ".methods": ["forward_methods"],
        ".postgres": ["PostgresStore"],
        ".redis": ["RedisLightningStore"],
        ".rules": ["StoreRules"],
        ".server": ["LightningStoreServer"],
        ".sqlite": ["SQLiteStore"],
        ".threading": ["LightningStoreThreaded"],
    },
)
