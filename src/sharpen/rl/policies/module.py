"""A plain `nn.Module` as a policy: for a network that was trained elsewhere, or with a rule of one's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from ...errors import ConfigError
from ..episodes import EpisodeBatch
from ..policy import Actions
from ..trees import Array
from .networks import as_tensors
from .optimiser import fitting_threads, weights_state
from .sampling import sample_categorical

LearnModule = Callable[..., dict[str, float]]


class ModulePolicy:
    """Wraps a module that maps a batch of observations to logits (Discrete) or to actions (Box).

    `learn(module, batch, **update_kwargs)` may be given to train it; without it the module stays as it is.
    """

    def __init__(self, module: nn.Module, action_space: spaces.Space[Any], *, learn: LearnModule | None = None) -> None:
        if not isinstance(action_space, spaces.Discrete | spaces.Box):
            raise ConfigError(f"ModulePolicy acts in Discrete and Box spaces, but the action space is {action_space}")
        self.module, self.action_space = module, action_space
        self._learn = learn

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """The action that the module says; among discrete ones it is sampled, unless `deterministic`.

        The module is in `eval` mode where `deterministic`, so that dropout is off.
        """
        self.module.train(not deterministic)
        said_N = self._said(obs_N)
        if isinstance(self.action_space, spaces.Box):
            shaped = said_N.reshape(len(said_N), *self.action_space.shape)
            inside = np.clip(shaped, self.action_space.low, self.action_space.high)
            return Actions(inside.astype(self.action_space.dtype))
        if deterministic or rng is None:
            chosen_N = said_N.argmax(-1)
        else:
            chosen_N = sample_categorical(said_N, rng.random(len(said_N)))
        return Actions(chosen_N + int(self.action_space.start))

    def _said(self, obs_N: Any) -> Array:
        parameter = next(self.module.parameters(), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        with fitting_threads(self.module), torch.inference_mode():
            return self.module(as_tensors(obs_N, device)).numpy(force=True)  # type: ignore[no-any-return]

    def learn(self, batch: EpisodeBatch, **update_kwargs: Any) -> dict[str, float]:
        """Call the rule that was given, if any."""
        return {} if self._learn is None else self._learn(self.module, batch, **update_kwargs)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": weights_state(self.module)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.module.load_state_dict(state_dict["weights"])
