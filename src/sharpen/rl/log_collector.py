"""`LogCollector`: what one step logs, on the side of the environment."""

import numbers
from typing import Any, TypeAlias

import numpy as np

from ..loggers import LogLevel

Logs: TypeAlias = dict[str, tuple[int, Any]]
"""What a step logged: the level and the value by name."""
_TABLES = ("DataFrame", "Series")


class LogCollector:
    """Keeps what is logged in the current step. Values below `min_loglevel` never leave their process."""

    def __init__(self, min_loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        self._min_loglevel = int(min_loglevel)
        self._logged: Logs = {}

    @property
    def min_loglevel(self) -> int:
        return self._min_loglevel

    def set_min_loglevel(self, level: int | LogLevel) -> None:
        self._min_loglevel = int(level)

    def reset(self) -> None:
        """Begin the next step."""
        self._logged = {}

    def _put(self, name: str, value: Any, loglevel: int) -> None:
        if loglevel < self._min_loglevel:
            return
        if name in self._logged:
            raise ValueError(f"{name!r} was logged twice in one step: use another name, or call reset() between steps")
        self._logged[name] = (int(loglevel), value)

    def add_string(self, name: str, string: str, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log a text."""
        if not isinstance(string, str):
            raise TypeError(f"{name!r} is no string but {type(string).__name__}: {string!r}")
        self._put(name, string, loglevel)

    def add_scalar(self, name: str, scalar: Any, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log a number, or an array or tensor that holds one; it is kept as a float, so an episode has its mean."""
        self._put(name, scalar if type(scalar) is float else _number(name, scalar), loglevel)

    def add_array(self, name: str, array: Any, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log an array or a table of pandas."""
        if not isinstance(array, np.ndarray) and type(array).__name__ not in _TABLES:
            raise TypeError(f"{name!r} is no array but {type(array).__name__}: {array!r}")
        self._put(name, array, loglevel)

    def add_any(self, name: str, obj: Any, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log anything that can travel between processes."""
        self._put(name, obj, loglevel)

    def add(self, name: str, value: Any, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log a value as what it is."""
        if isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0:
            self.add_scalar(name, value, loglevel)
        elif isinstance(value, str):
            self.add_string(name, value, loglevel)
        else:
            self.add_any(name, value, loglevel)

    def logs(self) -> Logs:
        """What the current step logged so far."""
        return self._logged


def _number(name: str, scalar: Any) -> float:
    if hasattr(scalar, "item") and getattr(scalar, "ndim", 0) <= 1:  # numpy or torch
        try:
            scalar = scalar.item()
        except (ValueError, RuntimeError):
            raise TypeError(f"{name!r} is no number but an array of shape {tuple(scalar.shape)}") from None
    if not isinstance(scalar, numbers.Real):
        raise TypeError(f"{name!r} is no number but {type(scalar).__name__}: {scalar!r}")
    return float(scalar)
