"""DQN: Q-learning on discrete actions with a replay buffer, from top to bottom.

    collect with epsilon-greedy actions -> add to the buffer -> gradient steps on random transitions

Epsilon falls linearly with the number of collected steps, and is constant within a collect.

Axis letters: N is the observations of one call, B a minibatch, A the actions.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from ...checks import check_names
from ...errors import ConfigError
from ..policy import Actions, EpisodeBatch
from ..trees import Array
from .networks import Head, NumpyMLP, as_tensors, load_weights
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


class DQN:
    """Deep Q-learning, with Qlib's parameters; double by default.

    `target_update_freq` counts gradient steps (0: no target network). `learn` makes `updates_per_step` gradient steps
    per collected step, once the buffer holds `learning_starts` transitions.
    """

    def __init__(
        self,
        network: nn.Module,
        obs_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr: float,
        weight_decay: float = 0.0,
        discount_factor: float = 0.99,
        estimation_step: int = 1,
        target_update_freq: int = 0,
        reward_normalization: bool = False,
        is_double: bool = True,
        clip_loss_grad: bool = False,
        weight_file: str | Path | None = None,
        *,
        eps_start: float = 1.0,
        eps_end: float = 0.05,
        exploration_steps: int = 10_000,
        buffer_size: int = 100_000,
        batch_size: int = 64,
        learning_starts: int = 1_000,
        updates_per_step: float = 0.5,
        max_grad_norm: float = 10.0,
        seed: int | None = None,
    ) -> None:
        if reward_normalization:
            raise ConfigError(
                "DQN has no reward_normalization, since Q-values need a fixed scale: scale the reward itself"
            )
        if not 0 <= eps_end <= eps_start <= 1:
            raise ConfigError(f"eps_start is {eps_start} and eps_end is {eps_end}: use 1 >= eps_start >= eps_end >= 0")
        if not isinstance(action_space, spaces.Discrete):
            raise ConfigError(f"DQN supports Discrete action spaces, not {action_space}")
        self.obs_space, self.action_space = obs_space, action_space
        self.module = Head(network, int(self.action_space.n), gain=None)
        if weight_file is not None:
            load_weights(self.module, weight_file)
        self.target = copy.deepcopy(self.module).requires_grad_(False) if target_update_freq else self.module
        self.optimiser = torch.optim.Adam(self.module.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
        self.discount_factor, self.estimation_step = discount_factor, estimation_step
        self.target_update_freq, self.is_double, self.clip_loss_grad = target_update_freq, is_double, clip_loss_grad
        self.eps_start, self.eps_end, self.exploration_steps = eps_start, eps_end, exploration_steps
        self.batch_size, self.learning_starts = batch_size, learning_starts
        self.updates_per_step, self.max_grad_norm = updates_per_step, max_grad_norm
        self.buffer = ReplayBuffer(buffer_size, learning_starts=learning_starts)
        self.steps, self.updates, self._updates_due = 0, 0, 0.0
        self._rng = new_rng(seed)
        self._numpy_module = NumpyMLP.of(self.module)

    # Acting

    @property
    def epsilon(self) -> float:
        """The current share of random actions."""
        done = min(1.0, self.steps / max(1, self.exploration_steps))
        return self.eps_start + done * (self.eps_end - self.eps_start)

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """Choose the best action for each observation, or with probability `epsilon` a random one."""
        best_N = self._q(obs_N).argmax(-1)
        if not deterministic:
            draw_N_2 = (rng if rng is not None else self._rng).random((len(best_N), 2))
            any_N = (draw_N_2[:, 1] * int(self.action_space.n)).astype(best_N.dtype)
            best_N = np.where(draw_N_2[:, 0] < self.epsilon, any_N, best_N)
        return Actions(best_N + int(self.action_space.start))

    def _q(self, obs_N: Any) -> Array:
        if self._numpy_module is not None:
            return self._numpy_module(obs_N)
        with limit_threads(self.module), torch.inference_mode():
            return self.module(as_tensors(obs_N, self._device)).numpy(force=True)  # type: ignore[no-any-return]

    @property
    def _device(self) -> torch.device:
        return self.module.out.weight.device

    # Learning

    def learn(
        self, batch: EpisodeBatch, *, repeat: int | None = None, batch_size: int | None = None, **unknown: Any
    ) -> dict[str, float]:
        """Store the episodes and make `repeat` gradient steps (default: `updates_per_step` per collected step)."""
        check_names(unknown, LEARN_OPTIONS, owner="DQN.learn")
        self.buffer.add(transitions(batch, discount=self.discount_factor, steps=self.estimation_step))
        self.steps += len(batch)
        metrics = {"epsilon": self.epsilon, "buffer": float(len(self.buffer))}
        if len(self.buffer) < self.learning_starts:
            return metrics
        self._updates_due += len(batch) * self.updates_per_step
        count = int(self._updates_due) if repeat is None else repeat
        self._updates_due -= int(self._updates_due)
        with limit_threads(self.module):
            parts = [self._step(self.buffer.sample(self._rng, batch_size or self.batch_size)) for _ in range(count)]
        return check_losses("DQN", metrics | ({"loss": float(np.mean(parts))} if parts else {}), batch)

    def _step(self, part: Transitions) -> float:
        """Make one gradient step on random transitions and return its loss."""
        part = as_tensors(part, self._device)
        action_B = part["action"].long() - int(self.action_space.start)
        with torch.no_grad():
            next_q, target_q = self._next_q(part["next_obs"])
            target_B = double_q_target(part["reward"], part["discount"], next_q, target_q, is_double=self.is_double)
        q_B = self.module(part["obs"]).gather(-1, action_B.unsqueeze(-1)).squeeze(-1)
        loss = F.smooth_l1_loss(q_B, target_B) if self.clip_loss_grad else F.mse_loss(q_B, target_B)
        gradient_step(self.optimiser, loss, max_grad_norm=self.max_grad_norm)
        self.updates += 1
        if self.target_update_freq and self.updates % self.target_update_freq == 0:
            self.target.load_state_dict(self.module.state_dict())
        return float(loss.detach())

    def _next_q(self, next_obs: Any) -> tuple[Tensor, Tensor]:
        """Return the next step's Q-values from the online and from the target network."""
        target_q = self.target(next_obs)
        return self.module(next_obs) if self.is_double and self.target is not self.module else target_q, target_q

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return weights, target, optimiser, buffer, counters and generator: everything needed to resume."""
        return {
            "weights": weights_state(self.module),
            "target": weights_state(self.target),
            "optimiser": optimiser_state(self.optimiser),
            "buffer": self.buffer.state_dict(),
            "counters": {"steps": self.steps, "updates": self.updates, "owed": self._updates_due},
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.module.load_state_dict(state_dict["weights"])
        self.target.load_state_dict(state_dict["target"])
        load_optimiser_state(self.optimiser, state_dict["optimiser"])
        self.buffer.load_state_dict(state_dict["buffer"])
        counters = state_dict["counters"]
        self.steps, self.updates, self._updates_due = counters["steps"], counters["updates"], counters["owed"]
        load_rng_state(self._rng, state_dict["rng"])


def double_q_target(
    reward_B: Tensor, discount_B: Tensor, next_q_B_A: Tensor, target_q_B_A: Tensor, *, is_double: bool
) -> Tensor:
    """Return the target of each Q-value. `discount_B` is 0 after a terminal step.

    With `is_double` the online network chooses the next action and the target network rates it.
    """
    chooser = next_q_B_A if is_double else target_q_B_A
    best_B = chooser.argmax(dim=-1, keepdim=True)
    return reward_B + discount_B * target_q_B_A.gather(-1, best_B).squeeze(-1)
