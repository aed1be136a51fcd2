"""Advantages and returns of whole episodes: pure functions on NumPy arrays.

Axis letters: T is every step of a collect, episodes one after another; K is the episodes.
"""

import numpy as np

from ..trees import Array


def next_values(value_T: Array, last_value_K: Array, length_K: Array) -> Array:
    """The value after each step: that of the next step, and for an episode's last step the one given for it.

    `last_value_K` is 0 where an episode terminated, and the value of its last observation where it was cut short.
    """
    after_T = np.empty_like(value_T)
    after_T[:-1] = value_T[1:]
    after_T[np.cumsum(length_K) - 1] = last_value_K
    return after_T


def gae(
    reward_T: Array, value_T: Array, next_value_T: Array, last_step_T: Array, *, discount: float, gae_lambda: float
) -> Array:
    """Generalised advantage estimates; nothing flows back over the end of an episode."""
    delta_T = (reward_T + discount * next_value_T - value_T).tolist()
    decay_T = np.where(last_step_T, 0.0, discount * gae_lambda).tolist()
    # Plain floats: a loop over a NumPy array costs five times as much.
    advantage = 0.0
    for step in range(len(delta_T) - 1, -1, -1):
        advantage = delta_T[step] + decay_T[step] * advantage
        delta_T[step] = advantage
    return np.asarray(delta_T, dtype=np.float64)


def n_step_returns(reward_T: Array, length_K: Array, *, discount: float, steps: int) -> tuple[Array, Array]:
    """For each step, the discounted sum of the next `steps` rewards of its episode, and how many those were."""
    ends_T = np.repeat(np.cumsum(length_K), length_K)
    position_T = np.arange(len(reward_T))
    count_T = np.minimum(ends_T - position_T, steps)
    padded = np.concatenate([np.asarray(reward_T, np.float64), np.zeros(steps)])
    total_T = np.zeros(len(reward_T))
    for ahead in range(steps):
        total_T += np.where(ahead < count_T, discount**ahead * padded[position_T + ahead], 0.0)
    return total_T, count_T


def explained_variance(value_T: Array, return_T: Array) -> float:
    """1 for a perfect critic, 0 for a constant one, below 0 for one that is worse than that."""
    spread = float(np.var(return_T))
    return 0.0 if spread == 0 else 1.0 - float(np.var(return_T - value_T)) / spread
