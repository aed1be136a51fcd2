"""Interpreters translate between a simulator and a policy.

A state interpreter turns the simulator's state into an observation, an action interpreter the policy's action into
one that the simulator understands. Calling an interpreter checks observations and actions against its space: fully on
an episode's first step, and by kind, dtype and shape after that (`validate_when` changes it).
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import gymnasium as gym

from ..errors import GymSpaceValidationError
from .simulator import ActType, StateType
from .spaces import SpaceCheck

if TYPE_CHECKING:
    from .env_wrapper import EnvWrapper

__all__ = ["ActionInterpreter", "GymSpaceValidationError", "Interpreter", "StateInterpreter"]

ObsType = TypeVar("ObsType")
PolicyActType = TypeVar("PolicyActType")
Validate: TypeAlias = Literal["shape", "first", "always"]


class Interpreter(abc.ABC):
    """The base of both kinds. An interpreter keeps no state of an episode: one object is used for many."""

    env: EnvWrapper[Any, Any, Any, Any, Any] | None = None
    """The environment that uses this interpreter."""
    validate_when: Validate = "shape"
    """What is checked after an episode's first step, which is always checked fully: "shape" checks kind, dtype and
    shape, "always" everything, and "first" nothing."""
    _check: SpaceCheck | None = None
    _space_name: ClassVar[str]

    @property
    def space_check(self) -> SpaceCheck:
        """The check against this interpreter's space, made once."""
        space: gym.Space[Any] = getattr(self, self._space_name)
        if self._check is None or self._check.space is not space:
            if not isinstance(space, gym.Space):
                where, kind = f"{type(self).__name__}.{self._space_name}", type(space)
                message = f"{where} is a {kind.__module__}.{kind.__name__}; use a space of gymnasium.spaces"
                raise GymSpaceValidationError(message, space, None)
            self._check = SpaceCheck(space)
        return self._check

    def validate(self, x: Any) -> None:
        """Raise `GymSpaceValidationError` if `x` is not in the space."""
        env = self.env
        is_first = env is None or env.status["cur_step"] == 0
        if is_first or self.validate_when == "always":
            self.space_check.full(x)
        elif self.validate_when == "shape":
            self.space_check.quick(x)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("env", "_check")}


class StateInterpreter(Interpreter, Generic[StateType, ObsType]):
    """Turns the simulator's state into what the policy sees."""

    _space_name = "observation_space"

    @property
    @abc.abstractmethod
    def observation_space(self) -> gym.Space[Any]:
        """The space that every observation is in."""

    def __call__(self, simulator_state: StateType) -> ObsType:
        obs = self.interpret(simulator_state)
        self.validate(obs)
        return obs

    @abc.abstractmethod
    def interpret(self, simulator_state: StateType) -> ObsType:
        """Return the observation for a state."""


class ActionInterpreter(Interpreter, Generic[StateType, PolicyActType, ActType]):
    """Turns the policy's action into one that the simulator understands."""

    _space_name = "action_space"

    @property
    @abc.abstractmethod
    def action_space(self) -> gym.Space[Any]:
        """The space that every action of the policy is in."""

    def __call__(self, simulator_state: StateType, action: PolicyActType) -> ActType:
        self.validate(action)
        return self.interpret(simulator_state, action)

    @abc.abstractmethod
    def interpret(self, simulator_state: StateType, action: PolicyActType) -> ActType:
        """Return the simulator's action for a policy's action in a state."""
