"""A Stable-Baselines3 model as a policy. The model is given ready-made.

Off-policy models (DQN, SAC, TD3) are trained from their own replay buffer, as their own loop would: the buffer holds
actions scaled to (-1, 1), and each step moves schedules, exploration and target network on. On-policy ones learn
inside their own loop around an environment, so here they only act.
"""

from importlib import import_module
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ...checks import check_names
from ...errors import ConfigError
from ..episodes import EpisodeBatch
from ..policy import Actions
from ..trees import rows
from .optimiser import LEARN_OPTIONS, load_optimiser_state, optimiser_state, weights_state
from .sampling import drawing_from

COUNTERS = ("num_timesteps", "_n_calls", "_n_updates", "_current_progress_remaining", "exploration_rate")


class SB3Policy:
    """Wraps a model: `predict` acts, and where there is a replay buffer, `learn` fills it and calls `train`.

    The model's schedules (exploration, learning rate) run over `total_steps` steps; without it they stay where they
    begin. Make the model with one environment, which is never stepped.
    """

    def __init__(self, model: Any, *, total_steps: int | None = None) -> None:
        for name in ("predict", "policy"):
            if not hasattr(model, name):
                raise ConfigError(
                    f"SB3Policy wraps a Stable-Baselines3 model, but {type(model).__name__} has no {name}"
                )
        if getattr(model, "n_envs", 1) not in (None, 1):
            raise ConfigError(f"the model was made with {model.n_envs} environments: SB3Policy wants one with a single")
        self.model, self.total_steps = model, total_steps
        if hasattr(model, "set_logger") and not hasattr(model, "_logger"):
            model.set_logger(import_module("stable_baselines3.common.logger").Logger(None, []))
        if hasattr(model, "exploration_schedule"):
            model.exploration_rate = model.exploration_schedule(1.0)

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """What `predict` says. A stochastic model draws from torch and NumPy, seeded from `rng` for this call."""
        if rng is not None and not deterministic and hasattr(self.model, "exploration_rate"):
            self.model.action_space.seed(int(rng.random(1)[0] * 2**32))  # random actions come from the space
        with drawing_from(None if deterministic else rng):
            return Actions(np.asarray(self.model.predict(obs_N, deterministic=deterministic)[0]))

    def learn(
        self, batch: EpisodeBatch, *, repeat: int | None = None, batch_size: int | None = None, **unknown: Any
    ) -> dict[str, float]:
        """Fill the model's replay buffer and make `repeat` gradient steps (by default one for each step)."""
        check_names(unknown, LEARN_OPTIONS, owner="SB3Policy.learn")
        model = self.model
        if getattr(model, "replay_buffer", None) is None:
            raise ConfigError(
                f"{type(model).__name__} keeps no replay buffer, so it can act here but not learn: "
                "train it with its own learn(), or use sharpen.rl.PPO"
            )
        self._remember(batch)
        if getattr(model, "num_timesteps", 1) <= getattr(model, "learning_starts", 0):
            return {}
        model.train(gradient_steps=len(batch) if repeat is None else repeat, batch_size=batch_size or model.batch_size)
        values = getattr(getattr(model, "logger", None), "name_to_value", {})
        return {name.removeprefix("train/"): float(value) for name, value in values.items() if _is_number(value)}

    def _remember(self, batch: EpisodeBatch) -> None:
        next_obs_T, done_T = batch.next_obs_T, batch.terminated_T | batch.truncated_T
        action_T = batch.action_T
        if isinstance(getattr(self.model, "action_space", None), spaces.Box):
            action_T = self.model.policy.scale_action(action_T)
        for step in range(len(batch)):
            one = slice(step, step + 1)
            cut = {"TimeLimit.truncated": bool(batch.truncated_T[step] and not batch.terminated_T[step])}
            obs, after = rows(batch.obs_T, one), rows(next_obs_T, one)
            self.model.replay_buffer.add(obs, after, action_T[one], batch.reward_T[one], done_T[one], [cut])
            self._move_on()

    def _move_on(self) -> None:
        """What the model's own loop does after each step."""
        model = self.model
        if not hasattr(model, "_on_step"):
            return
        model.num_timesteps += 1
        if self.total_steps is not None:
            model._update_current_progress_remaining(min(model.num_timesteps, self.total_steps), self.total_steps)
        model._on_step()

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimisers, temperature and counters; the model keeps its replay buffer to itself."""
        temperature = getattr(self.model, "log_ent_coef", None)
        return {
            "weights": weights_state(self.model.policy),
            "optimisers": {name: optimiser_state(each) for name, each in self._optimisers().items()},
            "temperature": None if temperature is None else temperature.detach().clone(),
            "counters": {name: getattr(self.model, name) for name in COUNTERS if hasattr(self.model, name)},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.model.policy.load_state_dict(state_dict["weights"])
        for name, optimiser in self._optimisers().items():
            load_optimiser_state(optimiser, state_dict["optimisers"][name])
        if state_dict["temperature"] is not None:
            self.model.log_ent_coef.data.copy_(state_dict["temperature"])
        for name, value in state_dict["counters"].items():
            setattr(self.model, name, value)

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        model, policy = self.model, self.model.policy
        found = {
            "policy": getattr(policy, "optimizer", None),
            "actor": getattr(getattr(policy, "actor", None), "optimizer", None),
            "critic": getattr(getattr(policy, "critic", None), "optimizer", None),
            "temperature": getattr(model, "ent_coef_optimizer", None),
        }
        return {name: each for name, each in found.items() if isinstance(each, torch.optim.Optimizer)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)
