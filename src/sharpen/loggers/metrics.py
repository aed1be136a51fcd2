"""`Metrics`: means of named values, each with a separate count.

    metrics = Metrics()
    metrics.namespace("train").add("loss", 0.5, count=32)
    metrics.means()                                          # {"train/loss": 0.5}

A name that only some steps report is averaged over those alone.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidInputError


class Metrics:
    """Sums values until their means are requested."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._prefix = ""

    def namespace(self, name: str) -> "Metrics":
        """Return a view in which every name begins with `name/`; values added there are added here."""
        view = Metrics()
        view._sums, view._prefix = self._sums, f"{self._prefix}{name}/"
        return view

    def add(self, name: str, value: float, *, count: float = 1) -> None:
        """Add a value; `count` is the number of things that a mean stands for."""
        if not count >= 0:
            raise InvalidInputError(
                f"the count of {name!r} is {count!r}: pass the number of things that the value stands for"
            )
        total, number = self._sums.get(self._prefix + name, (0.0, 0.0))
        if count:
            self._sums[self._prefix + name] = (total + as_number(name, value) * count, number + count)

    def add_all(self, values: Mapping[str, float], *, count: float = 1) -> None:
        for name, value in values.items():
            self.add(name, value, count=count)

    def merge(self, other: "Metrics") -> None:
        """Add the sums of another instance, for example from another process."""
        for name, (total, number) in other._own().items():
            mine, count = self._sums.get(self._prefix + name, (0.0, 0.0))
            self._sums[self._prefix + name] = (mine + total, count + number)

    def count(self, name: str) -> float:
        return self._sums.get(self._prefix + name, (0.0, 0.0))[1]

    def means(self) -> dict[str, float]:
        """Return the mean of every name in this namespace, under its full name."""
        return {self._prefix + name: total / number for name, (total, number) in self._own().items()}

    def clear(self) -> None:
        """Remove the values of this namespace."""
        for name in self._own():
            del self._sums[self._prefix + name]

    def state_dict(self) -> dict[str, Any]:
        return {name: list(pair) for name, pair in self._own().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self.clear()
        self._sums.update({self._prefix + name: (total, number) for name, (total, number) in state_dict.items()})

    def _own(self) -> dict[str, tuple[float, float]]:
        start = len(self._prefix)
        return {name[start:]: pair for name, pair in self._sums.items() if name.startswith(self._prefix)}


def as_number(name: str, value: object) -> float:
    """Return a plain float, also for a number of NumPy or torch."""
    if isinstance(value, str | bytes):
        raise InvalidInputError(f"the metric {name!r} is {value!r}, which is not a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"the metric {name!r} is {value!r}, which is not a number") from error


def as_numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: as_number(name, value) for name, value in metrics.items()}
