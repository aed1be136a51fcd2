"""How good a run was, from the rewards in its store: means per split with 95 % intervals, and differences of runs.

What is compared is a version of the resources: the one the run published last (`final`), or the latest that was tried
with the same prompts, and the one with the highest mean (`best`). Tasks are the observations: several rollouts of one
task are one mean, as they tell less than as many tasks. A rollout that failed by its agent's fault counts with its
reward, or 0; one that was lost, cancelled or has no reward says nothing.
"""

import hashlib
import itertools
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from ..stats import Decline, ended_worse, mean_interval, wilson_interval
from ..store import LightningStore
from ..types import AttemptedRollout, Rollout, RolloutMode
from .published import Prompts, Version, prompts_of, versions_with

Interval: TypeAlias = Literal["wilson", "t"]
Split: TypeAlias = dict[Version, "Evaluation"]

MAX_ROLLOUTS = 50_000  # the newest of a store; 1,000 take about 50 ms
_PAGE = 1000
_WHOLE_SHARE = 0.8  # of the tasks that the best known version was tried on


class Estimate(msgspec.Struct, frozen=True):
    """A mean reward, and the interval that holds the true one with 95 %."""

    mean: float
    low: float | None
    """None, as `high`, where one task says nothing about the spread."""
    high: float | None
    tasks: int
    rollouts: int
    interval: Interval | None = None
    resources_id: str | None = None
    resources_version: int | None = None


class Score(msgspec.Struct, frozen=True):
    """The rewards of one split of a run."""

    mode: str
    """`all` where the rollouts have none."""
    final: Estimate
    best: Estimate
    """Chosen for its mean among `versions`, so that mean is a little too high."""
    versions: int = 1


class Difference(msgspec.Struct, frozen=True):
    """How much higher the second run's final rewards are, on the tasks that both ran."""

    first: str
    second: str
    mode: str
    mean: float
    low: float | None
    high: float | None
    tasks: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class Evaluation:
    """The rewards of one version of the resources, by task."""

    def __init__(self) -> None:
        self.rewards: dict[bytes, list[float]] = defaultdict(list)
        self.earliest, self.latest = math.inf, -math.inf

    def add(self, rollout: Rollout, reward: float) -> None:
        self.rewards[_key(rollout)].append(reward)
        self.earliest = min(self.earliest, rollout.start_time)
        self.latest = max(self.latest, rollout.start_time)

    def means(self) -> dict[bytes, float]:
        return {key: math.fsum(values) / len(values) for key, values in self.rewards.items()}

    def estimate(self, version: Version = (None, None)) -> Estimate:
        means = list(self.means().values())
        is_share = all(value in (0.0, 1.0) for value in means)
        low, high = wilson_interval(int(sum(means)), len(means)) if is_share else mean_interval(means)
        is_known = math.isfinite(low)
        return Estimate(
            mean=math.fsum(means) / len(means),
            low=low if is_known else None,
            high=high if is_known else None,
            tasks=len(means),
            rollouts=sum(map(len, self.rewards.values())),
            interval=None if not is_known else "wilson" if is_share else "t",
            resources_id=version[0],
            resources_version=version[1],
        )


class RunRewards(msgspec.Struct):
    """The rewards of a run by split and version."""

    splits: dict[str, Split] = {}
    published: Version = (None, None)
    """What the run published last."""
    same_prompts: set[Version] = set()
    """Versions with the prompts of that."""
    is_partial: bool = False
    """Whether the store holds more rollouts than were looked at."""

    def scores(self) -> list[Score]:
        """One of every split, validation first."""
        return [self._score(mode) for mode in sorted(self.splits, key=_order)]

    def versions(self) -> set[Version]:
        """All that have rewards, in splits where what was published has none."""
        return {version for split in self.splits.values() if not self._has_published(split) for version in split}

    def final(self, mode: str) -> Evaluation:
        return self.splits[mode][self._final_version(mode)]

    def _final_version(self, mode: str) -> Version:
        split = self.splits[mode]
        if self._has_published(split):
            return self.published
        # Where nothing is known of what was published, it is what was tried last.
        return max(self.same_prompts & split.keys() or split, key=lambda version: split[version].latest)

    def _has_published(self, split: Split) -> bool:
        return self.published in split and self.published != (None, None)

    def _score(self, mode: str) -> Score:
        split, final = self.splits[mode], self._final_version(mode)
        most = max(len(each.rewards) for each in split.values())
        tried = [key for key, each in split.items() if key == final or len(each.rewards) >= _WHOLE_SHARE * most]
        estimates = {key: split[key].estimate(key) for key in tried}
        # Of equal ones the final version is named.
        best = max(tried, key=lambda version: (estimates[version].mean, version == final))
        return Score(mode, estimates[final], estimates[best], len(split))


