"""Loggers, which record the metrics of a training loop in files, on the screen or in a service."""

from ..components.registry import named
from .base import FinishStatus, Logger, LogLevel, min_loglevel, wanting
from .console import ConsoleLogger
from .file_loggers import CsvLogger, JsonlLogger, PickleLogger
from .metrics import Metrics
from .mlflow import MlflowLogger
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
