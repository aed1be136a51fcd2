"""A replay buffer that lasts over collects: a ring of transitions, saved with its cursor."""

from typing import Any

import numpy as np

from ...checks import check_int
from ...errors import ConfigError
from ..episodes import EpisodeBatch
from ..trees import Tree, map_tree, row_count, rows
from .advantages import n_step_returns

Transitions = dict[str, Any]
"""`obs`, `action`, `reward`, `discount` (0 after a terminal step) and `next_obs`, each with one row a transition."""


def transitions(batch: EpisodeBatch, *, discount: float, steps: int = 1) -> Transitions:
    """The transitions of a collect, `steps` long or up to the end of their episode."""
    reward_T, count_T = n_step_returns(batch.reward_T, batch.lengths_E, discount=discount, steps=steps)
    last_T = np.arange(len(batch)) + count_T - 1
    return {
        "obs": batch.obs_T,
        "action": batch.action_T,
        "reward": reward_T.astype(np.float32),
        "discount": np.where(batch.terminated_T[last_T], 0.0, discount**count_T).astype(np.float32),
        "next_obs": rows(batch.next_obs_T, last_T),
    }


class ReplayBuffer:
    """The last `capacity` transitions, sampled uniformly, once there are `learning_starts` of them."""

    def __init__(self, capacity: int, *, learning_starts: int = 0) -> None:
        capacity = check_int("buffer_size", capacity, at_least=1)
        if learning_starts > capacity:
            raise ConfigError(
                f"learning_starts is {learning_starts}, but the replay buffer holds {capacity} transitions, so nothing "
                "would ever be learned: make buffer_size larger, or learning_starts smaller"
            )
        self.capacity = capacity
        self._data: Tree = None
        self._cursor = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, fresh: Transitions) -> None:
        """Append transitions over the oldest ones."""
        count = row_count(fresh["reward"])
        if count > self.capacity:  # only the last ones would stay
            fresh, count = rows(fresh, slice(count - self.capacity, None)), self.capacity
        if self._data is None:
            self._data = map_tree(lambda array: np.zeros((self.capacity, *array.shape[1:]), array.dtype), fresh)
        place = (self._cursor + np.arange(count)) % self.capacity
        map_tree(lambda ring, array: ring.__setitem__(place, array), self._data, fresh)
        self._cursor = (self._cursor + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def sample(self, rng: np.random.Generator, batch_size: int) -> Transitions:
        """A uniform draw, with replacement."""
        drawn: Transitions = rows(self._data, rng.integers(self._size, size=batch_size))
        return drawn

    def state_dict(self) -> dict[str, Any]:
        """What is filled, and where the next transition goes."""
        filled = None if self._data is None else map_tree(lambda ring: ring[: self._size].copy(), self._data)
        return {"capacity": self.capacity, "cursor": self._cursor, "size": self._size, "data": filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved buffer; it must have this capacity, or the cursor would point elsewhere."""
        if state["capacity"] != self.capacity:
            raise ConfigError(
                f"the saved replay buffer holds {state['capacity']} transitions, this one {self.capacity}"
            )
        self._data, self._cursor, self._size = None, 0, 0
        if state["data"] is not None:
            self.add(state["data"])
        self._cursor = int(state["cursor"])
