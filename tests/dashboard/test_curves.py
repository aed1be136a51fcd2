"""Curves for pages, and the small ones of the list."""

from pathlib import Path

from sharpen.store import InMemoryLightningStore
from sharpen.types import Rollout
from tests.archive.internals import RunEntry
from tests.dashboard.internals import (
    curves_of_file,
    curves_of_store,
    first_metrics,
    newest_of_store,
    polyline,
    series_of_rollouts,
    spark_of,
)


def test_a_file_that_grows_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert curves_of_file("run", path, []).names == []
    path.write_text('{"step": 1, "time": 5, "loss": 2}\n')
    assert curves_of_file("run", path, []).series["loss"].values == [2.0]
    with open(path, "a") as file:
        file.write('{"step": 2, "time": 6, "loss": 1}\n{"time": 9, "rollouts": 3}\n')
    found = curves_of_file("run", path, [])
    assert found.series["loss"].values == [2.0, 1.0]
    assert found.start == 5.0


def test_rollouts_become_rewards_and_a_rate() -> None:
    ended = [Rollout(str(end), None, 0.0, end_time=100.0 + end, reward=end / 10) for end in range(11)]
    series = series_of_rollouts([*ended, Rollout("open", None, 0.0)])
    assert series["reward"].steps == [float(end) for end in range(11)]
    rate = series["rollouts_per_second"]
    assert abs(sum(rate.values) * (rate.steps[1] - rate.steps[0]) - 10) < 1
    assert series_of_rollouts([]) == {}


def test_where_the_main_metrics_are_few_others_are_shown_beside_them() -> None:
    assert first_metrics(["zeta", "loss", "alpha"]) == ["loss", "alpha", "zeta"]
    many = ["val/reward_mean", "train/reward_mean", "rollouts", "train/loss", "train/kl", "train/entropy"]
    assert first_metrics([*many, "alpha"])[:1] == ["val/reward_mean"]
    assert "alpha" not in first_metrics([*many, "alpha"])


async def test_a_store_with_nothing_finished_has_no_curves() -> None:
    store = InMemoryLightningStore()
    assert (await curves_of_store("run", store, [])).names == []
    newest = await newest_of_store(store)
    assert (newest.count, newest.reward, newest.rollouts_per_second) == (0, None, None)


def test_a_spark_shows_the_trend_of_the_reward(runs_folder: Path) -> None:
    spark = spark_of(RunEntry.of(runs_folder / "first"))
    assert spark is not None
    assert spark.points.startswith("2.0,22.0 ")
    assert spark.points.endswith("98.0,2.0")
    assert spark.words == "val/reward_mean from 0.1 to 0.5, minimum 0.1, maximum 0.5"
    assert spark_of(RunEntry.of(runs_folder / "first")) is spark


def test_a_curve_that_does_not_change_lies_in_the_middle() -> None:
    assert polyline([1, 2], [5, 5]) == "2.0,12.0 98.0,12.0"
