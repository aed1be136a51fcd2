"""Losses that go wrong are told, once; those that do not are left in peace."""

import json
import logging
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharpen.llm import TrainingError
from tests.errors import raises
from tests.llm.internals import STATE_FILE, WINDOW, LossWatch, is_oscillating


def loop(step: int = 1, output_dir: Path | None = None, **metrics: float) -> Any:
    return SimpleNamespace(
        metrics=metrics,
        current_iter=step,
        settings=SimpleNamespace(learning_rate=3e-5),
        output_dir=output_dir,
    )


def watch_all(values: list[float], watch: LossWatch | None = None, *, name: str = "loss") -> LossWatch:
    watch = watch or LossWatch()
    for step, value in enumerate(values, 1):
        metrics = {"loss": value} if name == "loss" else {"loss": 0.0, name: value}
        watch.on_iter_end(loop(step, **metrics), None)
    return watch


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="sharpen")
    return caplog


def noisy(values: list[float], noise: float, seed: int = 0) -> list[float]:
    source = random.Random(seed)
    return [value * (1 + source.gauss(0, noise)) for value in values]


FALLING = [4 * 0.95**step + 0.5 for step in range(60)]


def test_a_loss_that_falls_is_left_in_peace(said: pytest.LogCaptureFixture) -> None:
    for seed in range(20):
        watch_all(noisy(FALLING, 0.1, seed))
    assert said.text == ""


def test_a_loss_that_has_reached_its_floor_is_left_in_peace(said: pytest.LogCaptureFixture) -> None:
    for seed in range(20):
        watch_all(noisy([2.0] * 60, 0.08, seed))
        watch_all(noisy([2.0] * 60, 0.2, seed))
        watch_all([3.0] * WINDOW + noisy([0.01] * 60, 0.5, seed))
    assert said.text == ""


def test_a_loss_that_rises_is_told_once_with_a_lower_rate(said: pytest.LogCaptureFixture) -> None:
    watch_all(noisy(FALLING[:20] + [1.9 * 1.1**step for step in range(20)], 0.05))
    assert len(said.records) == 1
    assert "oscillates" not in said.text
    assert all(value in said.text for value in ("loss", "learning_rate", "3e-05", "1e-05"))


def test_one_bad_batch_is_no_rise(said: pytest.LogCaptureFixture) -> None:
    watch_all([*FALLING[:30], 50.0, *FALLING[30:]])
    assert said.text == ""


def test_a_loss_that_oscillates_is_told_once(said: pytest.LogCaptureFixture) -> None:
    watch_all(noisy([3.0, 1.0] * 20, 0.05))
    assert len(said.records) == 1
    assert all(value in said.text for value in ("loss", "oscillates", "batch_size"))


def test_swings_on_the_way_down_are_no_oscillation() -> None:
    assert is_oscillating([3.0, 1.0] * WINDOW)
    assert not is_oscillating([3.0, 1.0] * (WINDOW // 2) + [1.5, 0.5] * (WINDOW // 2))
    assert not is_oscillating([3.0, 2.9] * WINDOW)
    assert not is_oscillating([3.0, 1.0])


def test_both_kinds_can_be_told_in_one_run(said: pytest.LogCaptureFixture) -> None:
    watch_all([1.0, 3.0] * 20 + [9.0] * 20)
    assert ["oscillates" in record.message for record in said.records] == [True, False]


def test_losses_below_zero_are_judged_as_well(said: pytest.LogCaptureFixture) -> None:
    watch_all([-step / 10 for step in range(30)])
    assert said.text == ""
    watch_all([-step / 10 for step in range(30)] + [step / 10 - 2.8 for step in range(30)])
    assert "loss" in said.text
    assert "oscillates" not in said.text


def test_in_grpo_the_reward_counts_and_not_the_loss(said: pytest.LogCaptureFixture) -> None:
    watch = LossWatch()
    for step in range(60):
        watch.on_iter_end(loop(step, loss=(-1) ** step * 0.1 + step / 10, reward=0.2 + step / 100), None)
    assert said.text == ""
    watch_all([0.8] * 10 + [0.8 - step / 20 for step in range(16)], name="reward")
    assert "reward" in said.text
    assert " 0.8 " in said.text


def test_steps_that_log_nothing_are_passed_over(said: pytest.LogCaptureFixture) -> None:
    watch = LossWatch()
    watch.on_iter_end(loop(), None)
    assert watch.state_dict() == LossWatch().state_dict()


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_ends_the_run(loss: float) -> None:
    with raises(TrainingError, loss, 7, "learning_rate"):
        LossWatch().on_iter_end(loop(7, loss=loss), None)


def test_the_end_of_a_run_names_its_last_checkpoint(tmp_path: Path) -> None:
    for step in (5, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / STATE_FILE).touch()
    with raises(TrainingError, "checkpoint-10"):
        LossWatch().on_iter_end(loop(12, tmp_path, loss=math.nan), None)


def test_a_resumed_watch_goes_on_where_it_was(said: pytest.LogCaptureFixture) -> None:
    values = noisy(FALLING[:20] + [1.9 * 1.1**step for step in range(20)], 0.05)
    whole = watch_all(values)
    told = said.text
    said.clear()
    for cut in range(len(values)):
        first = watch_all(values[:cut])
        resumed = LossWatch()
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
        for step, value in enumerate(values[cut:], cut + 1):
            resumed.on_iter_end(loop(step, loss=value), None)
        assert resumed.state_dict() == whole.state_dict()
        assert said.text == told
        said.clear()


def test_a_loop_without_settings_gets_the_advice_without_a_number(said: pytest.LogCaptureFixture) -> None:
    watch = LossWatch()
    for step, value in enumerate([1.0] * WINDOW + [9.0] * WINDOW):
        watch.on_iter_end(SimpleNamespace(metrics={"loss": value}, current_iter=step), None)
    assert "Try a lower learning rate" in said.text
