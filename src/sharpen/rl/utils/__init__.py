"""The paths of `qlib.rl.utils`; the code is in the modules of `sharpen.rl`."""

from .data_queue import DataQueue
from .env_wrapper import EnvWrapper, EnvWrapperStatus
from .finite_env import FiniteEnvType, vectorize_env
from .log import ConsoleWriter, CsvWriter, LogBuffer, LogCollector, LogLevel, LogWriter

__all__ = [
    "ConsoleWriter",
    "CsvWriter",
    "DataQueue",
    "EnvWrapper",
    "EnvWrapperStatus",
    "FiniteEnvType",
    "LogBuffer",
    "LogCollector",
    "LogLevel",
    "LogWriter",
    "vectorize_env",
]
