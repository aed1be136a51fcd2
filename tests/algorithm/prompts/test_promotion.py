"""Who becomes the best, and on which evidence."""

import random

import pytest

from tests.algorithm.internals import is_better


@pytest.mark.parametrize("promotion", ["interval", "mean"])
def test_nothing_in_common_is_no_evidence(promotion: str) -> None:
    assert not is_better([], promotion)  # type: ignore[arg-type]


def test_by_the_mean_any_lead_is_enough() -> None:
    assert is_better([0.01], "mean")
    assert is_better([1.0, 1.0, -1.0], "mean")
    assert not is_better([1.0, -1.0], "mean")
    assert not is_better([-0.01], "mean")


def test_one_task_is_never_evidence() -> None:
    assert not is_better([1.0], "interval")


def test_a_lead_on_every_task_is_evidence_and_a_mixed_one_needs_more() -> None:
    assert is_better([0.1] * 5, "interval")
    assert not is_better([1.0, 1.0, -1.0], "interval")
    assert is_better([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, -1.0, 1.0], "interval")
    assert not is_better([0.0] * 20, "interval")


def test_equals_are_promoted_in_one_of_ten_cases() -> None:
    """The one-sided interval of 90 %."""
    chance = random.Random(1)
    cases = [[chance.gauss(0, 1) for _ in range(16)] for _ in range(300)]
    share = sum(is_better(case, "interval") for case in cases) / len(cases)
    assert share == pytest.approx(0.1, abs=0.04)


def test_the_scale_of_rewards_does_not_matter() -> None:
    case = [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, -1.0, 1.0]
    assert is_better([1e-6 * each for each in case], "interval")
    assert is_better([1e6 * each for each in case], "interval")
