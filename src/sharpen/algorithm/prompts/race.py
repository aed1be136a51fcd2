"""Which candidate is better: races between candidates, and the scoreboard that runs them and names the best.

In a race all candidates are tried on the same items, which come in growing slices. After each slice every candidate is
compared with the `keep`-th best of those still in, on the items that both have met: how hard an item is drops out of
the difference. Who is worse by more than chance explains leaves, so later slices cost less. What always holds:

- All who are in have met the same items; an item whose reward was lost is left out of the pairs it would be in.
- At least `keep` stay in, and whoever is ahead of the `keep`-th best on their common items stays in.
- The same rewards give the same race. Nothing here is random: shuffle the items before, so that every slice is a fair
  sample of them.
- Only differences count, beside the range of the rewards seen: a race has the same course on any scale.
- The best is replaced on evidence, not on a lucky batch.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from ...checks import check_ints, check_number
from ...errors import ConfigError, InvalidInputError
from ...stats import check_confidence, mean_interval, t_quantile
from ..base import State
from .candidates import Candidate, CandidateBook, Cost, Score
from .evaluations import Evaluation, Evaluations, Item

log = logging.getLogger(__name__)

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
    """Successive elimination on paired differences, as the head of the module says.

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
        _check_names(names)
        check_ints(num_items=num_items, keep=keep, first_slice=first_slice)
        check_number("growth", growth, above=1)
        check_confidence(confidence)
        check_number("tolerance", tolerance, at_least=0, below=1)
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


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise ConfigError("names is empty: a race needs at least one candidate")
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ConfigError(f"names has {', '.join(map(repr, twice))} more than once: candidate names must be unique")


# -- who becomes the best --------------------------------------------------------------------------


Promotion = Literal["interval", "mean"]
ONE_SIDED = 0.9


def is_better(differences: Sequence[float], promotion: Promotion) -> bool:
    """Whether rewards are better by these differences, one for each task that both have met.

    With `interval` when the one-sided interval of 90 % of their mean is above 0, with `mean` when the mean is.
    """
    if not differences:
        return False
    if promotion == "mean":
        return math.fsum(differences) > 0
    # One-sided: what a two-sided interval leaves out below is half of what it leaves out.
    return mean_interval(differences, confidence=2 * ONE_SIDED - 1)[0] > 0


# -- the scoreboard --------------------------------------------------------------------------------


