"""Whether what is trained is like what was sampled: a training that drops slow or long rollouts prefers the others.

Everything that was asked for is waited for, so the two should differ by no more than what was lost to infrastructure.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .collected import CollectedRollout

KINDS = ("sampled", "trained")
MEASURES = ("length", "reward")


class Selection:
    """Counts, sums and squares of the lengths and rewards of all rollouts of a run."""

    def __init__(self, sums: Mapping[str, Sequence[float]] | None = None) -> None:
        names = [f"{kind}/{measure}" for kind in KINDS for measure in MEASURES]
        self._sums: dict[str, list[float]] = {name: list((sums or {}).get(name, (0.0, 0.0, 0.0))) for name in names}

    def state(self) -> dict[str, Any]:
        return {name: list(each) for name, each in self._sums.items()}

    def add(self, rollouts: Sequence[CollectedRollout]) -> None:
        """A rollout without a reward, or lost, was sampled and is not trained."""
        for rollout in rollouts:
            for kind in KINDS if rollout.counts else KINDS[:1]:
                self._add(f"{kind}/length", float(sum(rollout.response_lengths)))
                if rollout.reward is not None:
                    self._add(f"{kind}/reward", rollout.reward)

    def _add(self, name: str, value: float) -> None:
        sums = self._sums[name]
        sums[0] += 1
        sums[1] += value
        sums[2] += value * value

    def metrics(self) -> dict[str, float]:
        """The means so far."""
        return {f"{name}_mean": sums[1] / sums[0] for name, sums in self._sums.items() if sums[0]}

    def in_words(self) -> str:
        """One line for the end of a run."""
        return "; ".join(f"{kind}: {self._of(kind)}" for kind in KINDS)

    def _of(self, kind: str) -> str:
        count = int(self._sums[f"{kind}/length"][0])
        parts = [f"{measure} {_mean(self._sums[f'{kind}/{measure}'])}" for measure in MEASURES]
        return f"{count} rollouts, mean {', '.join(parts)}"


def _mean(sums: Sequence[float]) -> str:
    """With its standard error."""
    count, total, squares = sums
    if not count:
        return "-"
    mean = total / count
    spread = math.sqrt(max(0.0, squares / count - mean * mean) / count)
    return f"{mean:.4g} ± {spread:.2g}"
