"""Metrics over iterations and time."""

import math
from pathlib import Path

from hypothesis import given, strategies as some

from sharpen.files import append_json, keep_json_lines
from tests.archive.internals import MetricsTail, RunEntry, Series, main_metrics, read_curves

from .run_scenes import prompt_run, write_lines


def test_iterations_and_progress_have_their_own_axes(tmp_path: Path) -> None:
    path = RunEntry.of(prompt_run(tmp_path / "run")).metrics_path
    assert path is not None
    curves = read_curves(path)
    assert curves["train/loss"].steps == [1.0, 2.0, 3.0]
    assert curves["train/loss"].values == [1.0, 1 / 2, 1 / 3]
    assert curves["train/loss"].axis == "iteration"
    assert curves["rollouts"].axis == "seconds"
    assert curves["rollouts"].values[-1] == 9.0
    assert all(step >= 0 for step in curves["rollouts"].steps)
    # Progress has the mean over all prompts under the same name.
    assert curves["val/reward_mean"].axis == "iteration"
    assert len(curves["val/reward_mean"].values) == 3
    assert not {"time", "step", "seconds"} & curves.keys()


def test_only_named_metrics_are_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "m", [{"step": 1, "time": 5.0, "loss": 2, "reward": 1, "name": "x"}])
    curves = read_curves(tmp_path / "m", ["loss", "unknown"])
    assert curves == {"loss": Series("iteration", [1.0], [5.0], [2.0])}
    assert read_curves(tmp_path / "missing") == {}


def test_damaged_lines_settings_and_odd_numbers_are_skipped(tmp_path: Path) -> None:
    append_json(tmp_path / "m", {"step": 0, "time": 1.0, "config": {"lr": 1}, "loss": 9.0})
    append_json(tmp_path / "m", {"step": 1, "time": 2.0, "loss": math.nan, "ok": True, "text_like": "word", "a": 1})
    with open(tmp_path / "m", "ab") as file:
        file.write(b'{"step": 2, "los\n\xff\n[]\n\n{"step": "x", "loss": 1}\n')
    append_json(tmp_path / "m", {"step": 3, "time": 4.0, "loss": 0.5})
    with open(tmp_path / "m", "ab") as file:
        file.write(b'{"step": 4, "time": 5.0, "loss": 0.25}')
    curves = read_curves(tmp_path / "m")
    assert curves.keys() == {"a", "loss"}
    assert curves["loss"].values == [0.5]


def test_a_resumed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    lines = [
        {"step": step, "time": float(number), "loss": value}
        for number, (step, value) in enumerate([(1, 1.0), (2, 2.0), (3, 3.0), (2, 2.5), (3, 3.5)])
    ]
    write_lines(tmp_path / "m", lines)
    found = read_curves(tmp_path / "m")["loss"]
    assert (found.steps, found.values) == ([1.0, 2.0, 3.0], [1.0, 2.5, 3.5])


@given(some.lists(some.floats(-100, 100), min_size=1, max_size=300), some.integers(4, 50))
def test_thinning_keeps_the_ends_and_the_extremes(values: list[float], max_points: int) -> None:
    places = [float(place) for place in range(len(values))]
    thin = Series("iteration", places, places, values).thinned(max_points)
    assert len(thin.values) <= max_points or len(values) <= max_points
    assert (thin.values[0], thin.values[-1]) == (values[0], values[-1])
    assert (min(thin.values), max(thin.values)) == (min(values), max(values))
    assert [values[int(step)] for step in thin.steps] == thin.values
    assert thin.steps == sorted(set(thin.steps))


def test_a_long_file_is_thinned(tmp_path: Path) -> None:
    write_lines(tmp_path / "m", [{"step": step, "time": 1.0, "loss": step % 7} for step in range(5000)])
    assert 1900 < len(read_curves(tmp_path / "m")["loss"].values) <= 2000


def test_a_tail_gives_each_line_once_and_waits_for_its_end(tmp_path: Path) -> None:
    tail = MetricsTail(tmp_path / "m")
    assert tail.new_lines() == []
    append_json(tmp_path / "m", {"step": 1})
    with open(tmp_path / "m", "ab") as file:
        file.write(b'{"step": 2')
    assert tail.new_lines() == [{"step": 1}]
    assert tail.new_lines() == []
    with open(tmp_path / "m", "ab") as file:
        file.write(b"}\n")
    assert tail.new_lines() == [{"step": 2}]
    assert tail.restarts == 0
    assert MetricsTail(tmp_path / "m", at_end=True).new_lines() == []


def test_a_tail_survives_rewriting_cutting_and_removal(tmp_path: Path) -> None:
    path = tmp_path / "m"
    tail = MetricsTail(path)
    for step in range(5):
        append_json(path, {"step": step})
    assert len(tail.new_lines()) == 5
    keep_json_lines(path, lambda line: line["step"] < 2)
    append_json(path, {"step": 9})
    assert tail.new_lines() == [{"step": 0}, {"step": 1}, {"step": 9}]
    path.write_bytes(b'{"step": 7}\n')
    assert tail.new_lines() == [{"step": 7}]
    path.write_bytes(b'{"step": 8}\n')  # as long as before
    assert tail.new_lines() == [{"step": 8}]
    path.unlink()
    assert tail.new_lines() == []
    path.write_bytes(b'{"step": 8}\n')
    assert tail.new_lines() == [{"step": 8}]
    assert tail.restarts == 4


def test_the_main_metrics_come_in_their_order_and_there_are_always_some() -> None:
    assert main_metrics(["rollouts", "loss", "x", "val/reward_mean"]) == ["val/reward_mean", "loss", "rollouts"]
    # a mean over the whole run only where no iteration tells more
    over_the_run = ["reward_mean", "run/reward_mean", "run/train/reward_mean"]
    assert main_metrics([*over_the_run, "train/reward_mean"]) == ["train/reward_mean"]
    assert main_metrics(over_the_run) == ["run/train/reward_mean"]
    assert main_metrics(["b", "a"]) == ["a", "b"]
