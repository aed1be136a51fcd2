"""Auxiliary information about states, which is returned beside the observation and not seen by the policy."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .simulator import StateType

if TYPE_CHECKING:
    from .env_wrapper import EnvWrapper

AuxInfoType = TypeVar("AuxInfoType")


class AuxiliaryInfoCollector(abc.ABC, Generic[StateType, AuxInfoType]):
    """Collects something from each state, into `info["aux_info"]`."""

    env: EnvWrapper[Any, Any, Any, Any, Any] | None = None
    """The environment that uses this collector."""

    def __call__(self, simulator_state: StateType) -> AuxInfoType:
        return self.collect(simulator_state)

    @abc.abstractmethod
    def collect(self, simulator_state: StateType) -> AuxInfoType:
        """Return the information about a state."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "env"}
