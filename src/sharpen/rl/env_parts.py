"""The parts of an environment, in a form that travels to workers and makes as many environments as are needed."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .aux_info import AuxiliaryInfoCollector
from .env_wrapper import EnvWrapper
from .interpreter import ActionInterpreter, StateInterpreter
from .log_collector import LogCollector
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
        state, action, reward, aux_info = copy.deepcopy(parts)
        return EnvWrapper(self.simulator_fn, state, action, None, reward, aux_info, LogCollector())
