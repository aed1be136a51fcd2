"""Policies of order execution. `PPO` (with Qlib's defaults) and `DQN` can be imported from here, as in Qlib."""

from typing import Any

import numpy as np
from gymnasium import spaces

from ..policy import Actions, EpisodeBatch
from ..trees import row_count


class NonLearnablePolicy:
    """A policy without anything to learn."""

    def __init__(self, obs_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.obs_space, self.action_space = obs_space, action_space

    def learn(self, batch: EpisodeBatch, **update_kwargs: Any) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """There is nothing to load."""


class AllOne(NonLearnablePolicy):
    """Always returns the same action; with `TwapRelativeActionInterpreter` 1 is TWAP."""

    def __init__(
        self, obs_space: spaces.Space[Any], action_space: spaces.Space[Any], fill_value: float | int = 1.0
    ) -> None:
        super().__init__(obs_space, action_space)
        self.fill_value = fill_value

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        shape = (row_count(obs_N), *(self.action_space.shape or ()))
        return Actions(np.full(shape, self.fill_value, dtype=self.action_space.dtype))


def __getattr__(name: str) -> Any:
    names = {"PPO": "QlibPPO", "DQN": "DQN"}
    if name not in names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .. import policies

    return getattr(policies, names[name])
