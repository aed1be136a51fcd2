"""Running mean and variance of everything seen so far."""

from typing import Any

import numpy as np
import numpy.typing as npt


class RunningMoments:
    """Mean and variance over all batches, merged exactly; before the first batch they are 0 and 1."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.variance = 1.0
        self.count = 0

    @property
    def std(self) -> float:
        return float(np.sqrt(self.variance + np.finfo(np.float32).eps))

    def update(self, value_T: npt.NDArray[Any]) -> None:
        """Count the values of one batch."""
        fresh = len(value_T)
        if fresh == 0:
            return
        total = self.count + fresh
        gap = float(np.mean(value_T)) - self.mean
        squares = float(np.var(value_T)) * fresh + self.variance * self.count + gap**2 * self.count * fresh / total
        self.mean += gap * fresh / total
        self.variance = squares / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.variance, self.count = float(state["mean"]), float(state["variance"]), int(state["count"])
