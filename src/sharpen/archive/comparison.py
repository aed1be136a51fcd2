"""Compare runs: rewards per split with 95 % intervals, paired differences, metrics, and settings that differ.

Rewards come from the store of a run, and what is compared is a version of its resources: the one that the run published
last (`final`), or the latest one tried with the same prompts, and the one with the highest mean (`best`). A prompt
search tries every candidate as a separate version and publishes the best once more at its end, so the rewards of what
was published may be those of an earlier version.

Tasks are the observations: several rollouts of one task count as one mean, as they say less than as many tasks. A
rollout that failed because of its agent counts with its reward, or 0; one that was lost, was cancelled or has no reward
does not count.
"""

import asyncio
import contextlib
import hashlib
import itertools
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from ..errors import ConfigError, SharpenError
from ..runs.folder import EARLIER
from ..stats import Decline, ended_worse, mean_interval, wilson_interval
from ..store import LightningStore
from ..types import AttemptedRollout, NamedResources, PromptTemplate, Rollout, RolloutMode
from .catalog import RunEntry
from .curves import Series, is_loss, main_metrics, read_curves
from .lookup import RolloutFilters, matching_rollouts, open_store
from .run_files import RunFiles

Interval: TypeAlias = Literal["wilson", "t"]
Version: TypeAlias = tuple[str | None, int | None]
"""The id and the version of resources."""
Prompts: TypeAlias = Mapping[str, PromptTemplate]
Split: TypeAlias = dict[Version, "Evaluation"]
StoreOf: TypeAlias = Callable[[RunEntry], AbstractAsyncContextManager[LightningStore]]

MAX_ROLLOUTS = 50_000  # the newest of a store; 1,000 take about 50 ms
_PAGE = 1000
_CONCURRENT_READS = 32
_WHOLE_SHARE = 0.8  # of the tasks that the most evaluated version was tried on

# Settings that differ in every run or on every machine.
_NOT_COMPARED = ("started", "resumed", EARLIER, "name", "run_dir", "output_dir", "environment")


class Estimate(msgspec.Struct, frozen=True):
    """A mean reward with its 95 % interval."""

    mean: float
    low: float | None
    """None, like `high`, if there is only one task: it says nothing about the spread."""
    high: float | None
    tasks: int
    rollouts: int
    interval: Interval | None = None
    resources_id: str | None = None
    resources_version: int | None = None


class Score(msgspec.Struct, frozen=True):
    """The rewards of one split of a run."""

    mode: str
    """`all` if the rollouts have none."""
    final: Estimate
    best: Estimate
    """Selected for its mean among `versions`, so the mean is slightly too high."""
    versions: int = 1


class Difference(msgspec.Struct, frozen=True):
    """How much higher the final rewards of the second run are, on the tasks that both ran."""

    first: str
    second: str
    mode: str
    mean: float
    low: float | None
    high: float | None
    tasks: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class MetricSummary(msgspec.Struct, frozen=True):
    """The final and the best value of a metric; a lower loss is better."""

    final: float
    best: float | None = None
    """None if it is neither a reward nor a loss."""
    best_step: float | None = None


class ComparedRun(msgspec.Struct, frozen=True):
    name: str
    state: str
    algorithm: str | None
    seconds: float | None
    scores: list[Score] = []
    metrics: dict[str, MetricSummary] = {}
    is_partial: bool = False
    """Whether only the newest rollouts of its store were read."""
    problem: str | None = None
    """Why its store has no scores."""

    def score(self, mode: str) -> Score | None:
        return next((each for each in self.scores if each.mode == mode), None)


class SettingDifference(msgspec.Struct, frozen=True):
    """A setting that is not the same in all runs; None if a run does not have it."""

    name: str
    values: list[str | None]


