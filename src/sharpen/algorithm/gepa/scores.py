"""Rewards as gepa gets them.

gepa compares sums of scores. On a grid of powers of two a sum is exact, so it does not depend on the order of the
tasks, and "better" never means a rounding error. For merges it draws lots weighted by mean scores, and fails where they
are not positive: then all scores are lifted by the same amount, which changes no comparison.
"""

import math
from collections.abc import Sequence

from ..prompts.evaluations import Evaluation

GRID = 2.0**-30
LEAST = 2.0**-20


class ScoreScale:
    def __init__(self, *, lift: float = 0.0) -> None:
        self._lift = lift

    @classmethod
    def for_merges(cls, seed: Sequence[Evaluation]) -> "ScoreScale":
        """With a lift that makes scores positive, also if some candidate is as far below 0 again as the seed."""
        worst = min((each.reward for each in seed if not each.is_lost), default=0.0)
        return cls(lift=_on_grid(LEAST - 2 * min(worst, 0.0)))

    def of(self, reward: float) -> float:
        return _on_grid(reward) + self._lift

    def of_all(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """One that was lost says nothing about the prompt: it gets the mean of the others."""
        known = [each.reward for each in evaluations if not each.is_lost]
        mean = math.fsum(known) / len(known) if known else 0.0
        return [self.of(mean if each.is_lost else each.reward) for each in evaluations]


def _on_grid(value: float) -> float:
    return round(value / GRID) * GRID
