"""The callbacks of every loop, under the path that they have in Qlib."""

from ...callbacks import Callback, Checkpoint, EarlyStopping, MetricsWriter

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "MetricsWriter"]
