"""The demonstrations that were found, and what rollouts came to while they were looked for.

Which reward is a success is known only from others: without `min_reward` it is the highest that was seen, or next to
it, and above the mean of all. It may rise while more is seen, and then what was good enough no longer is.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..base import State
from .demonstration import Demonstration

NEXT_TO = 0.05
"""Of the range of rewards: rewards that are so near the highest count as it. Few agents have the same one twice."""


class Found(msgspec.Struct, frozen=True):
    """A demonstration and the place of its task in the training set."""

    demonstration: Demonstration
    index: int


class Pool:
    """What was found so far, in the order of finding."""

    def __init__(self, *, min_reward: float | None, state: State | None = None) -> None:
        state = state or {}
        self._min_reward = min_reward
        self._found: dict[str, Found] = {
            each.demonstration.rollout_id: each for each in msgspec.convert(state.get("found", []), list[Found])
        }
        self._counts = {float(reward): int(count) for reward, count in state.get("rewards", [])}
        self.unfit: dict[str, int] = dict(state.get("unfit", {}))
        """Why rollouts that succeeded could not be shown, and how many."""

    def state(self) -> State:
        return {
            "found": msgspec.to_builtins(list(self._found.values())),
            "rewards": sorted([reward, count] for reward, count in self._counts.items()),
            "unfit": self.unfit,
        }

    # -- rewards -------------------------------------------------------------------------------------

    @property
    def num_seen(self) -> int:
        return sum(self._counts.values())

    @property
    def highest(self) -> float | None:
        return max(self._counts, default=None)

    @property
    def is_all_the_same(self) -> bool:
        """Whether every reward was one and the same, which tells nothing."""
        return len(self._counts) == 1

    def see(self, rewards: Sequence[float]) -> None:
        for reward in rewards:
            self._counts[reward] = self._counts.get(reward, 0) + 1

    def is_success(self, reward: float) -> bool:
        if self._min_reward is not None:
            return reward >= self._min_reward
        if not self._counts:
            return False
        low, high = min(self._counts), max(self._counts)
        mean = math.fsum(each * count for each, count in self._counts.items()) / self.num_seen
        return reward > mean and reward >= high - NEXT_TO * (high - low)

    # -- demonstrations ------------------------------------------------------------------------------

    def add(self, demonstration: Demonstration, index: int) -> bool:
        """Whether it shows something new."""
        if any(each.content == demonstration.content for each in self._all()):
            return False
        self._found[demonstration.rollout_id] = Found(demonstration, index)
        return True

    def count_unfit(self, reason: str) -> None:
        self.unfit[reason] = self.unfit.get(reason, 0) + 1

    @property
    def has_any(self) -> bool:
        """Whether any was found, though others may be better by now."""
        return bool(self._found)

    def usable(self) -> list[Demonstration]:
        """Those that count as successes now."""
        return [each for each in self._all() if self.is_success(each.reward)]

    def solved(self) -> set[int]:
        """The training tasks that a usable one is about."""
        return {each.index for each in self._found.values() if self.is_success(each.demonstration.reward)}

    def get(self, rollout_ids: Sequence[str]) -> list[Demonstration]:
        return [self._found[each].demonstration for each in rollout_ids]

    def _all(self) -> Iterator[Demonstration]:
        return (each.demonstration for each in self._found.values())

    def summary(self) -> dict[str, Any]:
        """For the metrics of a round."""
        return {"demonstrations": len(self.usable()), "explored": self.num_seen}
