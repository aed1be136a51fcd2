"""Losses of the policies: pure functions on tensors, each the mean over a minibatch (axis B)."""

import torch
from torch import Tensor


def clipped_surrogate(log_prob_B: Tensor, old_log_prob_B: Tensor, advantage_B: Tensor, *, eps_clip: float) -> Tensor:
    """PPO's policy loss: the pessimistic one of the plain and the clipped ratio."""
    ratio_B = (log_prob_B - old_log_prob_B).exp()
    clipped_B = ratio_B.clamp(1.0 - eps_clip, 1.0 + eps_clip)
    return -torch.min(ratio_B * advantage_B, clipped_B * advantage_B).mean()


def value_loss(value_B: Tensor, return_B: Tensor) -> Tensor:
    """Mean squared error of a critic."""
    return (return_B - value_B).square().mean()


def clipped_value_loss(value_B: Tensor, old_value_B: Tensor, return_B: Tensor, *, eps_clip: float) -> Tensor:
    """The larger of the plain error and that of a value which stays within `eps_clip` of the old one."""
    near_B = old_value_B + (value_B - old_value_B).clamp(-eps_clip, eps_clip)
    return torch.max((return_B - value_B).square(), (return_B - near_B).square()).mean()


def double_q_target(
    reward_B: Tensor, discount_B: Tensor, next_q_B_A: Tensor, target_q_B_A: Tensor, *, is_double: bool
) -> Tensor:
    """What a Q-value should be. `discount_B` is 0 after a terminal step.

    With `is_double` the online network chooses the next action and the target network judges it.
    """
    chooser = next_q_B_A if is_double else target_q_B_A
    best_B = chooser.argmax(dim=-1, keepdim=True)
    return reward_B + discount_B * target_q_B_A.gather(-1, best_B).squeeze(-1)


def soft_q_target(
    reward_B: Tensor, discount_B: Tensor, q1_B: Tensor, q2_B: Tensor, log_prob_B: Tensor, temperature: Tensor
) -> Tensor:
    """SAC's target: the more pessimistic critic plus the entropy bonus of the next action."""
    return reward_B + discount_B * (torch.min(q1_B, q2_B) - temperature * log_prob_B)


def normalised(advantage_B: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1; a single or constant advantage becomes 0."""
    if len(advantage_B) < 2:
        return torch.zeros_like(advantage_B)
    return (advantage_B - advantage_B.mean()) / (advantage_B.std() + 1e-8)
