"""Runs side by side."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.stats import mean_interval, wilson_interval
from sharpen.store import InMemoryLightningStore
from sharpen.types import Rollout, RolloutConfig
from tests.archive.internals import (
    Comparison,
    Evaluation,
    RunEntry,
    RunRewards,
    compare,
    difference,
    read_rewards,
    setting_differences,
)
from tests.errors import raises

from .run_scenes import always, dev_run, fails, prompt_run, simulator_run, tuned_run


def compared(*paths: Path) -> Comparison:
    return asyncio.run(compare([RunEntry.of(path) for path in paths]))


def evaluation(rewards: dict[int, float]) -> Evaluation:
    found = Evaluation()
    for task, reward in rewards.items():
        found.add(Rollout("ro", task, 1.0), reward)
    return found


def test_rewards_of_0_and_1_have_wilsons_interval_and_are_paired_by_task(tmp_path: Path) -> None:
    found = compared(dev_run(tmp_path / "a"), dev_run(tmp_path / "b", always, seed=3))
    first, second = (run.score("val") for run in found.runs)
    assert first is not None
    assert second is not None
    assert (first.final.mean, first.final.tasks, first.final.interval) == (0.5, 10, "wilson")
    assert (first.final.low, first.final.high) == wilson_interval(5, 10)
    assert (second.final.mean, second.final.high) == (1.0, 1.0)
    gain = found.differences[0]
    assert (gain.first, gain.second, gain.mode, gain.mean, gain.tasks) == ("a", "b", "val", 0.5, 10)
    assert (gain.low, gain.high) == pytest.approx(mean_interval([0.0, 1.0] * 5))
    assert gain.is_clear
    assert len(found.differences) == 1  # what was trained on is not compared
    assert {each.name: each.values for each in found.settings} == {
        "agent.name": ["is_even", "always"],
        "settings.seed": [None, "3"],
    }


def test_only_common_tasks_count_in_a_difference(tmp_path: Path) -> None:
    found = compared(dev_run(tmp_path / "a", val=[1, 2, 3, 4]), dev_run(tmp_path / "b", always, val=[3, 4, 5, 6]))
    assert (found.differences[0].tasks, found.differences[0].mean) == (2, 0.5)
    assert not found.differences[0].is_clear
    apart = compared(dev_run(tmp_path / "c", val=[1]), dev_run(tmp_path / "d", val=[2]))
    assert apart.differences == []


def test_the_final_version_is_what_was_published_last_and_the_best_has_the_highest_mean(tmp_path: Path) -> None:
    found = compared(prompt_run(tmp_path / "a"), prompt_run(tmp_path / "b"))
    score = found.runs[0].score("val")
    assert score is not None
    assert (score.versions, score.final.mean, score.best.mean) == (3, pytest.approx(2.02), pytest.approx(3.02))
    assert score.final.interval == "t"
    assert (score.final.low, score.final.high) == pytest.approx(mean_interval([2.01, 2.02, 2.03]))
    assert found.runs[0].metrics["val/reward_mean"].best == pytest.approx(3.02)
    assert found.runs[0].metrics["val/reward_mean"].best_step == 2
    assert found.runs[0].metrics["train/loss"].best == pytest.approx(1 / 3)
    assert found.differences[0].mean == 0.0
    assert found.settings == []


def test_a_failed_rollout_counts_as_0(tmp_path: Path) -> None:
    score = compared(dev_run(tmp_path / "a", fails, val=[1, 2])).runs[0].score("val")
    assert score is not None
    assert (score.final.mean, score.final.rollouts) == (0.0, 2)


async def make_store(results: list[tuple[int, float | None, str]]) -> InMemoryLightningStore:
    store = InMemoryLightningStore()
    for task, reward, status in results:
        config = RolloutConfig(max_attempts=1)
        attempted = await store.start_rollout(task, "val", config=config)
        ids = attempted.rollout_id, attempted.attempt.attempt_id
        if status == "cancelled":
            await store.cancel_rollouts([attempted.rollout_id])
        elif status == "unresponsive":
            await store.update_attempt(*ids, status="unresponsive")
        else:
            await store.complete_attempt(*ids, status="succeeded", reward=reward)
    return store


def test_what_was_lost_cancelled_or_has_no_reward_says_nothing() -> None:
    async def rewards() -> RunRewards:
        given: list[tuple[int, float | None, str]] = [
            (1, 1.0, "succeeded"), (2, None, "succeeded"), (3, None, "cancelled"), (4, None, "unresponsive"),
        ]  # fmt: skip
        return await read_rewards(await make_store(given))

    found = asyncio.run(rewards()).scores()[0].final
    assert (found.mean, found.rollouts) == (1.0, 1)


def test_several_rollouts_of_a_task_are_one_observation() -> None:
    async def rewards() -> RunRewards:
        given: list[tuple[int, float | None, str]] = [
            (task, float(sample < task), "succeeded") for task in (1, 2, 3) for sample in range(4)
        ]
        return await read_rewards(await make_store(given))

    found = asyncio.run(rewards()).scores()[0].final
    assert (found.tasks, found.rollouts, found.mean, found.interval) == (3, 12, 0.5, "t")
    assert (found.low, found.high) == pytest.approx(mean_interval([0.25, 0.5, 0.75]))


def test_only_the_newest_rollouts_of_a_large_store_are_looked_at() -> None:
    async def rewards() -> RunRewards:
        store = await make_store([(task, 1.0, "succeeded") for task in range(10)])
        return await read_rewards(store, max_rollouts=4)

    found = asyncio.run(rewards())
    assert found.is_partial
    assert found.scores()[0].final.rollouts == 4


def test_one_task_says_nothing_about_the_spread() -> None:
    found = difference(("a", "b"), "val", evaluation({1: 0.25}), evaluation({1: 0.75}))
    assert found is not None
    assert (found.mean, found.low, found.high, found.is_clear) == (0.5, None, None, False)
    estimate = evaluation({1: 0.2}).estimate()
    assert (estimate.low, estimate.high, estimate.interval) == (None, None, None)


def test_a_version_that_few_tasks_tried_is_not_the_best() -> None:
    split = {("a", 1): evaluation(dict.fromkeys(range(10), 0.5)), ("b", 1): evaluation({1: 1.0})}
    score = RunRewards({"val": split}, ("a", 1)).scores()[0]
    assert score.best.resources_id == "a"


def test_the_best_is_never_below_the_final() -> None:
    split = {("a", 1): evaluation(dict.fromkeys(range(10), 0.0)), ("b", 1): evaluation({1: 1.0})}
    score = RunRewards({"val": split}, ("b", 1)).scores()[0]
    assert (score.final.mean, score.best.mean) == (1.0, 1.0)


def test_tasks_that_always_succeed_leave_a_doubt() -> None:
    found = Evaluation()
    for number in range(12):
        found.add(Rollout("ro", number % 4, 1.0), 1.0)
    estimate = found.estimate()
    assert (estimate.low, estimate.high, estimate.rollouts) == (*wilson_interval(4, 4), 12)


def test_runs_without_a_store_are_compared_by_their_metrics(tmp_path: Path) -> None:
    found = compared(simulator_run(tmp_path / "sim"), tuned_run(tmp_path / "tuned"))
    assert found.runs[0].metrics["val/reward"].best == 3.0
    assert found.runs[1].metrics["val/loss"].best == 0.0
    assert found.metric_names == ["val/reward", "val/loss", "reward", "loss"]
    assert found.modes == []


def test_a_store_that_cannot_be_read_spoils_nothing_else(tmp_path: Path) -> None:
    good, bad = dev_run(tmp_path / "good"), dev_run(tmp_path / "bad")
    (bad / "store.db").write_bytes(b"no database at all" * 100)
    for extra in bad.glob("store.db-*"):
        extra.unlink()
    found = compared(good, bad)
    assert found.runs[0].score("val") is not None
    assert found.runs[1].problem is not None
    assert "cannot be read" in found.runs[1].problem


def test_wrong_questions_are_refused(tmp_path: Path) -> None:
    entry = RunEntry.of(simulator_run(tmp_path / "sim"))
    with pytest.raises(ConfigError):
        asyncio.run(compare([]))
    with raises(ConfigError, "sim"):
        asyncio.run(compare([entry, entry]))


def test_settings_differ_by_their_dotted_names() -> None:
    first: dict[str, Any] = {"a": {"b": 1, "c": [1, 2]}, "started": "x", "d": "text", "e": {}}
    second: dict[str, Any] = {"a": {"b": 2, "c": [1, 2]}, "started": "y", "f": None, "d": "text", "g": 1}
    found = {each.name: each.values for each in setting_differences([first, second])}
    assert found == {"a.b": ["1", "2"], "g": [None, "1"]}
