"""`DataQueue`, under the path that Qlib has for it."""

from ..data_queue import DataQueue

__all__ = ["DataQueue"]
