"""The callbacks of every loop, under the path that people know."""

from ...callbacks import Callback, Checkpoint, EarlyStopping, MetricsWriter

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "MetricsWriter"]
