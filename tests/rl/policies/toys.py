"""Toy tasks that are learned in a second, and a collector that plays them without a trainer."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from sharpen.rl import Actor, EpisodeBatch

Array = np.ndarray[Any, Any]
SIGN_OBS = spaces.Box(-1.0, 1.0, (2,), np.float32)
TWO = spaces.Discrete(2)
UNIT = spaces.Box(-2.0, 2.0, (1,), np.float32)


def sign_reward(obs_E: Array, action_E: Array) -> Array:
    """1 for the action that names the sign of the first number."""
    return ((obs_E[:, 0] > 0) == (action_E == 1)).astype(np.float64)


def near_reward(obs_E: Array, action_E: Array) -> Array:
    """Best where the action is the first number."""
    return -((action_E[:, 0] - obs_E[:, 0]) ** 2).astype(np.float64)


def play(
    policy: Actor,
    rng: np.random.Generator,
    reward: Callable[[Array, Array], Array],
    *,
    episodes: int = 16,
    length: int = 4,
    deterministic: bool = False,
) -> EpisodeBatch:
    """Episodes of independent random observations; every second one is cut instead of terminated."""
    obs_E_L = rng.uniform(-1.0, 1.0, (episodes, length + 1, 2)).astype(np.float32)
    chosen = [policy.act(obs_E_L[:, step], rng=rng, deterministic=deterministic) for step in range(length)]
    reward_E_L = np.stack([reward(obs_E_L[:, step], each.action_N) for step, each in enumerate(chosen)], axis=1)
    ends = np.zeros((episodes, length), bool)
    ends[:, -1] = True
    cut = np.arange(episodes)[:, None] % 2 == 1
    return EpisodeBatch(
        obs_T=obs_E_L[:, :length].reshape(-1, 2),
        action_T=_joined([each.action_N for each in chosen]),
        reward_T=reward_E_L.reshape(-1),
        terminated_T=(ends & ~cut).reshape(-1),
        truncated_T=(ends & cut).reshape(-1),
        last_obs_E=obs_E_L[:, -1],
        lengths_E=np.full(episodes, length),
        extras={name: _joined([each.extras[name] for each in chosen]) for name in chosen[0].extras},
    )


def _joined(parts: list[Array]) -> Array:
    stacked = np.stack(parts, axis=1)
    return stacked.reshape(-1, *stacked.shape[2:])


def same(left: Any, right: Any) -> bool:
    """Whether two state trees hold equal values everywhere."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "shape"):
        return bool(np.array_equal(np.asarray(left), np.asarray(right)))
    return bool(left == right)
