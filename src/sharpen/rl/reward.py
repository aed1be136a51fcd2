"""Rewards: how good the state is that a step led to."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ..errors import RewardError

if TYPE_CHECKING:
    from .env_wrapper import EnvWrapper

SimulatorState = TypeVar("SimulatorState")


class Reward(abc.ABC, Generic[SimulatorState]):
    """Rates the state that a step led to with a number."""

    env: EnvWrapper[Any, Any, Any, Any, Any] | None = None
    """The environment that uses this reward."""
    _prefix: str = ""

    def __call__(self, simulator_state: SimulatorState) -> float:
        return self.reward(simulator_state)

    @abc.abstractmethod
    def reward(self, simulator_state: SimulatorState) -> float:
        """Return the reward of a state."""

    def log(self, name: str, value: Any) -> None:
        """Log a scalar, a string, an array or anything else with this step."""
        if self.env is not None:
            self.env.logger.add(self._prefix + name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "env"}


class RewardCombination(Reward[Any]):
    """A weighted sum of rewards. Each weighted part is logged under its name, and may log values of its own."""

    def __init__(self, rewards: Mapping[str, tuple[Reward[Any], float]]) -> None:
        self.rewards = dict(rewards)

    def reward(self, simulator_state: Any) -> float:
        total = 0.0
        for name, (part, weight) in self.rewards.items():
            if part.env is not self.env:
                part.env, part._prefix = self.env, f"{self._prefix}{name}/"
            value = part(simulator_state) * weight
            self.log(name, value)
            total += value
        return total


def as_number(reward: Any, step: int) -> float:
    """Return the reward after a step as a float, or raise if it is not a single finite number."""
    is_number = isinstance(reward, int | float | np.integer | np.floating | np.bool_)
    if (is_number or _is_real_scalar(reward)) and math.isfinite(reward):
        return float(reward)
    raise RewardError(f"the reward is {reward!r:.200} after step {step}: it must be a single finite number")


def _is_real_scalar(value: Any) -> bool:
    """Return whether a value is an array or a tensor without axes."""
    return getattr(value, "shape", None) == () and not isinstance(value.item(), complex | str)
