"""Losses and densities against hand-worked numbers and torch's own distributions."""

import math

import numpy as np
import pytest
import torch
from torch import distributions as reference, tensor

from tests.rl.internals import (
    categorical,
    clipped_surrogate,
    clipped_value_loss,
    double_q_target,
    gaussian,
    normalised,
    soft_q_target,
    squashed_gaussian,
)


def test_clipped_surrogate_takes_the_pessimistic_side() -> None:
    log_prob = tensor([math.log(1.5), math.log(0.5), math.log(1.5), math.log(0.5)])
    advantage = tensor([1.0, 1.0, -1.0, -1.0])
    loss = clipped_surrogate(log_prob, torch.zeros(4), advantage, eps_clip=0.2)
    # min(1.5, 1.2) = 1.2; min(0.5, 0.8) = 0.5; min(-1.5, -1.2) = -1.5; min(-0.5, -0.8) = -0.8
    assert loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)


def test_a_ratio_beyond_the_clip_has_no_gradient_where_it_would_help() -> None:
    log_prob = tensor([math.log(1.5), math.log(0.5)], requires_grad=True)
    clipped_surrogate(log_prob, torch.zeros(2), tensor([1.0, -1.0]), eps_clip=0.2).backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [0.0, 0.0]


def test_clipped_value_loss_takes_the_larger_error() -> None:
    loss = clipped_value_loss(tensor([2.0, 0.1]), tensor([0.0, 0.0]), tensor([2.0, 1.0]), eps_clip=0.3)
    # 0 against (2 - 0.3)^2 = 2.89; 0.81 against 0.81
    assert loss.item() == pytest.approx((2.89 + 0.81) / 2)


def test_double_q_judges_the_online_choice_with_the_target() -> None:
    online, target = tensor([[1.0, 2.0]]), tensor([[30.0, 20.0]])
    arguments = (tensor([1.0]), tensor([0.5]), online, target)
    assert double_q_target(*arguments, is_double=True).item() == 11.0
    assert double_q_target(*arguments, is_double=False).item() == 16.0


def test_soft_q_target() -> None:
    one = tensor([1.0])
    found = soft_q_target(one, tensor([0.9]), tensor([5.0]), tensor([4.0]), tensor([-2.0]), tensor(0.5))
    assert found.item() == pytest.approx(1 + 0.9 * (4 + 1))


def test_normalised_advantages() -> None:
    assert normalised(tensor([1.0, 3.0])).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert normalised(tensor([7.0])).tolist() == [0.0]
    assert normalised(tensor([7.0, 7.0])).tolist() == [0.0, 0.0]


def test_categorical_agrees_with_torch() -> None:
    logits, action = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    wanted = reference.Categorical(logits=logits)
    log_prob, entropy = categorical(logits, action)
    torch.testing.assert_close(log_prob, wanted.log_prob(action))
    torch.testing.assert_close(entropy, wanted.entropy())


def test_gaussian_agrees_with_torch() -> None:
    mean, log_std, action = torch.randn(5, 3), torch.randn(3), torch.randn(5, 3)
    wanted = reference.Independent(reference.Normal(mean, log_std.exp()), 1)
    log_prob, entropy = gaussian(mean, log_std, action)
    torch.testing.assert_close(log_prob, wanted.log_prob(action))
    torch.testing.assert_close(entropy, wanted.entropy())


def test_the_squashed_density_is_that_of_the_change_of_variables() -> None:
    torch.manual_seed(0)
    mean, log_std, noise = (torch.randn(6, 2, dtype=torch.float64) * scale for scale in (1.0, 0.5, 1.0))
    action, log_prob = squashed_gaussian(mean, log_std, noise)
    normal = reference.Normal(mean, log_std.exp())
    wanted = reference.TransformedDistribution(normal, reference.TanhTransform())
    torch.testing.assert_close(log_prob, wanted.log_prob(action).sum(-1), rtol=1e-6, atol=1e-6)


def test_the_squashed_density_integrates_to_one() -> None:
    u = torch.linspace(-12, 12, 200_001, dtype=torch.float64).unsqueeze(-1)
    mean, log_std = torch.full_like(u, 0.3), torch.full_like(u, -0.4)
    action, log_prob = squashed_gaussian(mean, log_std, (u - mean) / log_std.exp())
    area = np.trapezoid(log_prob.exp().numpy(), action.squeeze(-1).numpy())
    assert area == pytest.approx(1.0, abs=1e-6)


def test_the_squashed_density_stays_finite_where_tanh_rounds_to_one() -> None:
    action, log_prob = squashed_gaussian(torch.full((1, 1), 40.0), torch.zeros(1, 1), torch.zeros(1, 1))
    assert action.item() == 1.0
    assert torch.isfinite(log_prob).all()
