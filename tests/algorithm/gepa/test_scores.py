"""Rewards as gepa gets them, and the budget they are counted against."""

import pytest

from sharpen.errors import ConfigError
from tests.algorithm.internals import Budget, Evaluation, Item, ScoreScale, check_budget
from tests.errors import raises


def evaluation(reward: float, *, is_lost: bool = False) -> Evaluation:
    return Evaluation("ro-1", Item("val", 0, "task"), "succeeded", reward, is_lost=is_lost)


def test_sums_do_not_depend_on_the_order_of_the_tasks() -> None:
    rewards = [0.1, 0.2, 0.3]
    assert sum(rewards) != sum(reversed(rewards))
    scores = ScoreScale().of_all([evaluation(reward) for reward in rewards])
    assert sum(scores) == sum(reversed(scores))
    assert scores == pytest.approx(rewards, abs=1e-8)


def test_what_was_lost_gets_the_mean_of_the_others() -> None:
    scores = ScoreScale().of_all([evaluation(1.0), evaluation(0.0, is_lost=True), evaluation(0.5)])
    assert scores == [1.0, 0.75, 0.5]
    assert ScoreScale().of_all([evaluation(0.0, is_lost=True)]) == [0.0]


@pytest.mark.parametrize("worst", [0.0, -1.0, -250.0])
def test_for_merges_all_scores_are_positive(worst: float) -> None:
    scale = ScoreScale.for_merges([evaluation(worst), evaluation(worst + 1)])
    assert 0 < scale.of(worst) < scale.of(worst + 0.5) < scale.of(worst + 1)
    assert scale.of(worst + 1) - scale.of(worst) == 1.0


def test_an_evaluation_is_paid_for_once() -> None:
    budget = Budget(5)
    assert budget.take([["a", "b", "b"], ["b", "c"]]) == [2, 1]
    assert budget.take([["a", "c"]]) == [0]
    assert (budget.spent, budget.left) == (3, 2)


def test_what_does_not_fit_is_not_begun() -> None:
    budget = Budget(3)
    assert budget.take([["a", "b"]]) == [2]
    assert budget.take([["c"], ["d"]]) is None
    assert budget.spent == 2
    assert budget.take([["c"]]) == [1]


def test_a_budget_has_room_for_one_candidate_at_least() -> None:
    check_budget(22, num_val=8, minibatch_size=3)
    with raises(ConfigError, "max_metric_calls", 21, 22):
        check_budget(21, num_val=8, minibatch_size=3)
