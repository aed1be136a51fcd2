"""Loggers: where the metrics of a training loop go."""

from ..components.registry import named
from .base import FinishStatus, Logger, min_loglevel, wanting
from .console import ConsoleLogger
from .csv_logger import CsvLogger
from .jsonl_logger import JsonlLogger
from .level import LogLevel
from .metrics import Metrics
from .mlflow import MlflowLogger
from .pickle_logger import PickleLogger
from .plot import plot
from .tensorboard import TensorBoardLogger
from .wandb import WandbLogger

__all__ = [
    "ConsoleLogger",
    "CsvLogger",
    "FinishStatus",
    "JsonlLogger",
    "LogLevel",
    "Logger",
    "Metrics",
    "MlflowLogger",
    "PickleLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "min_loglevel",
    "named",
    "plot",
    "wanting",
]
