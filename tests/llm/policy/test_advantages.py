"""Advantages, against numbers worked by hand and against plain loops."""

import math
import statistics
from typing import get_args

import pytest
import torch
from hypothesis import given, settings, strategies as st

from sharpen.errors import ConfigError, InvalidInputError
from tests.errors import raises
from tests.llm.internals import (
    GroupAdvantages,
    Scale,
    gae_advantages,
    reinforce_plus_plus_advantages,
    turn_advantages,
    whiten,
)

F64 = torch.float64


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def assert_near(found: torch.Tensor, wanted: list[float] | list[list[float]], tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=found.dtype), rtol=tolerance, atol=tolerance)


def of_rollouts(
    rewards_N: torch.Tensor, group_N: torch.Tensor, scale: Scale = "std", eps: float = 1e-6
) -> GroupAdvantages:
    """The advantages of whole rollouts, of one turn each: as training asks for those of GRPO and RLOO."""
    return turn_advantages(rewards_N, torch.arange(len(rewards_N)), group_N, scale=scale, eps=eps)


# -- groups, by hand ---------------------------------------------------------------------------------


def test_grpo_by_hand() -> None:
    # Group 7: mean 1, deviations -1 0 1, unbiased std 1. Group 3: mean 3, std sqrt(2).
    found = of_rollouts(numbers(0, 2, 1, 4, 2), torch.tensor([7, 3, 7, 3, 7]), eps=0.0)

    assert_near(found.advantages, [-1, -1 / math.sqrt(2), 0, 1 / math.sqrt(2), 1])
    assert found.is_used.all()
    assert not found.is_flat.any()


def test_grpo_without_std_is_the_distance_to_the_mean() -> None:
    found = of_rollouts(numbers(0, 2, 1, 4, 2), torch.tensor([7, 3, 7, 3, 7]), "none")

    assert_near(found.advantages, [-1, -1, 0, 1, 1])


def test_rloo_by_hand() -> None:
    # Each against the mean of the others: 0 - 1.5, 1 - 1, 2 - 0.5; and 2 - 4, 4 - 2.
    found = of_rollouts(numbers(0, 2, 1, 4, 2), torch.tensor([0, 1, 0, 1, 0]), "leave-one-out")

    assert_near(found.advantages, [-1.5, -2, 0, 2, 1.5])


def test_a_flat_group_gives_exact_zeros_in_float32() -> None:
    # The mean of these is off by a rounding, which a division by eps would turn into a signal.
    rewards = torch.full((7,), 0.1)
    assert rewards.sum() / 7 != rewards[0]

    for scale in get_args(Scale):
        found = of_rollouts(rewards, torch.zeros(7), scale)
        assert found.advantages.eq(0).all()
        assert found.is_flat.all()
        assert found.is_used.all()


def test_turn_rewards_of_the_same_sum_in_another_order_give_no_signal() -> None:
    # In float32 the two sums differ by a rounding.
    rewards = torch.tensor([0.1, 0.1, 0.6, 0.6, 0.1, 0.1])
    assert rewards[0] + rewards[1] + rewards[2] != rewards[3] + rewards[4] + rewards[5]

    found = turn_advantages(rewards, torch.tensor([0, 0, 0, 1, 1, 1]), torch.zeros(2))

    assert found.advantages[[0, 3]].abs().max() < 1e-6
    assert found.advantages.dtype == torch.float32


def test_a_group_of_one_is_left_out() -> None:
    found = of_rollouts(numbers(5, 0, 1), torch.tensor([4, 9, 9]))

    assert found.is_used.tolist() == [False, True, True]
    assert found.is_flat.tolist() == [False, False, False]
    assert found.advantages[0] == 0


def test_no_rollouts_have_no_advantages() -> None:
    assert of_rollouts(torch.zeros(0), torch.zeros(0, dtype=torch.long)).advantages.shape == (0,)


def test_whole_numbers_and_half_precision_are_counted_in_float32() -> None:
    for rewards in (torch.tensor([0, 1]), torch.tensor([0, 1], dtype=torch.bfloat16)):
        assert of_rollouts(rewards, torch.zeros(2), "leave-one-out").advantages.tolist() == [-1.0, 1.0]


# -- turns, by hand ----------------------------------------------------------------------------------


