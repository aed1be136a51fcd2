"""Advantages: rewards into credit. Pure functions on torch tensors.

Axis letters: N rollouts, C values of each, K turns of all rollouts, B rows, T positions in a row. A row of B is one
trajectory: where a rollout has several sequences, they stand behind one another in it, in the order of time.

Positions outside the mask (prompts, users, tools) are passed over: they get no credit, and credit goes past them
undiminished, so the last token of a turn is followed by the first sampled token of the next.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ...errors import ConfigError, InvalidInputError
from .losses import as_floats, check_rows, only_masked

Scale = Literal["none", "std", "leave-one-out"]
"""What the distance to the group's mean is divided by: nothing, the group's standard deviation, or (n - 1) / n, which
makes it the distance to the mean of the others."""


class GroupAdvantages(NamedTuple):
    """Advantages relative to a group, and two masks of the same shape."""

    advantages: Tensor
    is_used: Tensor
    """False where a group has fewer than two members: there is nothing to compare with, and the advantage is 0."""
    is_flat: Tensor
    """True where a group of two or more has no spread: the advantage is exactly 0."""


# -- relative to a group -----------------------------------------------------------------------------


def turn_advantages(
    rewards_K: Tensor,
    rollout_K: Tensor,
    group_N: Tensor,
    *,
    gamma: float = 1.0,
    scale: Scale = "std",
    eps: float = 1e-6,
) -> GroupAdvantages:
    """Per turn: the discounted rewards from it to the end of its rollout, relative to the group's at the same turn.

    With the scale "std" or "none" this is GRPO, with "leave-one-out" RLOO. To compare whole rollouts, give each of them
    one turn. `group_N` holds any number that is the same for the rollouts of one group; groups may differ in size.

    The turns of one rollout come in the order of time; `rollout_K` says whose they are, and a turn without a reward has
    0. A rollout that ended earlier is compared by its last turn. So with nothing but a final reward and no discount,
    every turn has the advantage of its rollout. A rollout without turns still counts in its group when it is given one
    entry that no token points to.
    """
    _check_rewards(rewards_K, rollout_K, "rollout_K")
    _check_share("gamma", gamma)
    rollout_R, row_K = torch.unique(rollout_K.cpu(), return_inverse=True)
    _check_rollouts(rollout_R, group_N)
    count_R = torch.bincount(row_K, minlength=len(rollout_R))
    step_K = _number_within_row(row_K, count_R)
    step_C = torch.arange(int(count_R.max()) if len(count_R) else 0)
    rewards_RC = torch.zeros(len(rollout_R), len(step_C), dtype=torch.float64)
    rewards_RC[row_K, step_K] = _exact(rewards_K)
    compared_RC = torch.minimum(step_C[None, :], count_R[:, None] - 1)
    to_go_RC = _discounted_sums(rewards_RC, gamma).gather(1, compared_RC)
    relative = _group_relative(to_go_RC, group_N.cpu()[rollout_R], scale, eps)
    return _like(rewards_K, *(each_RC[row_K, step_K] for each_RC in relative))


def _exact(rewards: Tensor) -> Tensor:
    """In float64 on the CPU: there are few, and roundings must not look like a spread."""
    return rewards.detach().to("cpu", torch.float64)


def _like(rewards: Tensor, advantages: Tensor, is_used: Tensor, is_flat: Tensor) -> GroupAdvantages:
    """Back where the rewards came from."""
    advantages = advantages.to(rewards.device, as_floats(rewards).dtype)
    return GroupAdvantages(advantages, is_used.to(rewards.device), is_flat.to(rewards.device))


def _group_relative(values_NC: Tensor, group_N: Tensor, scale: Scale, eps: float) -> GroupAdvantages:
    """Each column on its own."""
    group_ids, index_N = torch.unique(group_N, return_inverse=True)
    zeros_GC = values_NC.new_zeros(len(group_ids), values_NC.shape[1])
    size_N1 = torch.bincount(index_N, minlength=len(group_ids))[index_N, None]
    centred_NC = values_NC - zeros_GC.index_add(0, index_N, values_NC)[index_N] / size_N1
    is_used_NC = (size_N1 >= 2).expand_as(values_NC)
    # By the extremes: the mean of equal numbers may be off by a rounding, which a tiny deviation would blow up.
    is_flat_NC = is_used_NC & (_extreme(values_NC, index_N, "amin") == _extreme(values_NC, index_N, "amax"))
    others_N1 = (size_N1 - 1).clamp(min=1)
    if scale == "std":
        variance_NC = zeros_GC.index_add(0, index_N, centred_NC.square())[index_N] / others_N1
        scaled_NC = centred_NC / (variance_NC.sqrt() + eps)
    elif scale == "leave-one-out":
        scaled_NC = centred_NC * size_N1 / others_N1
    elif scale == "none":
        scaled_NC = centred_NC
    else:
        raise ConfigError(f"scale is {scale!r}: use {', '.join(map(repr, get_args(Scale)))}")
    return GroupAdvantages(torch.where(is_used_NC & ~is_flat_NC, scaled_NC, 0.0), is_used_NC, is_flat_NC)


def _extreme(values_NC: Tensor, index_N: Tensor, which: Literal["amin", "amax"]) -> Tensor:
    """The least or greatest value in the group of each row."""
    index_NC = index_N[:, None].expand_as(values_NC)
    return torch.zeros_like(values_NC).scatter_reduce(0, index_NC, values_NC, which, include_self=False)[index_N]


def _number_within_row(row_K: Tensor, count_R: Tensor) -> Tensor:
    """For each entry, how many of the same row came before it."""
    order_K = torch.argsort(row_K, stable=True)
    start_R = count_R.cumsum(0) - count_R
    number_K = torch.empty_like(row_K)
    number_K[order_K] = torch.arange(len(row_K), device=row_K.device) - start_R[row_K[order_K]]
    return number_K


# -- per token ---------------------------------------------------------------------------------------


def gae_advantages(
    values_BT: Tensor, rewards_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates, and the returns that the critic learns (advantage plus value).

    After the last sampled token of a row nothing more is to come. Neither is normalised: see `whiten`.
    """
    check_rows(mask_BT, values_BT=values_BT, rewards_BT=rewards_BT)
    _check_share("gamma", gamma)
    _check_share("lam", lam)
    order_BT = _sampled_first(mask_BT)
    value_BT = _in_order(values_BT, mask_BT, order_BT)
    next_value_BT = torch.nn.functional.pad(value_BT[:, 1:], (0, 1)) if value_BT.shape[1] else value_BT
    delta_BT = _in_order(rewards_BT, mask_BT, order_BT) + gamma * next_value_BT - value_BT
    advantages_BT = _discounted_sums(delta_BT, gamma * lam)
    returns_BT = advantages_BT + value_BT
    return _in_place(advantages_BT, order_BT), _in_place(returns_BT, order_BT)


