"""`DataQueue`, under the path that people know."""

from ..data_queue import DataQueue

__all__ = ["DataQueue"]
