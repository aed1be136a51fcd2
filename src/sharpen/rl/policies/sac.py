"""SAC: soft actor-critic for bounded continuous actions, from top to bottom.

    collect with sampled actions -> add to the buffer -> gradient steps: twin critics, actor, temperature

The actor samples the tanh of a normal. The temperature is learned so that the entropy stays at a target, by default
minus the number of action dimensions.

Axis letters: N is the observations of one call, B a minibatch, D the dimensions of an action.
"""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from ...checks import check_names
from ...errors import ConfigError
from ..policy import Actions, EpisodeBatch
from ..trees import Array, row_count
from .networks import ActionBox, Head, NumpyMLP, Observation, as_tensors, flat_size, flatten, load_weights
from .replay import ReplayBuffer, Transitions, transitions
from .updates import (
    LEARN_OPTIONS,
    check_losses,
    gradient_step,
    limit_threads,
    load_optimiser_state,
    load_rng_state,
    new_rng,
    optimiser_state,
    rng_state,
    weights_state,
)

_LOG_STD_MIN, _LOG_STD_MAX = -20.0, 2.0


class SAC:
    """Soft actor-critic with twin critics and, with `alpha="auto"`, a learned temperature.

    The first `learning_starts` steps are played at random. `learn` makes `updates_per_step` gradient steps per
    collected step.
    """

    def __init__(
        self,
        network: nn.Module,
        obs_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr: float,
        weight_decay: float = 0.0,
        discount_factor: float = 0.99,
        tau: float = 0.005,
        alpha: float | Literal["auto"] = "auto",
        weight_file: str | Path | None = None,
        *,
        target_entropy: float | None = None,
        critic_hidden_sizes: Sequence[int] = (256, 256),
        critic_lr: float | None = None,
        estimation_step: int = 1,
        buffer_size: int = 100_000,
        batch_size: int = 256,
        learning_starts: int = 100,
        updates_per_step: float = 1.0,
        seed: int | None = None,
    ) -> None:
        if not isinstance(action_space, spaces.Box) or not ActionBox(action_space).is_bounded:
            raise ConfigError(f"SAC supports bounded Box action spaces, not {action_space}")
        self.obs_space, self.action_space = obs_space, action_space
        self._box = ActionBox(action_space)
        critic = TwinQ(obs_space, self._box.size, critic_hidden_sizes)
        self.module = SACNetworks(network, critic, self._box.size, 1.0 if alpha == "auto" else float(alpha))
        if weight_file is not None:
            load_weights(self.module, weight_file)
        self.target = copy.deepcopy(self.module.critic).requires_grad_(False)
        self._actor_optimiser = _adam(self.module.actor, lr, weight_decay)
        self._critic_optimiser = _adam(self.module.critic, critic_lr or lr, weight_decay)
        self._temperature_optimiser = torch.optim.Adam([self.module.log_temperature], lr=lr)
        self._learns_temperature = alpha == "auto"
        self.target_entropy = -float(self._box.size) if target_entropy is None else target_entropy
        self.discount_factor, self.tau, self.estimation_step = discount_factor, tau, estimation_step
        self.batch_size, self.learning_starts, self.updates_per_step = batch_size, learning_starts, updates_per_step
        self.buffer = ReplayBuffer(buffer_size, learning_starts=learning_starts)
        self.steps, self._updates_due = 0, 0.0
        self._rng = new_rng(seed)
        self._numpy_actor = NumpyMLP.of(self.module.actor)

    # Acting

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """Sample an action for each observation, or take the mean of the distribution."""
        draws, count, size = rng if rng is not None else self._rng, row_count(obs_N), self._box.size
        if deterministic:
            return Actions(self._box.to_action(np.tanh(self._actor_outputs(obs_N)[:, :size])))
        if self.steps < self.learning_starts:
            return Actions(self._box.to_action(2.0 * draws.random((count, size)) - 1.0))
        output_N = self._actor_outputs(obs_N)
        std_N_D = np.exp(np.clip(output_N[:, size:], _LOG_STD_MIN, _LOG_STD_MAX))
        return Actions(
            self._box.to_action(np.tanh(output_N[:, :size] + std_N_D * draws.standard_normal((count, size))))
        )

    def _actor_outputs(self, obs_N: Any) -> Array:
        if self._numpy_actor is not None:
            return self._numpy_actor(obs_N)
        with limit_threads(self.module), torch.inference_mode():
            return self.module.actor(as_tensors(obs_N, self._device)).numpy(force=True)  # type: ignore[no-any-return]

    @property
    def _device(self) -> torch.device:
        return self.module.actor.out.weight.device

    # Learning

    def learn(
        self, batch: EpisodeBatch, *, repeat: int | None = None, batch_size: int | None = None, **unknown: Any
    ) -> dict[str, float]:
        """Store the episodes and make `repeat` gradient steps (default: `updates_per_step` per collected step)."""
        check_names(unknown, LEARN_OPTIONS, owner="SAC.learn")
        fresh = transitions(batch, discount=self.discount_factor, steps=self.estimation_step)
        self.buffer.add(fresh | {"action": self._box.from_action(fresh["action"])})
        self.steps += len(batch)
        metrics = {"buffer": float(len(self.buffer))}
        if len(self.buffer) < self.learning_starts:
            return metrics
        self._updates_due += len(batch) * self.updates_per_step
        count = int(self._updates_due) if repeat is None else repeat
        self._updates_due -= int(self._updates_due)
        size = batch_size or self.batch_size
        with limit_threads(self.module):
            parts = [self._step(self.buffer.sample(self._rng, size), size) for _ in range(count)]
        names = ("loss/critic", "loss/actor", "entropy", "alpha")
        metrics |= dict(zip(names, np.mean(parts, axis=0).tolist(), strict=True)) if parts else {}
        return check_losses("SAC", metrics, batch)

    def _step(self, part: Transitions, size: int) -> tuple[float, float, float, float]:
        """Make one gradient step of critics, actor and temperature on random transitions and return their metrics."""
        part = as_tensors(part, self._device)
        temperature = self.module.log_temperature.detach().exp()
        critic_loss = self._critic_step(part, temperature, self._noise(size))
        actor_loss, entropy = self._actor_step(part["obs"], temperature, self._noise(size))
        if self._learns_temperature:
            gap = entropy - self.target_entropy
            gradient_step(self._temperature_optimiser, self.module.log_temperature * gap)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.module.critic.parameters()), self.tau)
        return critic_loss, actor_loss, entropy, float(temperature)

    def _critic_step(self, part: Any, temperature: Tensor, noise: Tensor) -> float:
        with torch.no_grad():
            next_action, log_prob = self.module.sample(part["next_obs"], noise)
            q1, q2 = self.target(part["next_obs"], next_action)
            target = soft_q_target(part["reward"], part["discount"], q1, q2, log_prob, temperature)
        first, second = self.module.critic(part["obs"], part["action"])
        loss = 0.5 * ((target - first).square().mean() + (target - second).square().mean())
        gradient_step(self._critic_optimiser, loss)
        return float(loss.detach())

    def _actor_step(self, obs: Any, temperature: Tensor, noise: Tensor) -> tuple[float, float]:
        action, log_prob = self.module.sample(obs, noise)
        self.module.critic.requires_grad_(False)  # its gradients would be discarded
        q1, q2 = self.module.critic(obs, action)
        loss = (temperature * log_prob - torch.min(q1, q2)).mean()
        gradient_step(self._actor_optimiser, loss)
        self.module.critic.requires_grad_(True)
        return float(loss.detach()), -float(log_prob.detach().mean())

    def _noise(self, size: int) -> Tensor:
        draws = self._rng.standard_normal((size, self._box.size), dtype=np.float32)
        return torch.as_tensor(draws, device=self._device)

    # State

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            "actor": self._actor_optimiser,
            "critic": self._critic_optimiser,
            "temperature": self._temperature_optimiser,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return weights, targets, optimisers, buffer, counters and generator: everything needed to resume."""
        return {
            "weights": weights_state(self.module),
            "target": weights_state(self.target),
            "optimisers": {name: optimiser_state(each) for name, each in self._optimisers().items()},
            "buffer": self.buffer.state_dict(),
            "counters": {"steps": self.steps, "owed": self._updates_due},
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.module.load_state_dict(state_dict["weights"])
        self.target.load_state_dict(state_dict["target"])
        for name, optimiser in self._optimisers().items():
            load_optimiser_state(optimiser, state_dict["optimisers"][name])
        self.buffer.load_state_dict(state_dict["buffer"])
        self.steps, self._updates_due = state_dict["counters"]["steps"], state_dict["counters"]["owed"]
        load_rng_state(self._rng, state_dict["rng"])


def _adam(module: nn.Module, lr: float, weight_decay: float) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=lr, weight_decay=weight_decay, fused=True)


class SACNetworks(nn.Module):
    """Actor, critics and the logarithm of the temperature, which are saved as the weights."""

    def __init__(self, network: nn.Module, critic: "TwinQ", action_dim: int, temperature: float) -> None:
        super().__init__()
        self.actor = Head(network, 2 * action_dim, gain=0.01)
        self.critic = critic
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def sample(self, obs: Any, noise_B_D: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in (-1, 1) and their log-densities."""
        mean_B_D, log_std_B_D = self.actor(obs).chunk(2, dim=-1)
        return squashed_gaussian(mean_B_D, log_std_B_D.clamp(_LOG_STD_MIN, _LOG_STD_MAX), noise_B_D)


