"""A race between candidates: all are tried on the same items, and the clearly worse ones leave early.

Items come in growing slices. After each slice every candidate is compared with the `keep`-th best of those still in, on
the items that both have met: how hard an item is drops out of the difference. Who is worse by more than chance explains
leaves, so later slices cost less. What it keeps:

- All who are in have met the same items; an item whose reward was lost is left out of the pairs it would be in.
- At least `keep` stay in, and whoever is ahead of the `keep`-th best on their common items stays in.
- The same rewards give the same race. Nothing here is random: shuffle the items before, so that every slice is a fair
  sample of them.
- Only differences count, beside the range of the rewards seen: a race has the same course on any scale.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...errors import ConfigError, InvalidInputError
from ...stats import check_confidence, t_quantile

# Chosen on the development tasks of `benchmarks/apo.py`, as were the defaults of `Race`.
_LEAST_FIRST_SLICE = 6
_FIRST_SHARE = 1 / 12
_IMAGINED = 0.25  # of a win
_USUAL_FREEDOM = 8  # the most


@dataclass(frozen=True)
class Slice:
    """What to evaluate next: every one of `names` on every position of `items`."""

    names: tuple[str, ...]
    items: range


class Race:
    """Successive elimination on paired differences. See the module's head.

    Ask for a slice, add a reward for each of its names and items in any order, and so on until there is none. It is
    over when only `keep` are left, however little is known of them, or when all of `num_items` are met.

    `confidence` is that of a single comparison, one-sided. With a `tolerance`, a share of the range of the rewards,
    those who are behind go also while they may still turn out better by that much: quicker among near equals.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        num_items: int,
        keep: int = 1,
        first_slice: int | None = None,
        growth: float = 1.5,
        confidence: float = 0.95,
        tolerance: float = 0.0,
    ) -> None:
        _check(names, num_items, keep, first_slice, growth, confidence, tolerance)
        self.num_items, self.keep = num_items, keep
        self.confidence, self.tolerance, self._growth = confidence, tolerance, growth
        self.alive = list(names)
        self.dropped: dict[str, str] = {}
        self._first = first_slice or max(_LEAST_FIRST_SLICE, math.ceil(num_items * _FIRST_SHARE))
        self._rewards: dict[str, dict[int, float | None]] = {name: {} for name in names}
        self._low, self._high = math.inf, -math.inf
        self._met = 0  # items that all who are in have met
        self._slice: Slice | None = None

    # -- running it ----------------------------------------------------------------------------------

    def next_slice(self) -> Slice | None:
        """What to evaluate next, or None when it is over. Asked again before all of it was added, it is the same."""
        if self._slice is None and self._met < self.num_items and len(self.alive) > self.keep:
            self._slice = Slice(tuple(self.alive), range(self._met, self._next_end()))
        return self._slice

    def _next_end(self) -> int:
        end = self._first if self._met == 0 else math.ceil(self._met * self._growth)
        # Every slice waits for its slowest rollout, which a few last items are not worth.
        is_last = end + (end - self._met) / 2 >= self.num_items
        return self.num_items if is_last else end

    def add(self, name: str, position: int, reward: float | None) -> None:
        """The reward of `name` on an item of the slice, None where it was lost. The last one of a slice judges it."""
        self._check_reward(name, position, reward)
        self._rewards[name][position] = reward
        if reward is not None:
            self._low, self._high = min(self._low, reward), max(self._high, reward)
        current = self._slice
        if current is not None and all(len(self._rewards[other]) == current.items.stop for other in current.names):
            self._met, self._slice = current.items.stop, None
            self._judge()

    def _check_reward(self, name: str, position: int, reward: float | None) -> None:
        if name not in self._rewards:
            raise InvalidInputError(f"{name!r} is not in this race: it has {', '.join(map(repr, self._rewards))}")
        if self._slice is None or name not in self._slice.names or position not in self._slice.items:
            asked = "nothing" if self._slice is None else f"{self._slice.items} of {', '.join(self._slice.names)}"
            raise InvalidInputError(
                f"the reward of {name!r} on item {position} was not requested: next_slice() has {asked}"
            )
        if position in self._rewards[name]:
            raise InvalidInputError(f"{name!r} already has a reward on item {position}: add each reward once")
        if reward is not None and not math.isfinite(reward):
            raise InvalidInputError(
                f"the reward of {name!r} on item {position} is {reward}: use a number, or None if it was lost"
            )

    # -- what came of it -----------------------------------------------------------------------------

    def mean(self, name: str) -> float | None:
        """Over the rewards that were not lost; None without any."""
        rewards = [reward for reward in self._rewards[name].values() if reward is not None]
        return math.fsum(rewards) / len(rewards) if rewards else None

    def ranking(self) -> list[str]:
        """Best first: those still in, then the dropped, the last to go first. Equals keep the order they came in."""
        return [*self._by_lead(self.alive), *reversed(self.dropped)]

    # -- judging -------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Drop who is clearly worse than the `keep`-th best. With all items met there is nothing left to save."""
        if self._met == self.num_items or len(self.alive) <= self.keep:
            return
        ranked = self._by_lead(self.alive)
        opponent = ranked[self.keep - 1]
        pairs = {name: self._pairs(opponent, name) for name in ranked[self.keep :]}
        usual = Usual.of(list(pairs.values()))
        # The worst first, so that the last to go is the best of the dropped.
        for name, each in reversed(pairs.items()):
            if each.mean > 0 and each.bound(self.num_items, self.confidence, usual) > -self.tolerance:
                lead = each.mean * (self._high - self._low)
                self.dropped[name] = (
                    f"worse than {opponent} by {lead:.3g} on the {each.count} items that both were evaluated on"
                )
                self.alive.remove(name)

    def _by_lead(self, names: list[str]) -> list[str]:
        """Sorted by how far they are ahead of the others on the items they have a reward on. Without one: last."""
        leads: dict[str, list[float]] = {name: [] for name in names}
        for position in range(self._met):
            found = {name: reward for name in names if (reward := self._rewards[name][position]) is not None}
            middle = math.fsum(found.values()) / max(1, len(found))
            for name, reward in found.items():
                leads[name].append(reward - middle)
        return sorted(names, key=lambda name: self._rounded_mean(leads[name]), reverse=True)

    def _rounded_mean(self, leads: list[float]) -> float:
        """As a share of the range, less digits than rounding errors have: equals must come out equal."""
        spread = self._high - self._low
        if not leads:
            return -math.inf
        return round(math.fsum(leads) / len(leads) / spread, 12) if spread else 0.0

    def _pairs(self, opponent: str, name: str) -> "Pairs":
        """As shares of the range, with which squares of rewards of any size stay finite."""
        both = [(self._rewards[opponent][at], self._rewards[name][at]) for at in range(self._met)]
        spread = (self._high - self._low) or 1.0
        return Pairs([(first - second) / spread for first, second in both if first is not None and second is not None])


