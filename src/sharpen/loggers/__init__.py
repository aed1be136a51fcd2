"""Loggers, which record the metrics of a training loop in files, on the screen or in a service."""

from typing import TYPE_CHECKING

from ..components.registry import named
from ..lazy import lazy_names
from .base import FinishStatus, Logger, LogLevel, min_loglevel, wanting
from .metrics import Metrics
from .plot import plot

if TYPE_CHECKING:
    from .console import ConsoleLogger
    from .file_loggers import CsvLogger, JsonlLogger, PickleLogger
    from .mlflow import MlflowLogger
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

__getattr__ = lazy_names(
    __name__,
    {
        ".console": ["ConsoleLogger"],
        ".file_loggers": ["CsvLogger", "JsonlLogger", "PickleLogger"],
        ".mlflow": ["MlflowLogger"],
        ".tensorboard": ["TensorBoardLogger"],
        ".wandb": ["WandbLogger"],
    },
)