class TwinQ(nn.Module):
    """Two critics of an observation and an action; SAC trusts the more pessimistic one."""

    def __init__(self, obs_space: spaces.Space[Any], action_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.obs_space = obs_space
        inputs = flat_size(obs_space) + action_dim
        self.first = _perceptron(inputs, hidden_sizes)
        self.second = _perceptron(inputs, hidden_sizes)

    def forward(self, obs: Observation, action_B_D: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([flatten(self.obs_space, obs), action_B_D], dim=-1)
        return self.first(both).squeeze(-1), self.second(both).squeeze(-1)


def _perceptron(inputs: int, hidden_sizes: Sequence[int]) -> nn.Sequential:
    sizes = [inputs, *hidden_sizes]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))


def squashed_gaussian(mean_B_D: Tensor, log_std_B_D: Tensor, noise_B_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh(mean + std * noise) in (-1, 1), and its exact log-density.

    The density of the normal is divided by the slope of tanh, 1 - tanh(u)^2. Its logarithm is written as
    2 (log 2 - u - softplus(-2u)), which stays finite where tanh rounds to 1.
    """
    u_B_D = mean_B_D + log_std_B_D.exp() * noise_B_D
    normal_B_D = -0.5 * noise_B_D.square() - log_std_B_D - 0.5 * math.log(2.0 * math.pi)
    log_slope_B_D = 2.0 * (math.log(2.0) - u_B_D - F.softplus(-2.0 * u_B_D))
    return torch.tanh(u_B_D), (normal_B_D - log_slope_B_D).sum(-1)


def soft_q_target(
    reward_B: Tensor, discount_B: Tensor, q1_B: Tensor, q2_B: Tensor, log_prob_B: Tensor, temperature: Tensor
) -> Tensor:
    """Return the target of the critics: the more pessimistic of both plus the entropy bonus of the next action."""
    return reward_B + discount_B * (torch.min(q1_B, q2_B) - temperature * log_prob_B)