class Pairs:
    """By how much one is ahead of another on the items that both have met, as shares of the range of the rewards."""

    def __init__(self, leads: Sequence[float]) -> None:
        self.count = len(leads)
        self.mean = _mean(leads)
        # Wins in a row have no spread, and are no certainty: a part of a win for either side is imagined beside them.
        self._weight = self.count + 2 * _IMAGINED
        self._middle = math.fsum(leads) / self._weight
        squares = math.fsum((lead - self._middle) ** 2 for lead in leads)
        squares += _IMAGINED * ((1 - self._middle) ** 2 + (1 + self._middle) ** 2)
        self.variance = squares / max(1.0, self._weight - 1)

    @property
    def freedom(self) -> int:
        return max(1, self.count - 1)

    def bound(self, num_items: int, confidence: float, usual: "Usual") -> float:
        """What the mean over all `num_items` is at least, with this confidence (one-sided).

        Few pairs say little about their variance, so it is mixed with what is usual in this race. The interval closes
        as the items run out, as there is then nothing left to guess.
        """
        freedom = self.freedom + usual.freedom
        variance = (self.freedom * self.variance + usual.freedom * usual.variance) / freedom
        unseen = max(0.0, 1 - self.count / num_items)
        return self._middle - _t(confidence, freedom) * math.sqrt(variance * unseen / self._weight)


@dataclass(frozen=True)
class Usual:
    """The variance of pairs that is usual in a race, and how many pairs' worth of knowledge that is."""

    variance: float
    freedom: int

    @classmethod
    def of(cls, pairs: Sequence[Pairs]) -> "Usual":
        known = [each for each in pairs if each.count]
        # To each of them only the others are news: a single one has nothing to lean on.
        others = sum(sorted(each.freedom for each in known)[:-1])
        return cls(_mean([each.variance for each in known]), min(_USUAL_FREEDOM, others))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


@lru_cache(maxsize=4096)
def _t(share: float, freedom: int) -> float:
    return t_quantile(share, freedom)


def _check(
    names: Sequence[str],
    num_items: int,
    keep: int,
    first_slice: int | None,
    growth: float,
    confidence: float,
    tolerance: float,
) -> None:
    if not names:
        raise ConfigError("names is empty: a race needs at least one candidate")
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ConfigError(f"names has {', '.join(map(repr, twice))} more than once: candidate names must be unique")
    for what, value in (("num_items", num_items), ("keep", keep), ("first_slice", first_slice)):
        if value is not None and value < 1:
            raise ConfigError(f"{what} is {value}: use 1 or more")
    if not growth > 1 or not math.isfinite(growth):
        raise ConfigError(f"growth is {growth}: use a number above 1, so that slices grow")
    check_confidence(confidence)
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance}: use a fraction of the reward range, at least 0 and below 1")
