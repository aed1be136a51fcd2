"""`Logger`, the base of what records the metrics, texts and settings of a run, and its levels.

Creating a logger has no side effects: files and connections are opened with the first thing to log, so a logger can be
sent to the process that trains. A step is a number of iterations; several calls may belong to one step.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Literal

from ..checks import is_int
from ..errors import ConfigError

FinishStatus = Literal["succeeded", "failed", "interrupted"]
Scalar = str | bool | int | float


class LogLevel(IntEnum):
    """How much a logger records: it gets the values whose level is not below its own."""

    DEBUG = 10
    """Only for debugging: observations, actions."""
    PERIODIC = 20
    """Once in a while: the running values of training."""
    INFO = 30
    """What people look at: rewards, losses."""
    CRITICAL = 40
    """For every logger."""


class Logger:
    """Base of all loggers. A subclass overrides `log_metrics`, and of the other methods what it needs."""

    def __init__(self, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        if not is_int(loglevel):
            levels = ", ".join(f"LogLevel.{level.name}" for level in LogLevel)
            raise ConfigError(f"loglevel is {loglevel!r}: use {levels}, or a number")
        self.loglevel = loglevel

    def wants(self, level: int | LogLevel) -> bool:
        """Whether this logger records values of this level."""
        return level >= self.loglevel

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Record the settings of the run; called once, before everything else."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the values of one step."""

    def log_text(self, name: str, text: str, step: int) -> None:
        """Record a text, such as a prompt or a report."""

    def finish(self, status: FinishStatus = "succeeded") -> None:
        """End the run. Logging after it continues where it ended."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to continue after a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue after a checkpoint: what was logged after it is replaced by what is logged now."""


def min_loglevel(loggers: Iterable[Logger]) -> int:
    """Return the lowest level that any of the loggers records; without loggers, one above all levels."""
    return min((logger.loglevel for logger in loggers), default=max(LogLevel) + 1)


def wanting(loggers: Iterable[Logger], level: int | LogLevel) -> list[Logger]:
    """Return the loggers that record values of this level."""
    return [logger for logger in loggers if logger.wants(level)]


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Flatten settings for services that need it: `{"a": {"b": 1}}` is `{"a.b": 1}`; other values become text."""
    found: dict[str, Scalar] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str | bool | int | float) else str(value)
    return found
