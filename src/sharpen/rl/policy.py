"""What the trainer and a policy exchange: `act` returns `Actions`, `learn` gets the episodes of one collect.

Anything with the four methods of `Policy` can be trained: one of ours, or another library's behind an adapter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .trees import Array, Tree, concatenate, map_tree, rows


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions for a batch of observations, and what to keep with each step (log-probability, value, …)."""

    action_N: Tree
    extras: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)


@runtime_checkable
class Actor(Protocol):
    """What validation, test and backtest need of a policy."""

    def act(self, obs_N: Tree, *, rng: np.random.Generator | None, deterministic: bool) -> Actions:
        """Choose one action for each of N observations.

        `obs_N` is a numpy array, or a dict or tuple of them, with N rows. Take randomness from `rng` only:
        `rng.random(N)`, `rng.random((N, …))`, `rng.standard_normal((N, …))` and `rng.gumbel(size=(N, …))` draw row i
        from the stream of the episode that row i belongs to, so an episode is the same whichever others run beside
        it. `rng` is None when there is nothing to draw. `deterministic` is True in validation and tests.
        """


@runtime_checkable
class Policy(Actor, Protocol):
    """What training needs of a policy."""

    def learn(self, batch: "EpisodeBatch", **update_kwargs: Any) -> dict[str, float]:
        """Learn from the episodes of one collect and return the metrics of the update (losses)."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume: weights, optimiser, schedulers, normalisers, replay buffer."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """The episodes of one collect as arrays, one after the other, in order of their numbers.

    Axis letters: T counts the steps of all episodes together, E the episodes. Nothing here depends on which worker
    played an episode or when.

    `obs_T` is what the policy saw before each step, `last_obs_E` what followed an episode's last step. An episode ends
    with `terminated_T` (the task is over: nothing follows) or `truncated_T` (it was cut: `last_obs_E` has a value).
    `extras` holds what the policy asked to keep (`Actions.extras`).
    """

    obs_T: Tree
    action_T: Tree
    reward_T: Array
    terminated_T: Array
    truncated_T: Array
    last_obs_E: Tree
    lengths_E: Array
    extras: Mapping[str, Array]

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.reward_T)

    @property
    def n_episodes(self) -> int:
        return len(self.lengths_E)

    @cached_property
    def offsets_E(self) -> Array:
        """The index of each episode's first step."""
        return np.concatenate([[0], np.cumsum(self.lengths_E)[:-1]]).astype(np.int64)

    @cached_property
    def last_E(self) -> Array:
        """The index of each episode's last step."""
        return self.offsets_E + self.lengths_E - 1

    @cached_property
    def is_last_T(self) -> Array:
        """True at the last step of each episode."""
        is_last_T = np.zeros(len(self), bool)
        is_last_T[self.last_E] = True
        return is_last_T

    @cached_property
    def next_obs_T(self) -> Tree:
        """The observation after each step."""

        def shifted(obs_T: Array, last_obs_E: Array) -> Array:
            next_T = np.empty_like(obs_T)
            next_T[:-1] = obs_T[1:]
            next_T[self.last_E] = last_obs_E
            return next_T

        return map_tree(shifted, self.obs_T, self.last_obs_E)

    @cached_property
    def returns_E(self) -> Array:
        """The sum of rewards of each episode."""
        if not self.n_episodes:
            return np.zeros(0)
        return np.add.reduceat(self.reward_T, self.offsets_E)

    def episode(self, number: int) -> "EpisodeBatch":
        """Return one episode as a separate batch."""
        start = int(self.offsets_E[number])
        steps = slice(start, start + int(self.lengths_E[number]))
        one = slice(number, number + 1)
        return EpisodeBatch(
            obs_T=rows(self.obs_T, steps),
            action_T=rows(self.action_T, steps),
            reward_T=self.reward_T[steps],
            terminated_T=self.terminated_T[steps],
            truncated_T=self.truncated_T[steps],
            last_obs_E=rows(self.last_obs_E, one),
            lengths_E=self.lengths_E[one],
            extras={name: array[steps] for name, array in self.extras.items()},
        )

    def episodes(self) -> Iterator["EpisodeBatch"]:
        """Iterate over the episodes, each as a batch."""
        return map(self.episode, range(self.n_episodes))

    def followed_by(self, other: "EpisodeBatch") -> "EpisodeBatch":
        """Return the episodes of both as one batch, those of `other` last."""
        return EpisodeBatch(**concatenate([self.state_dict(), other.state_dict()]))

    def state_dict(self) -> dict[str, Any]:
        """Return the fields by name, as a checkpoint keeps them: `EpisodeBatch(**state)` is the same batch."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def as_dict(self) -> dict[str, Any]:
        """Return the arrays by their usual short names."""
        return {
            "obs": self.obs_T,
            "act": self.action_T,
            "rew": self.reward_T,
            "terminated": self.terminated_T,
            "truncated": self.truncated_T,
            "done": self.terminated_T | self.truncated_T,
            "obs_next": self.next_obs_T,
            **self.extras,
        }
