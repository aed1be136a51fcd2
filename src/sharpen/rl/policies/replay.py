"""A replay buffer that is kept across collects: a ring of transitions, saved with its cursor."""

from typing import Any

import numpy as np

from ...checks import check_int
from ...errors import ConfigError
from ..policy import EpisodeBatch
from ..trees import Array, Tree, map_tree, row_count, rows

Transitions = dict[str, Any]
"""`obs`, `action`, `reward`, `discount` (0 after a terminal step) and `next_obs`, each with one row per transition."""


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
        """Append transitions, overwriting the oldest ones."""
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
        """Return transitions drawn uniformly, with replacement."""
        return rows(self._data, rng.integers(self._size, size=batch_size))  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Return the stored transitions and the position of the next one."""
        filled = None if self._data is None else map_tree(lambda ring: ring[: self._size].copy(), self._data)
        return {"capacity": self.capacity, "cursor": self._cursor, "size": self._size, "data": filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved buffer. It must have the same capacity, or the cursor would be wrong."""
        if state["capacity"] != self.capacity:
            raise ConfigError(
                f"the saved replay buffer holds {state['capacity']} transitions, but this one holds {self.capacity}: "
                "use the same buffer_size"
            )
        self._data, self._cursor, self._size = None, 0, 0
        if state["data"] is not None:
            self.add(state["data"])
        self._cursor = int(state["cursor"])


def transitions(batch: EpisodeBatch, *, discount: float, steps: int = 1) -> Transitions:
    """Return the transitions of a collect, each `steps` long or up to the end of its episode."""
    reward_T, count_T = n_step_returns(batch.reward_T, batch.lengths_E, discount=discount, steps=steps)
    last_T = np.arange(len(batch)) + count_T - 1
    return {
        "obs": batch.obs_T,
        "action": batch.action_T,
        "reward": reward_T.astype(np.float32),
        "discount": np.where(batch.terminated_T[last_T], 0.0, discount**count_T).astype(np.float32),
        "next_obs": rows(batch.next_obs_T, last_T),
    }


def n_step_returns(reward_T: Array, length_E: Array, *, discount: float, steps: int) -> tuple[Array, Array]:
    """Return for each step the discounted sum of the next `steps` rewards of its episode, and how many those were."""
    ends_T = np.repeat(np.cumsum(length_E), length_E)
    position_T = np.arange(len(reward_T))
    count_T = np.minimum(ends_T - position_T, steps)
    padded = np.concatenate([np.asarray(reward_T, np.float64), np.zeros(steps)])
    total_T = np.zeros(len(reward_T))
    for ahead in range(steps):
        total_T += np.where(ahead < count_T, discount**ahead * padded[position_T + ahead], 0.0)
    return total_T, count_T