class Comparison(msgspec.Struct, frozen=True):
    """Runs in the given order."""

    runs: list[ComparedRun]
    differences: list[Difference] = []
    settings: list[SettingDifference] = []

    @property
    def modes(self) -> list[str]:
        """All splits that any run has rewards for."""
        return list(dict.fromkeys(score.mode for run in self.runs for score in run.scores))

    @property
    def metric_names(self) -> list[str]:
        return main_metrics({name for run in self.runs for name in run.metrics})


async def compare(
    entries: Sequence[RunEntry], *, store_of: StoreOf | None = None, max_rollouts: int = MAX_ROLLOUTS
) -> Comparison:
    """Compare runs by the newest rollouts of each; `store_of` opens their stores if these are not files."""
    if not entries:
        raise ConfigError("no run to compare; give two or more")
    names = [entry.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"run {twice!r} is given twice; give each run once")
    runs, rewards = [], []
    for entry in entries:
        found, problem = await _rewards_of(entry, store_of, max_rollouts)
        rewards.append((entry.name, found))
        runs.append(_compared(entry, found, problem))
    return Comparison(runs, differences(rewards), setting_differences([entry.config() for entry in entries]))


async def _rewards_of(entry: RunEntry, store_of: StoreOf | None, max_rollouts: int) -> "tuple[RunRewards, str | None]":
    if not entry.has_store and (store_of is None or entry.kind != "agents"):
        return RunRewards(), None
    try:
        async with (store_of or _store_file)(entry) as store:
            found = await read_rewards(
                store,
                published=published_version(entry),
                best_prompts=best_prompts(entry),
                max_rollouts=max_rollouts,
            )
            return found, None
    except (SharpenError, OSError) as error:  # the other runs can still be compared
        return RunRewards(), f"its store cannot be read: {error}"


@contextlib.asynccontextmanager
async def _store_file(entry: RunEntry) -> AsyncIterator[LightningStore]:
    async with open_store(str(entry.store_path)) as opened:
        yield opened.store


def _compared(entry: RunEntry, rewards: "RunRewards", problem: str | None) -> ComparedRun:
    return ComparedRun(
        name=entry.name,
        state=entry.state,
        algorithm=entry.algorithm,
        seconds=entry.seconds,
        scores=_with_reported(rewards.scores(), reported_estimate(entry)),
        metrics=summaries(entry),
        is_partial=rewards.is_partial,
        problem=problem,
    )


# -- rewards -----------------------------------------------------------------------------------------


class Evaluation:
    """The rewards of one version of the resources, by task."""

    def __init__(self) -> None:
        self.rewards: dict[bytes, list[float]] = defaultdict(list)
        self.earliest, self.latest = math.inf, -math.inf

    def add(self, rollout: Rollout, reward: float) -> None:
        self.rewards[_task_key(rollout)].append(reward)
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
    """The version that the run published last."""
    same_prompts: set[Version] = set()
    """Versions with the prompts of that one."""
    is_partial: bool = False
    """Whether the store holds more rollouts than were read."""

    def scores(self) -> list[Score]:
        """Return the score of every split, validation first."""
        return [self._score(mode) for mode in sorted(self.splits, key=_mode_order)]

    def versions(self) -> set[Version]:
        """Return the versions with rewards in splits where the published one has none."""
        return {version for split in self.splits.values() if not self._has_published(split) for version in split}

    def final(self, mode: str) -> Evaluation:
        return self.splits[mode][self._final_version(mode)]

    def _final_version(self, mode: str) -> Version:
        split = self.splits[mode]
        if self._has_published(split):
            return self.published
        # If nothing is known of what was published, the latest one counts.
        return max(self.same_prompts & split.keys() or split, key=lambda version: split[version].latest)

    def _has_published(self, split: Split) -> bool:
        return self.published in split and self.published != (None, None)

    def _score(self, mode: str) -> Score:
        split, final = self.splits[mode], self._final_version(mode)
        most = max(len(each.rewards) for each in split.values())
        tried = [key for key, each in split.items() if key == final or len(each.rewards) >= _WHOLE_SHARE * most]
        estimates = {key: split[key].estimate(key) for key in tried}
        # Of equal ones the final version wins.
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
    """Return the rewards of the newest rollouts in a store.

    `best_prompts` determine the final version if nothing is published yet.
    """
    found = RunRewards({}, published)
    count = 0
    filters: RolloutFilters = {"status_in": ["succeeded", "failed"], "order": "newest"}
    if mode is not None:
        filters["mode"] = mode
    if started_after is not None:
        filters["started_after"] = started_after
    async for rollout in matching_rollouts(store, filters, page_size=_PAGE):
        count += 1
        if count > max_rollouts:
            found.is_partial = True
            break
        reward = await _reward(store, rollout)
        if reward is not None and math.isfinite(reward):
            split = found.splits.setdefault(rollout.mode or "all", {})
            version = (rollout.resources_id, rollout.resources_version)
            split.setdefault(version, Evaluation()).add(rollout, reward)
    prompts = await _prompts_of(store, published) or best_prompts or {}
    found.same_prompts = await _versions_with(store, prompts, found.versions())
    return found


