"""One row per environment: actions in; observations, rewards and ends out.

Rows live in ordinary memory, or in memory that the trainer and its workers share. Shared memory has no name: it is
gone with the last process that holds it, however that process ended.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from ..errors import ConfigError
from .spaces import empty_batch, has_fixed_shape
from .trees import Array, Tree, leaves, map_tree

ALIGNMENT = 64  # bytes: no two arrays share a cache line


@dataclass(frozen=True)
class Rows:
    """The rows of n environments."""

    action: Tree
    obs: Tree
    reward: Array
    terminated: Array
    truncated: Array

    @classmethod
    def of(cls, observation_space: gym.Space[Any], action_space: gym.Space[Any], n: int) -> "Rows":
        return cls(
            empty_batch(action_space, n),
            empty_batch(observation_space, n),
            np.zeros(n),
            np.zeros(n, bool),
            np.zeros(n, bool),
        )

    def part(self, start: int, stop: int) -> "Rows":
        """The rows of one worker: views, not copies."""
        return self._map(lambda array: array[start:stop])

    def _map(self, function: Callable[[Array], Array]) -> "Rows":
        action, obs = map_tree(function, self.action), map_tree(function, self.obs)
        return Rows(action, obs, function(self.reward), function(self.terminated), function(self.truncated))

    def inputs(self) -> list[Array]:
        """The arrays that travel to a worker."""
        return leaves(self.action)

    def outputs(self) -> list[Array]:
        """The arrays that come back."""
        return [*leaves(self.obs), self.reward, self.terminated, self.truncated]

    def in_memory(self, memory: mmap.mmap) -> "Rows":
        """The same rows over shared memory."""
        places = self._places()
        return self._map(
            lambda array: np.frombuffer(memory, array.dtype, array.size, next(places)).reshape(array.shape)
        )

    def _places(self) -> Iterator[int]:
        place = 0
        for array in [*self.inputs(), *self.outputs()]:
            yield place
            place += -(-array.nbytes // ALIGNMENT) * ALIGNMENT

    def size_bytes(self) -> int:
        return sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in [*self.inputs(), *self.outputs()])


def check_fixed(space: gym.Space[Any], what: str, env_type: str) -> None:
    """Rows of other processes hold arrays of one shape only."""
    if not has_fixed_shape(space):
        raise ConfigError(
            f"the {what} space {space} has no fixed shape, so it cannot be used with {env_type!r}: use 'dummy'"
        )


def new_shared_file(size_bytes: int) -> int:
    """A file in memory that has no name; its descriptor is inherited by workers."""
    if sys.platform == "linux":
        number = os.memfd_create("sharpen-rows")
    else:
        with tempfile.TemporaryFile() as file:  # it has no name any more once it is open
            number = os.dup(file.fileno())
    os.ftruncate(number, max(size_bytes, 1))
    return number


def map_shared(number: int, size_bytes: int) -> mmap.mmap:
    return mmap.mmap(number, max(size_bytes, 1))
