"""The trainer, its vessels, `train` and `backtest`, and the callbacks that every loop shares."""

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
