"""Log collectors and writers, under the path that Qlib has for them."""

from ...loggers import LogLevel
from ..logging import LogBuffer, LogCollector, LogWriter
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
