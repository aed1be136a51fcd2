"""Interpreters stand between a simulator and a policy.

A state interpreter turns the simulator's state into an observation, an action interpreter the policy's action into
one that the simulator understands. Calling an interpreter checks what crosses the border against its space: fully on
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
    """What both kinds share. An interpreter keeps no state of an episode: one object serves many."""

    env: EnvWrapper[Any, Any, Any, Any, Any] | None = None
    """The environment that uses this interpreter."""
    validate_when: Validate = "shape"
    """After an episode's first step, which is always checked fully: "shape" checks kind, dtype and shape, "always"
    everything, and "first" nothing more."""
    _check: SpaceCheck | None = None
    _space_name: ClassVar[str]

    @property
    def space_check(self) -> SpaceCheck:
        """The check against this interpreter's space; made once."""
        space: gym.Space[Any] = getattr(self, self._space_name)
        if self._check is None or self._check.space is not space:
            if not isinstance(space, gym.Space):
                where, kind = f"{type(self).__name__}.{self._space_name}", type(space)
                words = f"{where} is a {kind.__module__}.{kind.__name__}: take a space of gymnasium.spaces"
                raise GymSpaceValidationError(words, space, None)
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
    """The simulator's state as the policy sees it."""

    _space_name = "observation_space"

    @property
    @abc.abstractmethod
    def observation_space(self) -> gym.Space[Any]:
        """Every observation is in this space."""

    def __call__(self, simulator_state: StateType) -> ObsType:
        obs = self.interpret(simulator_state)
        self.validate(obs)
        return obs

    @abc.abstractmethod
    def interpret(self, simulator_state: StateType) -> ObsType:
        """The observation for a state."""


class ActionInterpreter(Interpreter, Generic[StateType, PolicyActType, ActType]):
    """The policy's action as the simulator understands it."""

    _space_name = "action_space"

    @property
    @abc.abstractmethod
    def action_space(self) -> gym.Space[Any]:
        """Every action of the policy is in this space."""

    def __call__(self, simulator_state: StateType, action: PolicyActType) -> ActType:
        self.validate(action)
        return self.interpret(simulator_state, action)

    @abc.abstractmethod
    def interpret(self, simulator_state: StateType, action: PolicyActType) -> ActType:
        """The simulator's action for a policy's action in a state."""
