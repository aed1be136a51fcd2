"""Simulators that step many episodes at once, in NumPy or torch.

They follow the schedule of all environments, without a Python call per episode: a million steps per second are
possible if the simulator itself is that fast.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, Generic

import gymnasium as gym
import numpy as np

from ..errors import ConfigError, EpisodeError, RewardError
from .env_set import Note, Settings
from .env_wrapper import SeedsExhausted
from .finite_env import FiniteVectorEnv
from .logging import LogWriter
from .seed import Begin, EpisodeNoise, InitialStateType
from .trees import Array, Tree, copied, map_tree, rows


class VectorSimulator(abc.ABC, Generic[InitialStateType]):
    """N episodes side by side; each slot plays one after the other.

    It is built with the number of slots. Observations, rewards and actions are arrays (or dicts or tuples of them)
    with one row per slot. They may be torch tensors on any device; actions are always arrays.
    """

    @property
    @abc.abstractmethod
    def observation_space(self) -> gym.Space[Any]:
        """The space of one row."""

    @property
    @abc.abstractmethod
    def action_space(self) -> gym.Space[Any]:
        """The space of one row."""

    def __init__(self, n: int) -> None:
        self.n = n

    @abc.abstractmethod
    def reset(self, slots_M: Array, initial_states: Sequence[InitialStateType], rng: np.random.Generator) -> Tree:
        """Begin an episode in each of these slots and return its first observation.

        Row i of `rng.random(M)`, `rng.standard_normal((M, …))`, … is drawn from the stream of episode i.
        """

    @abc.abstractmethod
    def step(self, slots_N: Array, action_N: Tree) -> tuple[Tree, Array, Array, Array]:
        """Step these slots; return observations, rewards, terminated and truncated, one row per slot."""

    def close(self) -> None:
        """Release what was opened."""


class FiniteVectorSimulatorEnv(FiniteVectorEnv):
    """A vector simulator as a finite vector environment. It runs in this process."""

    def __init__(
        self,
        simulator_fn: Callable[[int], VectorSimulator[Any]],
        concurrency: int,
        logger: LogWriter | Sequence[LogWriter] = (),
    ) -> None:
        self._simulator = simulator_fn(concurrency)
        if not isinstance(self._simulator, VectorSimulator):
            raise ConfigError(f"simulator_fn must return a VectorSimulator, not {type(self._simulator).__name__}")
        super().__init__(self._simulator.observation_space, self._simulator.action_space, concurrency, logger)
        self._returns_N, self._lengths_N = np.zeros(concurrency), np.zeros(concurrency, np.int64)
        self._noise = EpisodeNoise(self.entropy, concurrency)

    @property
    def simulator(self) -> VectorSimulator[Any]:
        return self._simulator

    def _open(self, settings: Settings) -> None:
        self._noise = EpisodeNoise((*self.entropy, 1), self._n)

    def round(self, ids: Array, action_N: Tree) -> tuple[Array, Array, Array]:
        """Step all running episodes, and begin one in each idle slot."""
        idle = np.flatnonzero(self._alive & ~self._is_running)
        if len(idle):
            self._begin(idle)
        found = self._rows
        if len(ids):
            self._advance(ids, action_N)
        return found.reward[ids], found.terminated[ids], found.truncated[ids]

    def _begin(self, idle: Array) -> None:
        first = self._seeds.drawn
        states = self._seeds.draw_states(len(idle))
        begun, retired = idle[: len(states)], idle[len(states) :]
        self._alive[retired] = False
        if not len(begun):
            return
        self.k_N[begun] = np.arange(first, first + len(begun))
        self._noise.begin(begun, self.k_N[begun])
        try:
            obs_M = self._simulator.reset(begun, states, self._noise.select(begun))
            self._put_obs(begun, obs_M)
        except Exception as error:
            raise EpisodeError(
                f"episodes {first} to {self._seeds.drawn - 1} cannot begin with the initial states "
                f"{states!r:.500}: {type(error).__name__}: {error}"
            ) from error
        self._is_running[begun] = True
        self._returns_N[begun], self._lengths_N[begun] = 0.0, 0

    def _put_obs(self, place: Array | slice, obs_M: Tree) -> None:
        found = self._rows.obs
        if isinstance(found, np.ndarray):
            found[place] = _array(obs_M)
        else:
            map_tree(lambda array, values: array.__setitem__(place, _array(values)), found, obs_M)

    def _advance(self, ids: Array, action_N: Tree) -> None:
        found = self._rows
        place = slice(None) if len(ids) == self._n else ids  # a slice costs a fraction of an index
        try:
            obs_N, *results = self._simulator.step(ids, action_N)
            self._put_obs(place, obs_N)
            found.reward[place], found.terminated[place], found.truncated[place] = map(_array, results)
            self._check_rewards(ids, found.reward[place])
        except Exception as error:
            numbers = self.k_N[ids].tolist()
            raise EpisodeError(
                f"a step of episodes {numbers!r:.500} failed: {type(error).__name__}: {error}"
            ) from error
        self._returns_N[place] += found.reward[place]
        self._lengths_N[place] += 1
        ended = ids[found.terminated[place] | found.truncated[place]]
        if len(ended):
            self._is_running[ended] = False
            self.episode_returns.update(zip(self.k_N[ended].tolist(), self._returns_N[ended].tolist(), strict=True))
            for logger in self.loggers:
                logger.on_env_episodes(self._returns_N[ended].tolist(), self._lengths_N[ended].tolist())

    def _check_rewards(self, ids: Array, reward_N: Array) -> None:
        if not np.isfinite(reward_N.sum()) and not np.isfinite(reward_N).all():
            is_wrong = ~np.isfinite(reward_N)
            wrong, values = self.k_N[ids[is_wrong]].tolist(), reward_N[is_wrong].tolist()
            raise RewardError(f"the rewards of episodes {wrong} are {values}: each must be a finite number")

    # -- the interface of Qlib -----------------------------------------------------------------------

    def reset(self, id: Any = None) -> tuple[Tree, list[Any]]:
        ids = self._ids(id)
        self._is_running[ids] = False
        self._begin(ids[self._alive[ids]])
        if not self._alive.any():
            raise SeedsExhausted("every initial state has been used")
        self._clear_retired()
        return rows(self._rows.obs, ids), [{}] * len(ids)

    def step(self, action: Any, id: Any = None) -> tuple[Tree, Array, Array, Array, list[Any]]:
        ids = self._ids(id)
        keep = self._alive[ids]
        chosen = action if keep.all() else map_tree(lambda each: np.asarray(each)[keep], action)
        if keep.any():
            self._advance(ids[keep], chosen)
        found = self._rows
        infos: list[Any] = [{}] * len(ids)
        if id is None:
            return copied(found.obs), found.reward.copy(), found.terminated.copy(), found.truncated.copy(), infos
        return rows(found.obs, ids), found.reward[ids], found.terminated[ids], found.truncated[ids], infos

    def _exchange(self, begins: Sequence[Begin], ids: Array) -> list[Note]:
        raise NotImplementedError("a vector simulator steps all its episodes at once")

    def close(self) -> None:
        self._simulator.close()


def _array(values: Any) -> Any:
    """Return a torch tensor on any device as an array, and anything else as it is."""
    return values.numpy(force=True) if hasattr(values, "detach") else values