async def validation_decline(
    store: LightningStore, published: Version, *, started_after: float | None
) -> Decline | None:
    """Return how much worse the validation rewards of the published version are than those of the first one tried.

    They are paired by task. None if they are not clearly worse, or if there are fewer than two measurements.
    """
    found = await read_rewards(store, published=published, mode="val", started_after=started_after)
    split = found.splits.get("val", {})
    if len(split) < 2 or found.is_partial:
        return None
    first = min(split.values(), key=lambda each: each.earliest)
    return ended_worse(first.means(), found.final("val").means())


def difference(names: tuple[str, str], mode: str, first: Evaluation, second: Evaluation) -> Difference | None:
    """Return the paired difference; None if the two have no task in common."""
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
    """Compare every run with each later one, in their common splits other than training, or in all if there is no
    other."""
    found = [
        difference((first, second), mode, ours.final(mode), theirs.final(mode))
        for (first, ours), (second, theirs) in itertools.combinations(runs, 2)
        for mode in _comparable_modes(ours.splits.keys() & theirs.splits.keys())
    ]
    return [each for each in found if each is not None]


def _comparable_modes(modes: Iterable[str]) -> list[str]:
    """Training rewards are of changing prompts or weights, and of tasks that were trained on."""
    held_out = [mode for mode in modes if mode != "train"]
    return sorted(held_out or modes, key=_mode_order)


def _mode_order(mode: str) -> tuple[int, str]:
    known = ("val", "test", "train")
    return (known.index(mode) if mode in known else len(known), mode)


async def _reward(store: LightningStore, rollout: Rollout) -> float | None:
    if rollout.status == "succeeded":
        return rollout.reward
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    attempt = attempt or await store.get_latest_attempt(rollout.rollout_id)
    is_lost = attempt is not None and attempt.status == "unresponsive"
    return None if is_lost else rollout.reward or 0.0


def _task_key(rollout: Rollout) -> bytes:
    """Return equal keys for equal tasks."""
    return hashlib.blake2b(msgspec.json.encode(rollout.input, order="sorted"), digest_size=16).digest()


# -- published versions ------------------------------------------------------------------------------


class _Candidate(msgspec.Struct):
    version: str
    prompts: dict[str, PromptTemplate]


class _Candidates(msgspec.Struct):
    candidates: list[_Candidate]
    best_version: str | None = None


def published_version(entry: RunEntry) -> Version:
    """Return the version that the result of a run names; none while it runs, as the result is of an earlier start."""
    if entry.state not in ("succeeded", "failed", "interrupted"):
        return None, None
    result = RunFiles(entry.path).result()
    return result.get("resources_id"), result.get("resources_version")


def best_prompts(entry: RunEntry) -> Prompts:
    """Return the prompts of the best candidate of a run's last prompt search; empty if it had none."""
    folders = entry.prompt_folders()
    return _best_candidate(folders[-1] / "candidates.json") if folders else {}


