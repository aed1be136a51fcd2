"""The parts of an environment, in a form that travels to workers and makes as many environments as are needed."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import TransportError
from .aux_info import AuxiliaryInfoCollector
from .env_wrapper import EnvWrapper
from .interpreter import ActionInterpreter, StateInterpreter
from .logging import LogCollector
from .reward import Reward


@dataclass(frozen=True)
class EnvParts:
    """Calling it makes an environment whose parts are its own. Its seeds come with each episode."""

    simulator_fn: Callable[..., Any]
    state_interpreter: StateInterpreter[Any, Any]
    action_interpreter: ActionInterpreter[Any, Any, Any]
    reward: Reward[Any] | None
    aux_info_collector: AuxiliaryInfoCollector[Any, Any] | None = None

    def __call__(self) -> EnvWrapper[Any, Any, Any, Any, Any]:
        # Parts may remember something of their episode, and episodes run side by side.
        parts = (self.state_interpreter, self.action_interpreter, self.reward, self.aux_info_collector)
        state, action, reward, aux_info = self._copies(parts)
        return EnvWrapper(self.simulator_fn, state, action, None, reward, aux_info, LogCollector())

    def _copies(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return copy.deepcopy(parts)
        except Exception as error:
            raise TransportError(
                f"{_culprit(parts)} cannot be copied for an environment of its own: {type(error).__name__}: {error}; "
                "create what cannot be copied inside the simulator, or when it is first used"
            ) from error


def _culprit(parts: tuple[Any, ...]) -> str:
    """The part that fails by itself."""
    names = ("the state interpreter", "the action interpreter", "the reward", "the collector of auxiliary information")
    for name, part in zip(names, parts, strict=True):
        try:
            copy.deepcopy(part)
        except Exception:  # noqa: BLE001 - the error that is raised has the words
            return f"{name} {type(part).__name__}"
    return "a part of the environment"