def test_turns_by_hand() -> None:
    # Two turns each: a reward for the call, one for the answer. To go: (1.5, 1), (0.5, 0), (1, 1).
    rewards = numbers(0.5, 1, 0.5, 0, 0, 1)
    found = turn_advantages(rewards, torch.tensor([0, 0, 1, 1, 2, 2]), torch.zeros(3), scale="none")

    assert_near(found.advantages, [0.5, 1 / 3, -0.5, -2 / 3, 0, 1 / 3])


def test_turns_are_discounted_by_turn() -> None:
    # To go: 1 + 0.5 * 2 = 2 and 2; 0 + 0.5 * 4 = 2 and 4. The first turns are equal.
    found = turn_advantages(numbers(1, 2, 0, 4), torch.tensor([0, 0, 1, 1]), torch.zeros(2), gamma=0.5, scale="none")

    assert_near(found.advantages, [0, -1, 0, 1])
    assert found.is_flat.tolist() == [True, False, True, False]


def test_a_rollout_that_ended_earlier_is_compared_by_its_last_turn() -> None:
    # Both earn 1 in all, one after three turns: nobody is better than the other.
    even = turn_advantages(numbers(1, 0, 0, 1), torch.tensor([0, 1, 1, 1]), torch.zeros(2))
    # The longer one has 2 to go in its third turn, the shorter ends with 1: 2 - 1.5.
    uneven = turn_advantages(numbers(1, 0, 0, 2), torch.tensor([0, 1, 1, 1]), torch.zeros(2), scale="none")

    assert even.advantages.eq(0).all()
    assert_near(uneven.advantages, [-0.5, 0.5, 0.5, 0.5])


def test_turns_of_different_rollouts_may_be_mixed() -> None:
    rewards, rollout = numbers(0.5, 1, 0.5, 0, 0, 1), torch.tensor([0, 0, 1, 1, 2, 2])
    order = torch.tensor([2, 0, 4, 5, 3, 1])

    straight = turn_advantages(rewards, rollout, torch.zeros(3))
    mixed = turn_advantages(rewards[order], rollout[order], torch.zeros(3))

    torch.testing.assert_close(mixed.advantages, straight.advantages[order])


def test_a_rollout_without_turns_counts_by_an_entry_of_its_own_and_else_not() -> None:
    alone = turn_advantages(numbers(1, 1), torch.tensor([0, 0]), torch.tensor([5, 5]))
    against = turn_advantages(numbers(1, 1, 0), torch.tensor([0, 0, 1]), torch.tensor([5, 5]), scale="none")

    assert not alone.is_used.any()
    # To go: (2, 1) against (0, 0), whose one entry stands for all its turns.
    assert_near(against.advantages, [1, 0.5, -1])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_with_only_a_final_reward_every_turn_has_the_advantage_of_its_rollout(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    finals = [data.draw(st.integers(-3, 3)) for _ in counts]
    group = torch.tensor([data.draw(st.integers(0, 2)) for _ in counts])
    rewards = numbers(
        *[value for final, count in zip(finals, counts, strict=True) for value in [0] * (count - 1) + [final]]
    )
    rollout = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))

    turns = turn_advantages(rewards, rollout, group)
    rollouts = of_rollouts(numbers(*finals), group)

    for per_turn, per_rollout in zip(turns, rollouts, strict=True):
        torch.testing.assert_close(per_turn, per_rollout[rollout])


# -- groups and turns, against loops -----------------------------------------------------------------


def relative(value: float, others: list[float], scale: Scale, eps: float) -> float:
    """One value against all of its group, itself among them."""
    if len(others) < 2 or len(set(others)) == 1:
        return 0.0
    if scale == "leave-one-out":
        rest = list(others)
        rest.remove(value)
        return value - statistics.fmean(rest)
    return (value - statistics.fmean(others)) / (statistics.stdev(others) + eps if scale == "std" else 1)


rewards_and_groups = st.lists(st.tuples(st.integers(-4, 4), st.integers(-2, 3)), max_size=14)


@settings(max_examples=50, deadline=None)
@given(rewards_and_groups)
def test_groups_agree_with_a_loop(rows: list[tuple[int, int]]) -> None:
    rewards, group = numbers(*[row[0] / 2 for row in rows]), torch.tensor([row[1] for row in rows], dtype=torch.long)
    members = [[r / 2 for r, g in rows if g == mine] for _, mine in rows]

    for scale in get_args(Scale):
        found = of_rollouts(rewards, group, scale)
        assert_near(found.advantages, [relative(r / 2, members[i], scale, 1e-6) for i, (r, _) in enumerate(rows)])
        assert found.is_used.tolist() == [len(each) >= 2 for each in members]