def _best_candidate(path: Path) -> Prompts:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Candidates)
    except (OSError, msgspec.MsgspecError):
        return {}  # a damaged file: the rewards can still be read
    prompts = {each.version: each.prompts for each in found.candidates}
    # Until one is named, the seed (the first) is the best.
    return prompts.get(found.best_version or next(iter(prompts), ""), {})


async def _versions_with(store: LightningStore, prompts: Prompts, versions: Collection[Version]) -> set[Version]:
    """Return the versions whose prompts are equal to the given ones."""
    wanted, known = dict(prompts), [each for each in versions if each[0] is not None] if prompts else []
    found: set[Version] = set()
    for start in range(0, len(known), _CONCURRENT_READS):
        part = known[start : start + _CONCURRENT_READS]
        read = await asyncio.gather(*(_prompts_of(store, each) for each in part))
        found |= {version for version, each in zip(part, read, strict=True) if each == wanted}
    return found


async def _prompts_of(store: LightningStore, version: Version) -> dict[str, PromptTemplate]:
    if version[0] is None:
        return {}
    found = await store.get_resources_by_id(version[0], version[1])
    resources: NamedResources = {} if found is None else found.resources
    return {name: each for name, each in resources.items() if isinstance(each, PromptTemplate)}


# -- metrics -----------------------------------------------------------------------------------------


def summaries(entry: RunEntry) -> dict[str, MetricSummary]:
    """Return the final and the best value of the main metrics of a run."""
    names = main_metrics(entry.metrics)
    curves = {} if entry.metrics_path is None else read_curves(entry.metrics_path, names)
    return {name: _summary(name, entry.metrics[name], curves.get(name)) for name in names}


def _summary(name: str, final: float, series: Series | None) -> MetricSummary:
    is_judged = is_loss(name) or "reward" in name
    if not is_judged or series is None or series.axis != "iteration" or not series.values:
        return MetricSummary(final)
    best = (min if is_loss(name) else max)(range(len(series.values)), key=series.values.__getitem__)
    return MetricSummary(final, series.values[best], series.steps[best])


def _with_reported(scores: list[Score], reported: Estimate | None) -> list[Score]:
    """Prefer the validation result that the run reported to the one computed from its store."""
    if reported is None:
        return scores
    val = next((each for each in scores if each.mode == "val"), Score("val", reported, reported))
    resources_id, version = val.final.resources_id, val.final.resources_version
    final = msgspec.structs.replace(reported, resources_id=resources_id, resources_version=version)
    best = final if val.best == val.final else val.best
    return [Score("val", final, best, val.versions), *(each for each in scores if each.mode != "val")]


def reported_estimate(entry: RunEntry) -> Estimate | None:
    """Return the reward of the last validation with the interval that the run reported, if it did."""
    names = ("val/reward_mean", "val/reward_low", "val/reward_high")
    mean, low, high = (entry.metrics.get(name, math.nan) for name in names)
    if not all(map(math.isfinite, (mean, low, high))):
        return None
    tasks = int(entry.metrics.get("val/rewarded", entry.metrics.get("val/rollouts", 0)))
    return Estimate(mean, low, high, tasks, tasks)


# -- settings ----------------------------------------------------------------------------------------


def setting_differences(configs: Sequence[Mapping[str, Any]]) -> list[SettingDifference]:
    """Return the settings that are not the same in all configs, by dotted name. Empty values count as missing."""
    flat = [dict(_flat(config)) for config in configs]
    names = dict.fromkeys(name for each in flat for name in each)
    compared = [name for name in names if name.removeprefix("settings.").split(".")[0] not in _NOT_COMPARED]
    found = [SettingDifference(name, [each.get(name) for each in flat]) for name in compared]
    return [each for each in found if len(set(each.values)) > 1]


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            found.append((prefix + name, value if isinstance(value, str) else msgspec.json.encode(value).decode()))
    return found
