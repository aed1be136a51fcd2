"""Callbacks: checkpoints, early stopping, and what else looks on while something is trained."""

from ..checkpoints import load_state, save_state
from ..components.registry import named
from ..errors import StateError, StateFileError
from .base import Callback, Hook, Loop, Trained, run_hook
from .checkpoint import Checkpoint
from .early_stopping import EarlyStopping
from .metrics_writer import MetricsWriter
from .rng import restore_rng, rng_state

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