def turn_loop(
    rewards: list[float], rollout: list[int], group: list[int], gamma: float, scale: Scale, eps: float
) -> list[float]:
    turns: dict[int, list[int]] = {}
    for k, n in enumerate(rollout):
        turns.setdefault(n, []).append(k)
    to_go = {
        n: [sum(gamma**j * rewards[k] for j, k in enumerate(ks[i:])) for i in range(len(ks))] for n, ks in turns.items()
    }
    found = [0.0] * len(rewards)
    for n, ks in turns.items():
        peers = [to_go[m] for m in turns if group[m] == group[n]]
        for i, k in enumerate(ks):
            found[k] = relative(to_go[n][i], [peer[min(i, len(peer) - 1)] for peer in peers], scale, eps)
    return found


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), max_size=16),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.sampled_from([1.0, 0.5, 0.0]),
    st.sampled_from(["none", "std", "leave-one-out"]),
)
def test_turns_agree_with_a_loop(rows: list[tuple[int, int]], group: list[int], gamma: float, scale: Scale) -> None:
    rewards, rollout = [float(row[0]) for row in rows], [row[1] for row in rows]

    found = turn_advantages(
        numbers(*rewards), torch.tensor(rollout, dtype=torch.long), torch.tensor(group), gamma=gamma, scale=scale
    )

    assert_near(found.advantages, turn_loop(rewards, rollout, group, gamma, scale, 1e-6))


# -- per token, by hand ------------------------------------------------------------------------------


def test_gae_by_hand() -> None:
    # delta: 0 + 0.5 * 2 - 1 = 0; 0 + 0.5 * 4 - 2 = 0; 8 - 4 = 4. Each passes on a quarter.
    advantages, returns = gae_advantages(
        numbers(1, 2, 4)[None], numbers(0, 0, 8)[None], torch.ones(1, 3), gamma=0.5, lam=0.5
    )

    assert_near(advantages, [[0.25, 1, 4]])
    assert_near(returns, [[1.25, 3, 8]])


def test_gae_passes_over_tool_tokens() -> None:
    # The same trajectory with a prompt and two tool tokens that hold garbage, and a shorter one beside it.
    values = torch.tensor([[9, 1, 2, math.nan, 9, 4], [9, 3, 9, 9, 9, 9]], dtype=F64)
    rewards = torch.tensor([[9, 0, 0, 9, math.inf, 8], [9, 5, 9, 9, 9, 9]], dtype=F64)
    mask = torch.tensor([[0, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0]])

    advantages, returns = gae_advantages(values, rewards, mask, gamma=0.5, lam=0.5)

    assert_near(advantages, [[0, 0.25, 1, 0, 0, 4], [0, 2, 0, 0, 0, 0]])
    assert_near(returns, [[0, 1.25, 3, 0, 0, 8], [0, 5, 0, 0, 0, 0]])


def test_whitening_by_hand() -> None:
    # Of 1, 3, 5: mean 3, unbiased std 2.
    values, mask = torch.tensor([[1.0, 100.0], [3.0, 5.0]], dtype=F64), torch.tensor([[1, 0], [1, 1]])

    assert_near(whiten(values, mask, eps=0.0), [[-1, 0], [0, 1]])


@pytest.mark.parametrize("mask", [[[1, 1, 0]], [[0, 0, 1]], [[0, 0, 0]]])
def test_equal_values_one_value_and_none_are_whitened_to_zero(mask: list[list[int]]) -> None:
    assert whiten(torch.tensor([[0.1, 0.1, 7.0]]), torch.tensor(mask)).eq(0).all()


def test_reinforce_plus_plus_by_hand() -> None:
    # With a tool token between the two of the first row. Returns: -1 + 0.5 * 3 = 0.5 and 3; in the second row 5.5.
    # Mean 3, unbiased std 2.5.
    mask = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0]])
    rewards = torch.tensor([[math.nan, -1, 99, 3], [0, 0, 5.5, 0]], dtype=F64)

    found = reinforce_plus_plus_advantages(rewards, mask, gamma=0.5)

    assert_near(found, [[0, -1, 0, 0], [0, 0, 1, 0]], 1e-7)


# -- per token, against loops ------------------------------------------------------------------------


