"""Learning rates over the steps of a run. No torch."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import ConfigError

ScheduleKind = Literal["constant", "linear", "cosine"]
"""After the warm-up: as it is, or down to 0 at `total_steps` in a straight line or along a cosine."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`warmup_steps` steps lead up to the learning rate; the last of them has all of it."""

    learning_rate: float
    kind: ScheduleKind = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {self.learning_rate}: use 0 or more, such as 1e-6")
        if self.kind not in get_args(ScheduleKind):
            raise ConfigError(f"lr_scheduler is {self.kind!r}: use {', '.join(map(repr, get_args(ScheduleKind)))}")
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps is {self.warmup_steps}: use 0 or more")
        if self.kind != "constant" and (self.total_steps is None or self.total_steps < 1):
            raise ConfigError(
                f"lr_scheduler is {self.kind!r} and total_steps is {self.total_steps}: set the number of steps "
                "after which the learning rate is 0, or use 'constant'"
            )

    def at(self, step: int) -> float:
        """The learning rate of a step; the first is step 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.kind == "constant" or self.total_steps is None:
            return self.learning_rate
        way = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return self.learning_rate * (1 - way if self.kind == "linear" else (1 + math.cos(math.pi * way)) / 2)
