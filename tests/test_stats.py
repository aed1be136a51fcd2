"""Confidence intervals, against tables and numbers worked by hand."""

import math
import random

import pytest

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.stats import Decline, difference_interval, ended_worse, mean_interval, t_quantile, wilson_interval
from tests.errors import raises

# From printed tables of Student's t: share, degrees of freedom, value.
T_TABLE = [
    (0.975, 1, 12.706),
    (0.975, 2, 4.303),
    (0.975, 5, 2.571),
    (0.975, 10, 2.228),
    (0.975, 30, 2.042),
    (0.975, 120, 1.980),
    (0.95, 1, 6.314),
    (0.95, 9, 1.833),
    (0.995, 4, 4.604),
    (0.995, 60, 2.660),
    (0.9995, 3, 12.924),
    (0.75, 7, 0.711),
]


@pytest.mark.parametrize(("share", "freedom", "value"), T_TABLE)
def test_t_quantiles_are_those_of_the_tables(share: float, freedom: int, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=5.1e-4)
    assert t_quantile(1 - share, freedom) == pytest.approx(-value, abs=5.1e-4)


@pytest.mark.parametrize("share", [0.5001, 0.6, 0.9, 0.975, 0.9999])
def test_t_quantiles_have_their_closed_forms(share: float) -> None:
    assert t_quantile(share, 1) == pytest.approx(math.tan(math.pi * (share - 0.5)), rel=1e-9)
    two = (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    assert t_quantile(share, 2) == pytest.approx(two, rel=1e-9)


def test_t_is_normal_where_there_are_many_observations() -> None:
    assert t_quantile(0.975, 1_000_000) == pytest.approx(1.959966, abs=1e-5)


def test_a_mean_interval_is_the_one_worked_by_hand() -> None:
    # Mean 3, variance 2.5, so 3 -+ 2.7764 * sqrt(2.5 / 5).
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx((1.03676, 4.96324), abs=1e-5)
    assert mean_interval([1, 2, 3, 4, 5], confidence=0.9) == pytest.approx((1.49256, 4.50744), abs=1e-5)


def test_equal_values_have_an_interval_without_width() -> None:
    assert mean_interval([0.25] * 4) == (0.25, 0.25)


def test_one_value_says_nothing_about_its_spread() -> None:
    assert mean_interval([1.0]) == (-math.inf, math.inf)


def test_a_wilson_interval_is_the_one_worked_by_hand() -> None:
    # z2 = 3.84146: middle (8 + z2 / 2) / (10 + z2), half width sqrt(z2 * (8 * 2 / 10 + z2 / 4)) / (10 + z2).
    assert wilson_interval(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert wilson_interval(15, 100) == pytest.approx((0.093060, 0.232836), abs=1e-6)


def test_all_or_none_still_leave_doubt_on_one_side() -> None:
    z2 = 1.959963984540054**2
    assert wilson_interval(0, 10) == pytest.approx((0, z2 / (10 + z2)))
    assert wilson_interval(10, 10) == pytest.approx((10 / (10 + z2), 1))
    assert wilson_interval(0, 10)[0] == 0
    assert wilson_interval(10, 10)[1] == 1


@pytest.mark.parametrize("count", [1, 3, 10, 1000])
def test_a_wilson_interval_holds_the_share_and_stays_within_bounds(count: int) -> None:
    for successes in range(0, count + 1, max(1, count // 10)):
        low, high = wilson_interval(successes, count)
        assert 0 <= low <= successes / count <= high <= 1
        mirrored = wilson_interval(count - successes, count)
        assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high))
        wider = wilson_interval(successes, count, confidence=0.99)
        assert wider[0] <= low
        assert high <= wider[1]


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    chance = random.Random(5)
    runs = 400
    covered_mean = covered_share = 0
    for _ in range(runs):
        low, high = mean_interval([chance.gauss(7, 2) for _ in range(6)])
        covered_mean += low <= 7 <= high
        low, high = wilson_interval(sum(chance.random() < 0.3 for _ in range(40)), 40)
        covered_share += low <= 0.3 <= high
    assert 0.92 * runs <= covered_mean <= 0.98 * runs
    assert 0.92 * runs <= covered_share <= 0.98 * runs


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan])
def test_a_confidence_that_is_no_share_is_refused(confidence: float) -> None:
    with raises(ConfigError, "confidence"):
        wilson_interval(1, 2, confidence=confidence)
    with raises(ConfigError, "confidence"):
        mean_interval([1, 2], confidence=confidence)


