"""Log-probabilities and entropies of actions, exact and without objects (B: minibatch, A: actions, D: dimensions)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


def categorical(logits_B_A: Tensor, action_B: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each action, and the entropy of each distribution."""
    log_prob_B_A = torch.log_softmax(logits_B_A, dim=-1)
    log_prob_B = log_prob_B_A.gather(-1, action_B.unsqueeze(-1)).squeeze(-1)
    return log_prob_B, -(log_prob_B_A.exp() * log_prob_B_A).sum(-1)


def gaussian(mean_B_D: Tensor, log_std_D: Tensor, action_B_D: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density of each action under independent normals, and the entropy of each distribution."""
    z_B_D = (action_B_D - mean_B_D) * torch.exp(-log_std_D)
    log_std_B_D = log_std_D.expand_as(mean_B_D)
    log_prob_B = (-0.5 * z_B_D.square() - log_std_B_D - _HALF_LOG_2PI).sum(-1)
    return log_prob_B, (log_std_B_D + 0.5 + _HALF_LOG_2PI).sum(-1)


def squashed_gaussian(mean_B_D: Tensor, log_std_B_D: Tensor, noise_B_D: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std * noise) in (-1, 1), and its exact log-density.

    The density of the normal is divided by the slope of tanh, 1 - tanh(u)^2. Its logarithm is written as
    2 (log 2 - u - softplus(-2u)), which stays finite where tanh rounds to 1.
    """
    u_B_D = mean_B_D + log_std_B_D.exp() * noise_B_D
    normal_B_D = -0.5 * noise_B_D.square() - log_std_B_D - _HALF_LOG_2PI
    log_slope_B_D = 2.0 * (_LOG_2 - u_B_D - F.softplus(-2.0 * u_B_D))
    return torch.tanh(u_B_D), (normal_B_D - log_slope_B_D).sum(-1)
