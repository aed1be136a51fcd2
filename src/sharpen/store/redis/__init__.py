"""A store in Redis: everything is in memory there, and several processes and store servers may share it."""

from .store import RedisLightningStore

__all__ = ["RedisLightningStore"]
