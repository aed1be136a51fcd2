"""A Stable-Baselines3 model as a policy. The model is given ready-made; this module never imports its package.

Off-policy models (DQN, SAC, TD3) are trained from their own replay buffer. On-policy ones learn inside their own
loop around an environment, so here they only act.
"""

from typing import Any

import numpy as np
import torch

from ...errors import ConfigError
from ..episodes import EpisodeBatch
from ..policy import Actions
from ..trees import rows
from .optimiser import load_optimiser_state, optimiser_state, refuse, weights_state


class SB3Policy:
    """Wraps a model: `predict` acts, and where there is a replay buffer, `learn` fills it and calls `train`."""

    def __init__(self, model: Any) -> None:
        for name in ("predict", "policy"):
            if not hasattr(model, name):
                raise ConfigError(
                    f"SB3Policy wraps a Stable-Baselines3 model, but {type(model).__name__} has no {name}"
                )
        self.model = model

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """What `predict` says. A stochastic model draws from torch, which is seeded from `rng` for this call."""
        if deterministic or rng is None:
            return Actions(np.asarray(self.model.predict(obs_N, deterministic=deterministic)[0]))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.random(1)[0] * 2**53))
            return Actions(np.asarray(self.model.predict(obs_N, deterministic=False)[0]))

    def learn(
        self, batch: EpisodeBatch, *, repeat: int | None = None, batch_size: int | None = None, **unknown: Any
    ) -> dict[str, float]:
        """Fill the model's replay buffer and make `repeat` gradient steps (by default one for each step)."""
        refuse("SB3Policy", unknown)
        buffer = getattr(self.model, "replay_buffer", None)
        if buffer is None:
            raise ConfigError(
                f"{type(self.model).__name__} keeps no replay buffer, so it can act here but not learn: "
                "train it with its own learn(), or use sharpen.rl.PPO"
            )
        next_obs_T, done_T = batch.next_obs_T, batch.terminated_T | batch.truncated_T
        for step in range(len(batch)):
            one = slice(step, step + 1)
            cut = {"TimeLimit.truncated": bool(batch.truncated_T[step] and not batch.terminated_T[step])}
            obs, after, action = rows(batch.obs_T, one), rows(next_obs_T, one), rows(batch.action_T, one)
            buffer.add(obs, after, action, batch.reward_T[one], done_T[one], [cut])
        self.model.train(
            gradient_steps=len(batch) if repeat is None else repeat, batch_size=batch_size or self.model.batch_size
        )
        values = getattr(getattr(self.model, "logger", None), "name_to_value", {})
        return {name.removeprefix("train/"): float(value) for name, value in values.items() if _is_number(value)}

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimisers; the model keeps its replay buffer to itself."""
        return {
            "weights": weights_state(self.model.policy),
            "optimisers": {name: optimiser_state(each) for name, each in self._optimisers().items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.model.policy.load_state_dict(state_dict["weights"])
        for name, optimiser in self._optimisers().items():
            load_optimiser_state(optimiser, state_dict["optimisers"][name])

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        policy = self.model.policy
        owners = {"policy": policy, "actor": getattr(policy, "actor", None), "critic": getattr(policy, "critic", None)}
        found = {name: getattr(owner, "optimizer", None) for name, owner in owners.items()}
        return {name: each for name, each in found.items() if isinstance(each, torch.optim.Optimizer)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)