class Scoreboard:
    """The book of a search, kept up to date with what evaluations say. `saved` is what `state` gave."""

    def __init__(
        self,
        book: CandidateBook,
        evaluations: Evaluations,
        val_items: Sequence[Item],
        *,
        promotion: Promotion,
        saved: State | None = None,
    ) -> None:
        self.book, self._evaluations, self._val_items, self._promotion = book, evaluations, val_items, promotion
        saved = saved or {}
        self._met: dict[str, list[int]] = {version: list(each) for version, each in saved.get("met", {}).items()}
        self._making = {version: msgspec.convert(cost, Cost) for version, cost in saved.get("making", {}).items()}
        self._known: dict[str, dict[int, Evaluation]] = {}

    def state(self) -> State:
        """What was paid for to make each candidate, and the validation tasks that it has met."""
        return {"met": self._met, "making": msgspec.to_builtins(self._making)}

    def add(self, candidate: Candidate) -> Candidate:
        """A new candidate; its cost is what it took to make it, to which its evaluations are added."""
        self._making[candidate.version] = candidate.cost
        return self.book.add(candidate)

    # -- evaluating ----------------------------------------------------------------------------------

    async def evaluate(self, version: str, items: Sequence[Item]) -> list[Evaluation]:
        """A candidate on validation tasks; its score and its cost in the book are then up to date."""
        await self._recall(version)
        found = await self._evaluations.evaluate(self.book.get(version).prompts, items)
        self._take(version, found)
        return found

    async def _recall(self, version: str) -> None:
        """What an earlier life of the run has paid for, from the store."""
        if version in self._known:
            return
        items = [self._val_items[index] for index in self._met.get(version, ()) if index < len(self._val_items)]
        found = await self._evaluations.evaluate(self.book.get(version).prompts, items)
        self._known.setdefault(version, {})  # not before: whoever asks meanwhile must not miss what was found
        if found:
            self._take(version, found)

    def _take(self, version: str, found: Sequence[Evaluation]) -> None:
        known = self._known[version]
        known |= {each.item.index: each for each in found}
        self._met[version] = sorted(known)
        rewards = [each.reward for each in known.values() if not each.is_lost]
        cost = sum((each.cost for each in known.values()), self._making.get(version, Cost()))
        self.book.update(version, score=Score.of(rewards) if rewards else None, cost=cost)

    # -- comparing -----------------------------------------------------------------------------------

    async def race(self, versions: Sequence[str], items: Sequence[Item], *, keep: int) -> list[str]:
        """Compare candidates on the same tasks and drop the clearly worse; gives those that are kept, best first."""
        race = await self._run(Race(versions, num_items=len(items), keep=keep), items)
        kept = [each for each in race.ranking() if each in race.alive][:keep]
        if len(kept) > 1:  # for a place in the beam they need no further tasks, for the lead they do
            kept = (await self._run(Race(kept, num_items=len(items), keep=1), items)).ranking()
        for version in versions:
            self._mark(version, None if version in kept else race.dropped.get(version, f"not among the best {keep}"))
        return kept

    async def _run(self, race: Race, items: Sequence[Item]) -> Race:
        while (cut := race.next_slice()) is not None:
            await side_by_side(*(self._run_slice(race, name, cut.items, items) for name in cut.names))
        return race

    async def _run_slice(self, race: Race, version: str, positions: range, items: Sequence[Item]) -> None:
        found = await self.evaluate(version, [items[position] for position in positions])
        for position, each in zip(positions, found, strict=True):
            race.add(version, position, None if each.is_lost else each.reward)

    def _mark(self, version: str, why_dropped: str | None) -> None:
        if self.book.get(version).status != "best":
            self.book.update(version, status="dropped" if why_dropped else "kept", reason=why_dropped)

    async def challenge(self, version: str) -> bool:
        """Score a candidate on all validation tasks; it becomes the best if it beats the best on evidence."""
        best = self.book.best.version
        if version == best:
            return False
        await self.evaluate(version, self._val_items)
        await self._recall(best)
        is_promoted = is_better(self._differences(version, best), self._promotion)
        verdict = "is better than" if is_promoted else "is not clearly better than"
        log.info("%s (%s) %s %s (%s)", version, self.score_text(version), verdict, best, self.score_text(best))
        if is_promoted:
            self.book.best_version = version
        return is_promoted

    def _differences(self, version: str, other: str) -> list[float]:
        """On the tasks that both have met; the best may have met a part of them, when the seed was not validated."""
        mine, theirs = self._known[version], self._known[other]
        common = [i for i in mine if i in theirs and not mine[i].is_lost and not theirs[i].is_lost]
        return [mine[i].reward - theirs[i].reward for i in common]

    def unproven(self) -> str | None:
        """The candidate with the highest mean on all validation tasks, where that is above the best's."""
        means = {
            each.version: each.score.mean
            for each in self.book
            if each.score and each.score.count == len(self._val_items)
        }
        best = means.get(self.book.best.version)
        leader = max(means, key=lambda version: means[version], default=None)
        return leader if leader is not None and best is not None and means[leader] > best else None

    async def perfect_version(self, reward: float) -> str | None:
        """Return a candidate with at least this reward on every validation task, the best before others."""
        scored = [each for each in self.book if each.score and each.score.count == len(self._val_items)]
        reached = [each.version for each in scored if each.score and _reaches(each.score.mean, reward)]
        for version in sorted(reached, key=lambda version: version != self.book.best.version):
            await self._recall(version)
            rewards = [each.reward for each in self._known[version].values() if not each.is_lost]
            if len(rewards) == len(self._val_items) and all(_reaches(each, reward) for each in rewards):
                return version
        return None

    def only_failures(self) -> str | None:
        """The first error, where every rollout of every candidate failed by the agent's fault so far."""
        found = [each for known in self._known.values() for each in known.values() if not each.is_lost]
        if not found or any(each.status != "failed" for each in found):
            return None
        return found[0].error

    # -- telling -------------------------------------------------------------------------------------

    def score_text(self, version: str) -> str:
        score = self.book.get(version).score
        return "not scored" if score is None else score.text()

    def metrics(self) -> dict[str, float]:
        """Of the best, as far as it is scored."""
        best = self.book.best
        if best.score is None:
            return {}
        score, lost = best.score, sum(each.is_lost for each in self._known.get(best.version, {}).values())
        found = {"reward_mean": score.mean, "reward_low": score.low, "reward_high": score.high}
        return {
            **{name: value for name, value in found.items() if value is not None},
            "rollouts": score.count + lost,
            "lost": lost,
        }


def _reaches(reward: float, wanted: float) -> bool:
    """Rewards are sums and quotients of floats: 0.9999999999999999 is meant to be 1."""
    return reward >= wanted or math.isclose(reward, wanted, rel_tol=1e-9, abs_tol=1e-9)


def cost_metrics(cost: Cost) -> Mapping[str, float]:
    found: dict[str, float] = {
        "rollouts_total": cost.rollouts,
        "calls_total": cost.calls,
        "tokens_total": cost.input_tokens + cost.output_tokens,
    }
    return found if cost.dollars is None else {**found, "dollars_total": cost.dollars}


async def side_by_side(*work: Awaitable[Any]) -> list[Any]:
    """All results; after the first error the others are broken off before it is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
