"""Callbacks of a training loop: checkpoints, early stopping, metrics."""

from typing import TYPE_CHECKING

from ..components.registry import named
from ..errors import StateError, StateFileError
from ..lazy import lazy_names
from .base import Callback, Hook, Loop, Trained, run_hook

if TYPE_CHECKING:
    from ..checkpoints import load_state, save_state
    from .checkpoint import Checkpoint, restore_rng, rng_state
    from .early_stopping import EarlyStopping
    from .metrics_writer import MetricsWriter

__all__ = [
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Hook",
    "Loop",
    "MetricsWriter",
    "StateError",
    "StateFileError",
    "Trained",
    "load_state",
    "named",
    "restore_rng",
    "rng_state",
    "run_hook",
    "save_state",
]

__getattr__ = lazy_names(
    __name__,
    {
        "..checkpoints": ["load_state", "save_state"],
        ".checkpoint": ["Checkpoint", "restore_rng", "rng_state"],
        ".early_stopping": ["EarlyStopping"],
        ".metrics_writer": ["MetricsWriter"],
    },
)
