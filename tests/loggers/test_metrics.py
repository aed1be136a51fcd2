"""Means with counts and namespaces; levels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.loggers import Logger, LogLevel, Metrics, min_loglevel, named, wanting
from tests.errors import raises


def test_a_mean_counts_only_what_reported_the_name() -> None:
    metrics = Metrics()
    metrics.add_all({"reward": 1.0, "loss": 4.0})
    metrics.add("reward", 3.0)
    assert metrics.means() == {"reward": 2.0, "loss": 4.0}
    assert (metrics.count("reward"), metrics.count("loss"), metrics.count("other")) == (2, 1, 0)


def test_a_mean_of_means_weighs_by_their_counts() -> None:
    metrics = Metrics()
    metrics.add("loss", 1.0, count=30)
    metrics.add("loss", 5.0, count=10)
    metrics.add("loss", 99.0, count=0)
    assert metrics.means() == {"loss": 2.0}


def test_namespaces_keep_train_and_validation_apart() -> None:
    metrics = Metrics()
    train, validation = metrics.namespace("train"), metrics.namespace("val")
    train.add("reward", 1.0)
    validation.add("reward", 5.0)
    validation.namespace("easy").add("reward", 7.0)
    assert metrics.means() == {"train/reward": 1.0, "val/reward": 5.0, "val/easy/reward": 7.0}
    assert validation.means() == {"val/reward": 5.0, "val/easy/reward": 7.0}
    validation.clear()
    assert metrics.means() == {"train/reward": 1.0}
    metrics.clear()
    assert metrics.means() == {}


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(1, 50)), min_size=1), st.integers(0, 20))
def test_merged_parts_have_the_mean_of_the_whole(values: list[tuple[int, int]], cut: int) -> None:
    whole, one, other = Metrics(), Metrics(), Metrics()
    for number, (value, count) in enumerate(values):
        whole.add("x", value, count=count)
        (one if number < cut else other).add("x", value, count=count)
    one.merge(other)
    expected = sum(value * count for value, count in values) / sum(count for _, count in values)
    assert one.means()["x"] == whole.means()["x"] == pytest.approx(expected)


def test_what_was_added_up_survives_a_checkpoint() -> None:
    metrics, again = Metrics(), Metrics()
    metrics.namespace("val").add("reward", 2.0, count=3)
    again.add("stale", 1.0)
    again.load_state_dict(metrics.state_dict())
    again.namespace("val").add("reward", 6.0)
    assert again.means() == {"val/reward": 3.0}


def test_numbers_of_numpy_and_torch_are_numbers_and_nan_stays_visible() -> None:
    metrics = Metrics()
    metrics.add_all({"a": np.float32(0.5), "b": torch.tensor(2.0), "c": math.nan})  # type: ignore[dict-item]
    means = metrics.means()
    assert (means["a"], means["b"]) == (0.5, 2.0)
    assert math.isnan(means["c"])


@pytest.mark.parametrize(
    "value", ["0.5", None, [1.0], np.ones(2), torch.ones(2), {}], ids=lambda value: type(value).__name__
)
def test_what_is_no_number_is_refused_by_name(value: object) -> None:
    with raises(InvalidInputError, "loss"):
        Metrics().add("loss", value)  # type: ignore[arg-type]


def test_a_count_below_zero_is_refused() -> None:
    with raises(InvalidInputError, "loss", -1):
        Metrics().add("loss", 1.0, count=-1)


def test_levels_have_their_known_numbers() -> None:
    assert {level.name: level.value for level in LogLevel} == {"DEBUG": 10, "PERIODIC": 20, "INFO": 30, "CRITICAL": 40}


def test_a_logger_wants_its_level_and_what_is_above() -> None:
    logger = Logger(loglevel=LogLevel.INFO)
    assert [logger.wants(level) for level in LogLevel] == [False, False, True, True]
    assert [Logger().wants(level) for level in LogLevel] == [False, True, True, True]


def test_the_source_learns_the_least_level_that_anybody_wants() -> None:
    loud, quiet = Logger(LogLevel.DEBUG), Logger(LogLevel.CRITICAL)
    assert min_loglevel([quiet, loud]) == LogLevel.DEBUG
    assert min_loglevel([]) > LogLevel.CRITICAL
    assert wanting([quiet, loud], LogLevel.INFO) == [loud]


def test_a_level_that_is_none_is_refused() -> None:
    with raises(ConfigError, "LogLevel.DEBUG"):
        Logger(loglevel="debug")  # type: ignore[arg-type]


def test_loggers_are_named_as_callbacks_are() -> None:
    assert list(named([Logger(), Logger()])) == ["logger", "logger1"]
