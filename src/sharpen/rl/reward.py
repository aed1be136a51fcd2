"""Rewards: what a state is worth."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .env_wrapper import EnvWrapper

SimulatorState = TypeVar("SimulatorState")


class Reward(abc.ABC, Generic[SimulatorState]):
    """A number for the state that a step led to."""

    env: EnvWrapper[Any, Any, Any, Any, Any] | None = None
    """The environment that uses this reward."""
    _prefix: str = ""

    def __call__(self, simulator_state: SimulatorState) -> float:
        return self.reward(simulator_state)

    @abc.abstractmethod
    def reward(self, simulator_state: SimulatorState) -> float:
        """The reward of a state."""

    def log(self, name: str, value: Any) -> None:
        """Log a scalar, a text, an array or anything else, beside the reward of this step."""
        if self.env is not None:
            self.env.logger.add(self._prefix + name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "env"}


class RewardCombination(Reward[Any]):
    """A weighted sum of rewards; each weighted part is logged under its name, and may log too."""

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