def gae_loop(values: list[float], rewards: list[float], mask: list[int], gamma: float, lam: float) -> list[float]:
    found, advantage, next_value = [0.0] * len(values), 0.0, 0.0
    for t in reversed(range(len(values))):
        if mask[t]:
            advantage = rewards[t] + gamma * next_value - values[t] + gamma * lam * advantage
            found[t], next_value = advantage, values[t]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_gae_agrees_with_a_loop(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rows, width = (3, [1, 2, 7, 33][seed % 4])
    values, rewards = (torch.randn(rows, width, generator=random, dtype=F64) for _ in range(2))
    mask = torch.rand(rows, width, generator=random) < 0.7
    gamma, lam = [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.0, 0.5)][seed // 3]

    advantages, returns = gae_advantages(values, rewards, mask, gamma=gamma, lam=lam)

    wanted = [gae_loop(values[b].tolist(), rewards[b].tolist(), mask[b].tolist(), gamma, lam) for b in range(rows)]
    assert_near(advantages, wanted)
    torch.testing.assert_close(returns, torch.where(mask, torch.tensor(wanted, dtype=F64) + values, 0.0))


@pytest.mark.parametrize("seed", range(8))
def test_reinforce_plus_plus_agrees_with_a_loop(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rewards = torch.randn(4, 9, generator=random, dtype=F64)
    mask = torch.rand(4, 9, generator=random) < 0.6
    gamma = [1.0, 0.9, 0.5, 0.0][seed % 4]

    found = reinforce_plus_plus_advantages(rewards, mask, gamma=gamma)

    returns = [gae_loop([0.0] * 9, rewards[b].tolist(), mask[b].tolist(), gamma, 1.0) for b in range(4)]
    chosen = [returns[b][t] for b in range(4) for t in range(9) if mask[b, t]]
    mean, deviation = statistics.fmean(chosen), statistics.stdev(chosen)
    wanted = [[(returns[b][t] - mean) / (deviation + 1e-8) if mask[b, t] else 0.0 for t in range(9)] for b in range(4)]
    assert_near(found, wanted)


def test_long_rows_are_summed_exactly_enough_in_float32() -> None:
    random = torch.Generator().manual_seed(0)
    rewards, mask = torch.randn(1, 5000, generator=random), torch.ones(1, 5000)

    found, _ = gae_advantages(torch.zeros(1, 5000), rewards, mask, gamma=0.999, lam=0.99)

    wanted = gae_loop([0.0] * 5000, rewards[0].tolist(), [1] * 5000, 0.999, 0.99)
    assert_near(found.double(), [wanted], 1e-4)


def test_rows_without_positions_have_no_advantages() -> None:
    empty = torch.zeros(2, 0)
    assert gae_advantages(empty, empty, empty)[0].shape == (2, 0)


# -- bad input ---------------------------------------------------------------------------------------


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with raises(InvalidInputError, 1, "nan"):
        of_rollouts(numbers(0, math.nan), torch.zeros(2))


def test_rewards_and_rollouts_of_different_lengths_are_refused() -> None:
    with raises(InvalidInputError, "(2,)", "rollout_K", "(3,)"):
        turn_advantages(numbers(0, 1), torch.arange(3), torch.zeros(3))


def test_a_turn_of_an_unknown_rollout_is_refused() -> None:
    with raises(InvalidInputError, "rollout_K", 0, 2, "group_N"):
        turn_advantages(numbers(0, 1), torch.tensor([0, 2]), torch.zeros(2))
    with raises(InvalidInputError, "rollout_K", -1, 0):
        turn_advantages(numbers(0, 1), torch.tensor([0, -1]), torch.zeros(2))


def test_an_unknown_scale_is_refused() -> None:
    with raises(ConfigError, "scale", "variance", "none", "std", "leave-one-out"):
        turn_advantages(numbers(0, 1), torch.tensor([0, 1]), torch.zeros(2), scale="variance")  # type: ignore[arg-type]


def test_a_discount_above_one_is_refused() -> None:
    with raises(ConfigError, "gamma", 1.5):
        gae_advantages(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2), gamma=1.5)
    with raises(ConfigError, "lam", -1):
        gae_advantages(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2), lam=-1)


def test_rewards_per_row_are_not_taken_for_rewards_per_token() -> None:
    with raises(InvalidInputError, "rewards_BT", "(2, 1)"):
        reinforce_plus_plus_advantages(torch.zeros(2, 1), torch.ones(2, 3))