def reinforce_plus_plus_advantages(rewards_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0) -> Tensor:
    """The discounted rewards from each sampled token on, normalised over all of them in the batch.

    The rewards per token are those of the turns, on their last tokens, less the KL penalty of each token.
    """
    check_rows(mask_BT, rewards_BT=rewards_BT)
    _check_share("gamma", gamma)
    order_BT = _sampled_first(mask_BT)
    returns_BT = _discounted_sums(_in_order(rewards_BT, mask_BT, order_BT), gamma)
    return whiten(_in_place(returns_BT, order_BT), mask_BT)


def whiten(values_BT: Tensor, mask_BT: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Mean 0 and (unbiased) standard deviation 1 over the mask; 0 elsewhere, and where all are equal."""
    check_rows(mask_BT, values_BT=values_BT)
    mask_BT = mask_BT.bool()
    values = as_floats(values_BT)[mask_BT]
    if len(values) < 2 or bool(values.min() == values.max()):
        return torch.zeros_like(as_floats(values_BT))
    scaled_BT = (as_floats(values_BT) - values.mean()) / (values.std() + eps)
    return torch.where(mask_BT, scaled_BT, 0.0)


def _sampled_first(mask_BT: Tensor) -> Tensor:
    """The order in which the positions of the mask come first, each kind in the order of time."""
    return torch.argsort((~mask_BT.bool()).to(torch.int8), dim=1, stable=True)


def _in_order(values_BT: Tensor, mask_BT: Tensor, order_BT: Tensor) -> Tensor:
    return only_masked(values_BT, mask_BT).gather(1, order_BT)


def _in_place(ordered_BT: Tensor, order_BT: Tensor) -> Tensor:
    return torch.zeros_like(ordered_BT).scatter(1, order_BT, ordered_BT)


def _discounted_sums(values_BT: Tensor, decay: float) -> Tensor:
    """sum_t = value_t + decay * sum_{t+1}, in log2(T) steps: each doubles how far the sums reach."""
    sums_BT, reach = values_BT, 1
    while reach < values_BT.shape[1]:
        sums_BT = sums_BT + decay**reach * torch.nn.functional.pad(sums_BT[:, reach:], (0, reach))
        reach *= 2
    return sums_BT


# -- checks ------------------------------------------------------------------------------------------


def _check_rewards(rewards: Tensor, index: Tensor, name: str) -> None:
    if rewards.dim() != 1 or index.shape != rewards.shape:
        raise InvalidInputError(
            f"rewards have the shape {tuple(rewards.shape)} and {name} {tuple(index.shape)}: use equal lengths"
        )
    is_bad = ~torch.isfinite(rewards)
    if bool(is_bad.any()):
        place = int(is_bad.nonzero()[0])
        raise InvalidInputError(f"reward {place} is {float(rewards[place])}: use finite numbers")


def _check_rollouts(rollout_R: Tensor, group_N: Tensor) -> None:
    """`rollout_R` is sorted."""
    if not len(rollout_R):
        return
    first, last = int(rollout_R[0]), int(rollout_R[-1])
    if first < 0 or last >= len(group_N):
        raise InvalidInputError(f"rollout_K goes from {first} to {last}, but group_N has {len(group_N)} rollouts")


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}: use a number from 0 to 1")
