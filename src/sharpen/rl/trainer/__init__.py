"""Trainer, vessels, and the calls that need neither; with the callbacks of every loop."""

from ...callbacks import Callback, Checkpoint, EarlyStopping, MetricsWriter
from ...errors import SeedIteratorNotAvailable
from .api import backtest, train
from .trainer import Trainer
from .vessel import TrainingVessel, TrainingVesselBase

__all__ = [
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "MetricsWriter",
    "SeedIteratorNotAvailable",
    "Trainer",
    "TrainingVessel",
    "TrainingVesselBase",
    "backtest",
    "train",
]
