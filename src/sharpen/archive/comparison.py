"""Runs side by side: how good each was and how sure that is, what differs between them, and what was set otherwise."""

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import msgspec

from ..errors import ConfigError, SharpenError
from ..runs.history import EARLIER
from ..store import LightningStore
from .catalog import RunEntry
from .curves import Series, is_loss, main_metrics, read_curves
from .opening import open_store
from .published import best_prompts, published_version
from .scores import MAX_ROLLOUTS, Difference, Estimate, RunRewards, Score, differences, read_rewards

StoreOf: TypeAlias = Callable[[RunEntry], AbstractAsyncContextManager[LightningStore]]

# What is different in every run or on every machine, and says nothing.
_OF_THE_RUN = ("started", "resumed", EARLIER, "name", "run_dir", "output_dir", "environment")


class MetricSummary(msgspec.Struct, frozen=True):
    """A metric at its end and at its best; a loss is better when it is smaller."""

    final: float
    best: float | None = None
    """None where it is no reward and no loss."""
    best_step: float | None = None


class ComparedRun(msgspec.Struct, frozen=True):
    """One of the runs."""

    name: str
    state: str
    algorithm: str | None
    seconds: float | None
    scores: list[Score] = []
    metrics: dict[str, MetricSummary] = {}
    is_partial: bool = False
    """Whether only the newest rollouts of its store were looked at."""
    problem: str | None = None
    """Why there are no scores from its store."""

    def score(self, mode: str) -> Score | None:
        return next((each for each in self.scores if each.mode == mode), None)


class SettingDifference(msgspec.Struct, frozen=True):
    """A setting that is not the same in all runs; None where a run lacks it."""

    name: str
    values: list[str | None]


class Comparison(msgspec.Struct, frozen=True):
    """Runs in the order they were given."""

    runs: list[ComparedRun]
    differences: list[Difference] = []
    settings: list[SettingDifference] = []

    @property
    def modes(self) -> list[str]:
        """All splits that some run has rewards of."""
        return list(dict.fromkeys(score.mode for run in self.runs for score in run.scores))

    @property
    def metric_names(self) -> list[str]:
        return main_metrics({name for run in self.runs for name in run.metrics})


async def compare(
    entries: Sequence[RunEntry], *, store_of: StoreOf | None = None, max_rollouts: int = MAX_ROLLOUTS
) -> Comparison:
    """Compare runs; `store_of` opens their stores where they are no files. Of each store the newest rollouts count."""
    if not entries:
        raise ConfigError("there is no run to compare: give two or more")
    names = [entry.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"the run {twice!r} is given twice: give each once")
    runs, rewards = [], []
    for entry in entries:
        found, problem = await _rewards_of(entry, store_of, max_rollouts)
        rewards.append((entry.name, found))
        runs.append(_compared(entry, found, problem))
    return Comparison(runs, differences(rewards), setting_differences([entry.config() for entry in entries]))


async def _rewards_of(entry: RunEntry, store_of: StoreOf | None, max_rollouts: int) -> tuple[RunRewards, str | None]:
    """A store that cannot be read is no reason to show nothing of the others."""
    if not entry.has_store and (store_of is None or entry.kind != "agents"):
        return RunRewards(), None
    try:
        async with (store_of or _file_of)(entry) as store:
            found = await read_rewards(
                store,
                published=published_version(entry),
                best_prompts=best_prompts(entry),
                max_rollouts=max_rollouts,
            )
            return found, None
    except (SharpenError, OSError) as error:
        return RunRewards(), f"its store cannot be read: {error}"


@contextlib.asynccontextmanager
async def _file_of(entry: RunEntry) -> AsyncIterator[LightningStore]:
    async with open_store(str(entry.store_path)) as opened:
        yield opened.store


def _compared(entry: RunEntry, rewards: RunRewards, problem: str | None) -> ComparedRun:
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


# -- metrics -----------------------------------------------------------------------------------------


def summaries(entry: RunEntry) -> dict[str, MetricSummary]:
    """The main metrics of a run at their end and at their best."""
    names = main_metrics(entry.metrics)
    curves = {} if entry.metrics_path is None else read_curves(entry.metrics_path, names)
    return {name: _summary(name, entry.metrics[name], curves.get(name)) for name in names}


def _summary(name: str, final: float, series: Series | None) -> MetricSummary:
    is_judged = is_loss(name) or "reward" in name
    if not is_judged or series is None or series.axis != "iteration" or not series.values:
        return MetricSummary(final)
    best = (min if is_loss(name) else max)(range(len(series.values)), key=series.values.__getitem__)
    return MetricSummary(final, series.values[best], series.steps[best])


def _with_reported(scores: list[Score], told: Estimate | None) -> list[Score]:
    """What the run says of its own validation counts more than what can be counted in its store."""
    if told is None:
        return scores
    val = next((each for each in scores if each.mode == "val"), Score("val", told, told))
    resources_id, version = val.final.resources_id, val.final.resources_version
    final = msgspec.structs.replace(told, resources_id=resources_id, resources_version=version)
    best = final if val.best == val.final else val.best
    return [Score("val", final, best, val.versions), *(each for each in scores if each.mode != "val")]


def reported_estimate(entry: RunEntry) -> Estimate | None:
    """The reward of the last validation with the interval that the run reported beside it, where it did."""
    names = ("val/reward_mean", "val/reward_low", "val/reward_high")
    mean, low, high = (entry.metrics.get(name, math.nan) for name in names)
    if not all(map(math.isfinite, (mean, low, high))):
        return None
    tasks = int(entry.metrics.get("val/rewarded", entry.metrics.get("val/rollouts", 0)))
    return Estimate(mean, low, high, tasks, tasks)


# -- settings ----------------------------------------------------------------------------------------


def setting_differences(configs: Sequence[Mapping[str, Any]]) -> list[SettingDifference]:
    """What is not the same in all of them, by dotted name. What is empty is as good as not there."""
    flat = [dict(_flat(config)) for config in configs]
    names = dict.fromkeys(name for each in flat for name in each)
    found = [SettingDifference(name, [each.get(name) for each in flat]) for name in names]
    return [each for each in found if len(set(each.values)) > 1 and not _is_of_the_run(each.name)]


def _is_of_the_run(name: str) -> bool:
    return name.removeprefix("settings.").split(".")[0] in _OF_THE_RUN


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            found.append((prefix + name, value if isinstance(value, str) else msgspec.json.encode(value).decode()))
    return found
