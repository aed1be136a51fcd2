"""Advantages against hand-worked numbers and slow references."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.rl.internals import RunningMoments, explained_variance, gae, n_step_returns, next_values


def test_gae_of_two_episodes_by_hand() -> None:
    # Episode 1: rewards 1, 2, terminated. Episode 2: reward 3, cut, and the value after it is 10.
    value = np.array([0.5, 1.0, 2.0])
    after = next_values(value, np.array([0.0, 10.0]), np.array([2, 1]))
    assert after.tolist() == [1.0, 0.0, 10.0]
    last = np.array([False, True, True])
    advantage = gae(np.array([1.0, 2.0, 3.0]), value, after, last, discount=0.9, gae_lambda=0.5)
    # 2 - 1 = 1;  1 + 0.9 * 1 - 0.5 = 1.4, plus 0.45 * 1;  3 + 0.9 * 10 - 2 = 10
    assert advantage == pytest.approx([1.85, 1.0, 10.0])


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_gae_is_the_weighted_sum_of_later_surprises(
    lengths: list[int], discount: float, gae_lambda: float, seed: int
) -> None:
    rng, total = np.random.default_rng(seed), sum(lengths)
    reward, value = rng.normal(size=total), rng.normal(size=total)
    after = next_values(value, rng.normal(size=len(lengths)), np.array(lengths))
    last = np.zeros(total, bool)
    last[np.cumsum(lengths) - 1] = True
    found = gae(reward, value, after, last, discount=discount, gae_lambda=gae_lambda)
    surprise, start = reward + discount * after - value, 0
    for length in lengths:
        for step in range(start, start + length):
            later = range(step, start + length)
            wanted = sum((discount * gae_lambda) ** (each - step) * surprise[each] for each in later)
            assert found[step] == pytest.approx(wanted, abs=1e-9)
        start += length


def test_with_lambda_1_the_return_is_the_discounted_sum_of_rewards() -> None:
    reward, value = np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 7.0])
    after = next_values(value, np.array([0.0]), np.array([3]))
    advantage = gae(reward, value, after, np.array([False, False, True]), discount=0.5, gae_lambda=1.0)
    assert advantage + value == pytest.approx([3.0, 4.0, 4.0])


def test_n_step_returns_stop_at_the_end_of_an_episode() -> None:
    total, count = n_step_returns(np.array([1.0, 2.0, 4.0, 8.0]), np.array([3, 1]), discount=0.5, steps=2)
    assert total.tolist() == [2.0, 4.0, 4.0, 8.0]
    assert count.tolist() == [2, 2, 1, 1]


def test_explained_variance() -> None:
    returns = np.array([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 2.0), returns) == 0.0
    assert explained_variance(returns, np.ones(3)) == 0.0


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=8), min_size=1, max_size=6))
def test_running_moments_are_those_of_everything_seen(parts: list[list[float]]) -> None:
    moments = RunningMoments()
    for part in parts:
        moments.update(np.array(part))
    everything = [x for part in parts for x in part]
    assert moments.count == len(everything)
    if everything:
        assert moments.mean == pytest.approx(np.mean(everything), abs=1e-6)
        assert moments.variance == pytest.approx(np.var(everything), abs=1e-4)
    else:
        assert (moments.mean, moments.variance) == (0.0, 1.0)
