"""Callbacks of a training loop: checkpoints, early stopping, metrics."""

from ..checkpoints import load_state, save_state
from ..components.registry import named
from ..errors import StateError, StateFileError
from .base import Callback, Hook, Loop, Trained, run_hook
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
