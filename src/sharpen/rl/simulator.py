"""Simulators: one object is one episode."""

from __future__ import annotations

import abc
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from .seed import InitialStateType

if TYPE_CHECKING:
    from .env_wrapper import EnvWrapper

StateType = TypeVar("StateType")
"""The state of a simulator: whatever its interpreters and its reward understand."""
ActType = TypeVar("ActType")
"""An action as the simulator understands it, not as the policy chose it."""

# The environment that is building a simulator on this thread, so that `Simulator.rng` works in `__init__` too.
_building = threading.local()


class Simulator(abc.ABC, Generic[InitialStateType, StateType, ActType]):
    """An episode from its initial state to its end.

    It is created with an initial state, stepped with actions until `done()`, and never used again. A simulator that
    draws random numbers should take them from `self.rng`: the same episode then plays the same way in every kind of
    environment, whatever runs beside it. Override `truncated()` if an episode can be cut short by a limit.
    """

    env: EnvWrapper[Any, Any, Any, Any, Any] | None = None
    """The environment around this simulator."""

    def __init__(self, initial: InitialStateType, **kwargs: Any) -> None:
        """Begin the episode of this initial state."""

    @abc.abstractmethod
    def step(self, action: ActType) -> None:
        """Step by one action."""

    @abc.abstractmethod
    def get_state(self) -> StateType:
        """Return the current state."""

    @abc.abstractmethod
    def done(self) -> bool:
        """Return whether the episode is over, for whatever reason."""

    def truncated(self) -> bool:
        """Return whether a finished episode was cut short, so that its last state still has a value."""
        return False

    @property
    def rng(self) -> np.random.Generator:
        """The random numbers of this episode."""
        env = self.env if self.env is not None else getattr(_building, "env", None)
        if env is not None:
            return env.np_random
        alone = self.__dict__.get("_rng")
        if alone is None:
            alone = self.__dict__["_rng"] = np.random.default_rng()
        return alone