async def read_rewards(
    store: LightningStore,
    *,
    published: Version = (None, None),
    best_prompts: Prompts | None = None,
    max_rollouts: int = MAX_ROLLOUTS,
    mode: RolloutMode | None = None,
    started_after: float | None = None,
) -> RunRewards:
    """The rewards in a store, of its newest rollouts. `best_prompts` are what counts where nothing is published yet."""
    found = RunRewards({}, published)
    count = 0
    async for rollout in _finished(store, mode, started_after):
        count += 1
        if count > max_rollouts:
            found.is_partial = True
            break
        reward = await _reward(store, rollout)
        if reward is not None and math.isfinite(reward):
            split = found.splits.setdefault(rollout.mode or "all", {})
            version = (rollout.resources_id, rollout.resources_version)
            split.setdefault(version, Evaluation()).add(rollout, reward)
    prompts = await prompts_of(store, published) or best_prompts or {}
    found.same_prompts = await versions_with(store, prompts, found.versions())
    return found


async def validation_decline(
    store: LightningStore, published: Version, *, started_after: float | None
) -> Decline | None:
    """How much worse the validation rewards of what a run published last are than those of what it tried first, paired
    by task; None where they are not clearly worse, or where there are not two measurements."""
    found = await read_rewards(store, published=published, mode="val", started_after=started_after)
    split = found.splits.get("val", {})
    if len(split) < 2 or found.is_partial:
        return None
    first = min(split.values(), key=lambda each: each.earliest)
    return ended_worse(first.means(), found.final("val").means())


def difference(names: tuple[str, str], mode: str, first: Evaluation, second: Evaluation) -> Difference | None:
    """A paired difference; None where no task is common to both."""
    ours, theirs = first.means(), second.means()
    gains = [theirs[key] - ours[key] for key in ours.keys() & theirs.keys()]
    if not gains:
        return None
    low, high = mean_interval(gains)
    is_known = math.isfinite(low)
    return Difference(
        first=names[0],
        second=names[1],
        mode=mode,
        mean=math.fsum(gains) / len(gains),
        low=low if is_known else None,
        high=high if is_known else None,
        tasks=len(gains),
    )


def differences(runs: Sequence[tuple[str, RunRewards]]) -> list[Difference]:
    """Every run against each later one, in the splits of both that are not for training, or in all where there is no
    other."""
    found = [
        difference((first, second), mode, ours.final(mode), theirs.final(mode))
        for (first, ours), (second, theirs) in itertools.combinations(runs, 2)
        for mode in _worth_comparing(ours.splits.keys() & theirs.splits.keys())
    ]
    return [each for each in found if each is not None]


def _worth_comparing(modes: Iterable[str]) -> list[str]:
    """Rewards of training are of ever other prompts or weights, and of tasks that were trained on."""
    held_out = [mode for mode in modes if mode != "train"]
    return sorted(held_out or modes, key=_order)


def _order(mode: str) -> tuple[int, str]:
    known = ("val", "test", "train")
    return (known.index(mode) if mode in known else len(known), mode)


async def _finished(
    store: LightningStore, mode: RolloutMode | None, started_after: float | None
) -> AsyncIterator[Rollout]:
    cursor: str | None = None
    while True:
        page = await store.search_rollouts(
            status_in=["succeeded", "failed"], mode=mode, started_after=started_after, cursor=cursor, limit=_PAGE
        )
        for rollout in page.items:
            yield rollout
        cursor = page.next_cursor
        if cursor is None:
            return


async def _reward(store: LightningStore, rollout: Rollout) -> float | None:
    if rollout.status == "succeeded":
        return rollout.reward
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    attempt = attempt or await store.get_latest_attempt(rollout.rollout_id)
    is_lost = attempt is not None and attempt.status == "unresponsive"
    return None if is_lost else rollout.reward or 0.0


def _key(rollout: Rollout) -> bytes:
    """What is equal for equal tasks."""
    return hashlib.blake2b(msgspec.json.encode(rollout.input, order="sorted"), digest_size=16).digest()
