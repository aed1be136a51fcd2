"""`OldGymEnv`: an environment of the old gym API as one of gymnasium.

Old environments return four values from `step` and an observation alone from `reset`, are seeded with `seed()`, and
may be finite: an observation of NaNs from `reset` then says that there is nothing left.
"""

from typing import Any

import gymnasium as gym

from .env_wrapper import SeedsExhausted
from .spaces import check_nan_observation


class OldGymEnv(gym.Env[Any, Any]):
    """Wraps an environment whose `step` gives (observation, reward, done, info).

    `info["TimeLimit.truncated"]` tells an end by a time limit from others, as it always did. With `is_finite`, an
    observation made by `generate_nan_observation` from `reset` ends the environment.
    """

    def __init__(self, env: Any, *, is_finite: bool = False) -> None:
        self.env, self.is_finite = env, is_finite
        self.observation_space = as_space(env.observation_space)
        self.action_space = as_space(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
        found = self.env.reset()
        obs, info = found if _is_pair(found) else (found, {})
        if self.is_finite and check_nan_observation(obs):
            raise SeedsExhausted("the environment has nothing left to play")
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        found = self.env.step(action)
        if len(found) == 5:
            return found  # type: ignore[no-any-return]
        obs, reward, done, info = found
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return obs, float(reward), bool(done) and not truncated, truncated, info

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


def _is_pair(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)


def as_space(space: Any) -> gym.Space[Any]:
    """The same space in gymnasium; those of old gym are known by the names of their classes."""
    if isinstance(space, gym.Space):
        return space
    known = gym.spaces
    match type(space).__name__:
        case "Box":
            return known.Box(space.low, space.high, space.shape, space.dtype)
        case "Discrete":
            return known.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
        case "MultiDiscrete":
            return known.MultiDiscrete(space.nvec)
        case "MultiBinary":
            return known.MultiBinary(space.n)
        case "Dict":
            return known.Dict({name: as_space(inner) for name, inner in space.spaces.items()})
        case "Tuple":
            return known.Tuple([as_space(inner) for inner in space.spaces])
    raise TypeError(f"{space!r} is no space of gym or gymnasium")
