"""Where rollouts, attempts, spans, resources and workers are kept."""

from .base import LightningStore, LightningStoreCapabilities, LightningStoreStatistics
from .memory import InMemoryLightningStore
from .sqlite import SQLiteStore

__all__ = [
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "SQLiteStore",
]
