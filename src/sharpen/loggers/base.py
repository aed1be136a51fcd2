"""`Logger`: where the metrics, the texts and the settings of a run go.

Making a logger touches nothing: files and connections are opened with the first thing to log, so a logger can travel
to the process that trains. A step is a number of iterations; several calls may belong to one step.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..checks import is_int
from ..errors import ConfigError
from .level import LogLevel

FinishStatus = Literal["succeeded", "failed", "interrupted"]


class Logger:
    """Base of all loggers. One of our own overrides `log_metrics`, and of the others what it has a use for."""

    def __init__(self, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        if not is_int(loglevel):
            levels = ", ".join(f"LogLevel.{level.name}" for level in LogLevel)
            raise ConfigError(f"loglevel is {loglevel!r}: use {levels}, or a number")
        self.loglevel = loglevel

    def wants(self, level: int | LogLevel) -> bool:
        """Whether values of this level are worth making for this logger."""
        return level >= self.loglevel

    def log_config(self, config: Mapping[str, Any]) -> None:
        """The settings of the run, once, before everything else."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Values of one step."""

    def log_text(self, name: str, text: str, step: int) -> None:
        """Something to read: a prompt, a report."""

    def finish(self, status: FinishStatus = "succeeded") -> None:
        """The run is over. Logging after it begins again where it ended."""

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on after a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on after a checkpoint: what was logged later is replaced by what comes now."""


def min_loglevel(loggers: Iterable[Logger]) -> int:
    """The least level that any of them wants; without loggers, one that nothing reaches."""
    return min((logger.loglevel for logger in loggers), default=max(LogLevel) + 1)


def wanting(loggers: Iterable[Logger], level: int | LogLevel) -> list[Logger]:
    """Those that want values of this level."""
    return [logger for logger in loggers if logger.wants(level)]