def test_impossible_counts_and_values_are_refused() -> None:
    with raises(InvalidInputError, 0):
        wilson_interval(0, 0)
    with raises(InvalidInputError, 4, 3):
        wilson_interval(4, 3)
    with raises(InvalidInputError, -1):
        wilson_interval(-1, 3)
    with pytest.raises(InvalidInputError):
        mean_interval([])
    with raises(InvalidInputError, "nan"):
        mean_interval([1, math.nan])


def test_a_difference_of_two_samples_has_the_interval_worked_by_hand() -> None:
    # Equal sizes and variances, so 4 degrees of freedom: 2 -+ 2.7764 * sqrt(1 / 3 + 1 / 3).
    assert difference_interval([1, 2, 3], [3, 4, 5]) == pytest.approx((-0.26695, 4.26695), abs=1e-4)
    # The first sample has no spread, so the second one's 4 degrees of freedom: 3 -+ 2.7764 * sqrt(2.5 / 5).
    assert difference_interval([0, 0], [1, 2, 3, 4, 5]) == pytest.approx((1.03676, 4.96324), abs=1e-5)
    # Errors 1 / 3 and 6.5 / 3, so 2.5 ** 2 / (1 / 9 / 2 + 42.25 / 9 / 3) = 3.857 degrees: t between 2.776 and 3.182.
    low, high = difference_interval([1, 2, 3], [2, 6, 7, 9])
    assert (low + high) / 2 == pytest.approx(4)
    assert 2.776 < (high - low) / 2 / math.sqrt(2.5) < 3.182


def test_a_difference_on_common_keys_is_that_of_the_pairs() -> None:
    before, after = {"a": 1.0, "b": 10.0, "c": 5.0, "lost": 99.0}, {"c": 4.5, "b": 9.0, "a": 0.0, "new": -99.0}
    assert difference_interval(before, after) == pytest.approx(mean_interval([-1.0, -1.0, -0.5]))


def test_too_few_observations_leave_everything_open() -> None:
    everything = (-math.inf, math.inf)
    assert difference_interval([1.0], [2.0, 3.0]) == everything
    assert difference_interval([], [2.0, 3.0]) == everything
    assert difference_interval({"a": 1.0}, {"b": 0.0}) == everything
    assert difference_interval({"a": 1.0}, {"a": 0.0}) == everything


def test_values_without_any_spread_differ_exactly() -> None:
    assert difference_interval([1.0, 1.0], [0.5, 0.5]) == (-0.5, -0.5)
    assert ended_worse([1.0, 1.0], [1.0, 1.0]) is None


def test_a_metric_has_declined_when_the_interval_of_the_difference_is_below_zero() -> None:
    before, after = {"a": 1.0, "b": 10.0, "c": 5.0, "other": 0.0}, {"a": 0.0, "b": 9.0, "c": 4.5}
    found = ended_worse(before, after)
    assert found == Decline(16 / 3, 4.5, *difference_interval(before, after), 0.95)
    assert found is not None
    assert found.high < 0
    assert "val/reward" in found.describe("val/reward")
    assert "5.333 -> 4.5" in found.describe("val/reward")
    assert ended_worse(after, before) is None
    # The same values without their pairs: the spread of the tasks hides the difference.
    assert ended_worse(list(before.values()), list(after.values())) is None


def test_where_less_is_better_a_rise_is_a_decline() -> None:
    assert ended_worse([1.0, 1.1, 0.9], [3.0, 3.1, 2.9], mode="min") is not None
    assert ended_worse([1.0, 1.1, 0.9], [3.0, 3.1, 2.9]) is None
    assert ended_worse([3.0, 3.1, 2.9], [1.0, 1.1, 0.9], mode="min") is None
