"""SAC: soft actor-critic for bounded continuous actions, from top to bottom.

    collect with sampled actions -> add to the buffer -> gradient steps: twin critics, actor, temperature

The actor samples tanh of a normal. The temperature is learned, so that the entropy stays at a target, which is minus
the number of action dimensions unless told otherwise.
"""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ...checks import check_names
from ...errors import ConfigError
from ..episodes import EpisodeBatch
from ..policy import Actions
from ..trees import Array, row_count
from . import losses
from .distributions import squashed_gaussian
from .exported import Exported
from .networks import Head, TwinQ, as_tensors
from .optimiser import LEARN_OPTIONS, descend, fitting_threads, load_optimiser_state, optimiser_state, weights_state
from .replay import ReplayBuffer, Transitions, transitions
from .sampling import ActionBox, load_rng_state, new_rng, rng_state
from .spoilt import refuse_spoilt
from .weights import load_weights

_LOG_STD_MIN, _LOG_STD_MAX = -20.0, 2.0


class SACNetworks(nn.Module):
    """Actor, critics and the logarithm of the temperature: what is saved as weights."""

    def __init__(self, network: nn.Module, critic: TwinQ, action_dim: int, temperature: float) -> None:
        super().__init__()
        self.actor = Head(network, 2 * action_dim, gain=0.01)
        self.critic = critic
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def sample(self, obs: Any, noise_B_D: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) and their log-densities."""
        mean_B_D, log_std_B_D = self.actor(obs).chunk(2, dim=-1)
        return squashed_gaussian(mean_B_D, log_std_B_D.clamp(_LOG_STD_MIN, _LOG_STD_MAX), noise_B_D)


class SAC:
    """Soft actor-critic with twin critics and, with `alpha="auto"`, a learned temperature.

    The first `learning_starts` steps are played at random. `learn` makes `updates_per_step` gradient steps for each
    step collected.
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
            raise ConfigError(f"SAC acts in bounded Box spaces, but the action space is {action_space}")
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
        self.steps, self._owed = 0, 0.0
        self._rng = new_rng(seed)
        self._fast_actor = Exported.of(self.module.actor)

    # Acting

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """A sampled action for each observation, or the middle of the distribution."""
        draws, count, size = rng if rng is not None else self._rng, row_count(obs_N), self._box.size
        if deterministic:
            return Actions(self._box.to_action(np.tanh(self._said(obs_N)[:, :size])))
        if self.steps < self.learning_starts:
            return Actions(self._box.to_action(2.0 * draws.random((count, size)) - 1.0))
        said_N = self._said(obs_N)
        std_N_D = np.exp(np.clip(said_N[:, size:], _LOG_STD_MIN, _LOG_STD_MAX))
        return Actions(self._box.to_action(np.tanh(said_N[:, :size] + std_N_D * draws.standard_normal((count, size)))))

    def _said(self, obs_N: Any) -> Array:
        if self._fast_actor is not None:
            return self._fast_actor(obs_N)
        with fitting_threads(self.module), torch.inference_mode():
            return self.module.actor(as_tensors(obs_N, self._device)).numpy(force=True)  # type: ignore[no-any-return]

    @property
    def _device(self) -> torch.device:
        return self.module.actor.out.weight.device

    # Learning

    def learn(
        self, batch: EpisodeBatch, *, repeat: int | None = None, batch_size: int | None = None, **unknown: Any
    ) -> dict[str, float]:
        """Keep the episodes, and make `repeat` gradient steps (by default, `updates_per_step` for each step)."""
        check_names(unknown, LEARN_OPTIONS, owner="SAC.learn")
        fresh = transitions(batch, discount=self.discount_factor, steps=self.estimation_step)
        self.buffer.add(fresh | {"action": self._box.from_action(fresh["action"])})
        self.steps += len(batch)
        metrics = {"buffer": float(len(self.buffer))}
        if len(self.buffer) < self.learning_starts:
            return metrics
        self._owed += len(batch) * self.updates_per_step
        count = int(self._owed) if repeat is None else repeat
        self._owed -= int(self._owed)
        size = batch_size or self.batch_size
        with fitting_threads(self.module):
            parts = [self._step(self.buffer.sample(self._rng, size), size) for _ in range(count)]
        names = ("loss/critic", "loss/actor", "entropy", "alpha")
        metrics |= dict(zip(names, np.mean(parts, axis=0).tolist(), strict=True)) if parts else {}
        return refuse_spoilt("SAC", metrics, batch)

    def _step(self, part: Transitions, size: int) -> tuple[float, float, float, float]:
        """One gradient step of critics, actor and temperature on random transitions; their metrics."""
        part = as_tensors(part, self._device)
        temperature = self.module.log_temperature.detach().exp()
        critic_loss = self._critic_step(part, temperature, self._noise(size))
        actor_loss, entropy = self._actor_step(part["obs"], temperature, self._noise(size))
        if self._learns_temperature:
            gap = entropy - self.target_entropy
            descend(self._temperature_optimiser, self.module.log_temperature * gap)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.module.critic.parameters()), self.tau)
        return critic_loss, actor_loss, entropy, float(temperature)

    def _critic_step(self, part: Any, temperature: Tensor, noise: Tensor) -> float:
        with torch.no_grad():
            next_action, log_prob = self.module.sample(part["next_obs"], noise)
            q1, q2 = self.target(part["next_obs"], next_action)
            wanted = losses.soft_q_target(part["reward"], part["discount"], q1, q2, log_prob, temperature)
        first, second = self.module.critic(part["obs"], part["action"])
        loss = 0.5 * (losses.value_loss(first, wanted) + losses.value_loss(second, wanted))
        descend(self._critic_optimiser, loss)
        return float(loss.detach())

    def _actor_step(self, obs: Any, temperature: Tensor, noise: Tensor) -> tuple[float, float]:
        action, log_prob = self.module.sample(obs, noise)
        self.module.critic.requires_grad_(False)  # its gradients would be thrown away
        q1, q2 = self.module.critic(obs, action)
        loss = (temperature * log_prob - torch.min(q1, q2)).mean()
        descend(self._actor_optimiser, loss)
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
        """Weights, targets, optimisers, buffer, counters and random numbers: everything to go on."""
        return {
            "weights": weights_state(self.module),
            "target": weights_state(self.target),
            "optimisers": {name: optimiser_state(each) for name, each in self._optimisers().items()},
            "buffer": self.buffer.state_dict(),
            "counters": {"steps": self.steps, "owed": self._owed},
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.module.load_state_dict(state_dict["weights"])
        self.target.load_state_dict(state_dict["target"])
        for name, optimiser in self._optimisers().items():
            load_optimiser_state(optimiser, state_dict["optimisers"][name])
        self.buffer.load_state_dict(state_dict["buffer"])
        self.steps, self._owed = state_dict["counters"]["steps"], state_dict["counters"]["owed"]
        load_rng_state(self._rng, state_dict["rng"])


def _adam(module: nn.Module, lr: float, weight_decay: float) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
