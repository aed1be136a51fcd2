"""What a fine-tuning run gives back, and which of its steps was the best."""

import math
from collections.abc import Mapping
from typing import Any

Metrics = dict[str, float]

# The first of these that a run has tells which step was the best; a loss is better when it is smaller.
_MONITORS = ("val/reward", "val/loss", "reward", "loss")


class Record:
    """The newest value of every metric, and the metrics of the best step."""

    def __init__(self) -> None:
        self.final: Metrics = {}
        self.best: Metrics = {}
        self._monitor: str | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count the metrics of a step."""
        self.final |= metrics
        monitor = next((name for name in _MONITORS if name in metrics), None)
        if monitor is None or math.isnan(metrics[monitor]) or not self._is_better(monitor, metrics[monitor]):
            return
        self._monitor = monitor
        self.best = {"step": float(step), **metrics}

    def _is_better(self, monitor: str, value: float) -> bool:
        if self._monitor is None or _MONITORS.index(monitor) < _MONITORS.index(self._monitor):
            return True
        if monitor != self._monitor:
            return False
        return value < self.best[monitor] if monitor.endswith("loss") else value > self.best[monitor]

    def state_dict(self) -> dict[str, Any]:
        return {"final": dict(self.final), "best": dict(self.best), "monitor": self._monitor}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self.final, self.best, self._monitor = dict(state["final"]), dict(state["best"]), state["monitor"]
