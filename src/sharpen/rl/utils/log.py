"""Log collectors and writers, under the path that people know."""

from ...loggers import LogLevel
from ..log_collector import LogCollector
from ..log_writer import LogBuffer, LogWriter
from ..writers import ConsoleWriter, CsvWriter, MlflowWriter, PickleWriter, TensorboardWriter

__all__ = [
    "ConsoleWriter",
    "CsvWriter",
    "LogBuffer",
    "LogCollector",
    "LogLevel",
    "LogWriter",
    "MlflowWriter",
    "PickleWriter",
    "TensorboardWriter",
]
