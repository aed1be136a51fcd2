"""Which candidate is worth what: their evaluations, the races between them, and who is the best.

Scores are honest. Candidates are compared on the same tasks; a rollout that was lost to infrastructure is left out of
the pairs it would be in, and said; the best is replaced on evidence.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import msgspec

from ..base import State
from .candidates import Candidate, CandidateBook, Cost, Score
from .evaluations import Evaluation, Evaluations
from .items import Item
from .promotion import Promotion, is_better
from .race import Race

log = logging.getLogger(__name__)


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
