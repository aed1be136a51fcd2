"""Early stopping."""

import logging
import math
from typing import Any

import pytest

from sharpen.callbacks import EarlyStopping, load_state, save_state
from sharpen.errors import ConfigError
from tests.errors import raises

from .loops import CountingLoop


def stopped_after(rewards: list[float], **settings: Any) -> int:
    loop = CountingLoop([EarlyStopping(monitor="val/reward", **settings)], rewards=rewards)
    return loop.fit(len(rewards)).current_iter


@pytest.mark.parametrize(
    ("rewards", "settings", "iterations"),
    [
        ([1, 2, 3, 3, 9], {}, 4),
        ([1, 2, 3, 4, 5], {}, 5),
        ([3, 2, 1, 1, 0], {"mode": "min"}, 4),
        ([1, 0, 2, 1, 1, 9], {"patience": 2}, 5),
        ([1, 1.5, 1.9, 2.5, 5], {"min_delta": 1.0}, 2),
        ([1, 1.5, 1.9, 2.5, 5], {"min_delta": 1.0, "patience": 2}, 3),
        ([1, 2, 3, 4, 5], {"baseline": 2.5, "patience": 3}, 5),
        ([1, 2, 3, 4, 5], {"baseline": 10, "patience": 3}, 3),
        ([1, math.nan, math.nan, 5], {"patience": 2}, 3),
        ([1, 0, 0], {"min_delta": -1.0}, 2),
    ],
)
def test_it_stops_when_nothing_gets_better(rewards: list[float], settings: dict[str, Any], iterations: int) -> None:
    assert stopped_after(rewards, **settings) == iterations


def test_a_missing_metric_is_a_warning_that_lists_the_known_ones(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loop = CountingLoop([EarlyStopping(monitor="val/rewrd")], rewards=[1.0]).fit(2)
    assert loop.current_iter == 2
    assert "'val/rewrd'" in caplog.text
    assert "loss, val/reward" in caplog.text


def test_the_best_weights_come_back_when_it_stops() -> None:
    stopping = EarlyStopping("val/reward", patience=2, restore_best_weights=True)
    loop = CountingLoop([stopping], rewards=[1, 5, 2, 3, 9]).fit(5)
    assert (loop.current_iter, stopping.best, stopping.best_iter, stopping.stopped_iter) == (4, 5, 1, 3)
    assert loop.trained.values.tolist() == [2, 2, 2]


def test_without_a_better_value_the_first_weights_come_back() -> None:
    stopping = EarlyStopping("val/reward", patience=3, restore_best_weights=True)
    loop = CountingLoop([stopping], rewards=[math.nan]).fit(5)
    assert loop.current_iter == 3
    assert loop.trained.values.tolist() == [1, 1, 1]


def test_a_run_that_ends_for_another_reason_keeps_its_last_weights() -> None:
    stopping = EarlyStopping("val/reward", patience=9, restore_best_weights=True)
    assert CountingLoop([stopping], rewards=[5, 1, 1]).fit(3).trained.values.tolist() == [3, 3, 3]


def test_a_resumed_run_stops_where_one_without_a_pause_does(tmp_path: Any) -> None:
    rewards = [1, 5, 2, 3, 2, 9]

    def loop() -> CountingLoop:
        return CountingLoop([EarlyStopping("val/reward", patience=3, restore_best_weights=True)], rewards=rewards)

    save_state(tmp_path / "half", loop().fit(3).state_dict())
    resumed, whole = loop().fit(6, state=load_state(tmp_path / "half")), loop().fit(6)
    assert resumed.current_iter == whole.current_iter == 5
    assert resumed.trained.values.tolist() == whole.trained.values.tolist() == [2, 2, 2]


def test_a_second_fit_starts_anew() -> None:
    stopping = EarlyStopping("val/reward")
    CountingLoop([stopping], rewards=[5, 1]).fit(2)
    assert CountingLoop([stopping], rewards=[1, 2, 3]).fit(3).current_iter == 3


@pytest.mark.parametrize(("settings", "named"), [({"mode": "up"}, ("up",)), ({"patience": -1}, ("patience", -1))])
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        EarlyStopping(**settings)
