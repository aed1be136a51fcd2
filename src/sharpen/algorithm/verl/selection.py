"""Whether what is learned from is like what was sampled: a training that drops slow rollouts prefers the others.

Everything that was asked for is waited for, so what is compared should differ from what was sampled by no more than
what was lost to infrastructure or could not be trained. Of what is compared, groups without spread give no gradient:
what is trained differs from it in its rewards, as it must.
"""

import math
from collections.abc import Mapping, Sequence, Set
from itertools import compress
from typing import Any

from .collected import CollectedRollout

KINDS = ("sampled", "compared", "trained")
MEASURES = ("length", "reward")


class Selection:
    """Counts, sums and squares of the lengths and rewards of all rollouts of a run."""

    def __init__(self, sums: Mapping[str, Sequence[float]] | None = None) -> None:
        names = [f"{kind}/{measure}" for kind in KINDS for measure in MEASURES]
        self._sums: dict[str, list[float]] = {name: list((sums or {}).get(name, (0.0, 0.0, 0.0))) for name in names}

    def state(self) -> dict[str, Any]:
        return {name: list(each) for name, each in self._sums.items()}

    def add(self, rollouts: Sequence[CollectedRollout], trained: Set[str]) -> None:
        """`trained` are the ids of those that an update was made from. A rollout that is compared has a reward, and
        something that can be trained."""
        for rollout in rollouts:
            is_compared = rollout.counts and any(sample.num_trained for sample in rollout.samples)
            is_of_kind = (True, is_compared, rollout.rollout_id in trained)
            for kind in compress(KINDS, is_of_kind):
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
