"""What the collector and the trainer ask of a policy.

Anything with these four methods can be trained: a network of ours, or somebody else's behind an adapter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .episodes import EpisodeBatch
from .trees import Tree


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions for a batch of observations, and what shall be kept beside each step (log-probability, value, …)."""

    action_N: Tree
    extras: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)


@runtime_checkable
class Actor(Protocol):
    """What is enough to validate, test and backtest."""

    def act(self, obs_N: Tree, *, rng: np.random.Generator | None, deterministic: bool) -> Actions:
        """Choose one action for each of N observations.

        `obs_N` is a numpy array, or a dict or tuple of them, with N rows. Take randomness from `rng` only:
        `rng.random(N)`, `rng.random((N, …))`, `rng.standard_normal((N, …))` and `rng.gumbel(size=(N, …))` give row i
        from the stream of the episode that row i belongs to, so that an episode is the same whichever others run
        beside it. `rng` is None when there is nothing to draw. `deterministic` is True in validation and tests.
        """


@runtime_checkable
class Policy(Actor, Protocol):
    """What is trained."""

    def learn(self, batch: EpisodeBatch, **update_kwargs: Any) -> dict[str, float]:
        """Learn from the episodes of one collect, in order of k; the metrics of the update (losses)."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on: weights, optimiser, schedulers, normalisers, replay buffer."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
