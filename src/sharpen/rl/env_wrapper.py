"""`EnvWrapper`: a simulator, its interpreters and its reward as a gymnasium environment.

The order of a step: the action is interpreted, the simulator steps, the new state is interpreted, rewarded and looked
at by the collector of auxiliary information. Terminated and truncated are kept apart. When the seeds have run out,
`reset` raises `SeedsExhausted`; no observation has a special meaning.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any, Generic, TypedDict

import gymnasium as gym
import numpy as np

from ..errors import InvalidInputError
from ..loggers import LogLevel
from .aux_info import AuxiliaryInfoCollector
from .interpreter import ActionInterpreter, Interpreter, ObsType, PolicyActType, StateInterpreter, Validate
from .logging import LogCollector, Logs
from .reward import Reward, as_number
from .seed import InitialStateType
from .simulator import ActType, Simulator, StateType, _building

NO_INITIAL: Any = object()  # for simulators that begin without an initial state
DEBUG, PERIODIC = int(LogLevel.DEBUG), int(LogLevel.PERIODIC)


class SeedsExhausted(StopIteration):
    """There is no further initial state for this environment."""


class InfoDict(TypedDict):
    """What an `EnvWrapper` says beside an observation."""

    log: Logs
    aux_info: Any


class EnvWrapperStatus(TypedDict):
    """The episode so far, for the parts of the environment to look at."""

    cur_step: int
    done: bool
    initial_state: Any
    obs_history: list[Any]
    action_history: list[Any]
    reward_history: list[float]


class EnvWrapper(
    gym.Env[ObsType, PolicyActType], Generic[InitialStateType, StateType, ActType, ObsType, PolicyActType]
):
    """One environment that plays episode after episode, each from the next initial state of `seed_iterator`.

    Without a `seed_iterator` it never ends, and `simulator_fn()` is called without an initial state.
    """

    simulator: Simulator[InitialStateType, StateType, ActType]

    def __init__(
        self,
        simulator_fn: Callable[..., Simulator[InitialStateType, StateType, ActType]],
        state_interpreter: StateInterpreter[StateType, ObsType],
        action_interpreter: ActionInterpreter[StateType, PolicyActType, ActType],
        seed_iterator: Iterable[InitialStateType] | None = None,
        reward_fn: Reward[StateType] | None = None,
        aux_info_collector: AuxiliaryInfoCollector[StateType, Any] | None = None,
        logger: LogCollector | None = None,
        *,
        validate: Validate | None = None,
    ) -> None:
        self.simulator_fn = simulator_fn
        self.state_interpreter: StateInterpreter[StateType, ObsType] = self._own(state_interpreter)
        self.action_interpreter: ActionInterpreter[StateType, PolicyActType, ActType] = self._own(action_interpreter)
        self.reward_fn: Reward[StateType] | None = self._own(reward_fn)
        self.aux_info_collector: AuxiliaryInfoCollector[StateType, Any] | None = self._own(aux_info_collector)
        self.seed_iterator = seed_iterator
        self._seeds: Iterator[InitialStateType] | None = None
        self.logger = LogCollector() if logger is None else logger
        if validate is not None:
            self.state_interpreter.validate_when = self.action_interpreter.validate_when = validate
        self.status = _fresh_status(None)
        self.status["done"] = True
        self._entropy: Any = None
        self._rng: np.random.Generator | None = None
        self._reward = _reward_of(self.reward_fn)
        self._checks_obs = _quick_check(self.state_interpreter, StateInterpreter)
        self._checks_action = _quick_check(self.action_interpreter, ActionInterpreter)

    def _own(self, part: Any) -> Any:
        """The part itself, or a copy of it where another environment has it already."""
        if part is None:
            return None
        if getattr(part, "env", None) is not None:
            part = copy.copy(part)
        part.env = self
        return part

    @property
    def observation_space(self) -> gym.Space[ObsType]:  # type: ignore[override]
        return self.state_interpreter.observation_space

    @property
    def action_space(self) -> gym.Space[PolicyActType]:  # type: ignore[override]
        return self.action_interpreter.action_space

    @property
    def np_random(self) -> np.random.Generator:
        """The random numbers of the current episode."""
        if self._rng is None:
            self._rng = np.random.default_rng(self._entropy)
        return self._rng

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._rng = value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ObsType, InfoDict]:  # type: ignore[override]
        """Begin the next episode; `options={"initial_state": …}` begins that one instead."""
        if options and "initial_state" in options:
            return self.begin(options["initial_state"], seed)
        if self.seed_iterator is None:
            return self.begin(NO_INITIAL, seed)
        if self._seeds is None:
            self._seeds = iter(self.seed_iterator)
        try:
            initial = next(self._seeds)
        except StopIteration:
            raise SeedsExhausted("every initial state has been used") from None
        return self.begin(initial, seed)

    def begin(self, initial: Any, entropy: Any) -> tuple[ObsType, InfoDict]:
        """Begin the episode of one initial state, with random numbers from `entropy`."""
        self._entropy, self._rng = entropy, None
        self._reward = _reward_of(self.reward_fn)
        self.status = _fresh_status(None if initial is NO_INITIAL else initial)
        self.logger.reset()
        _building.env = self
        try:
            self.simulator = self.simulator_fn() if initial is NO_INITIAL else self.simulator_fn(initial)
        finally:
            _building.env = None
        self.simulator.env = self
        self._state = self.simulator.get_state()
        obs = self.state_interpreter(self._state)
        self.status["obs_history"].append(obs)
        return obs, {"log": {}, "aux_info": self._aux_info()}

    def step(self, policy_action: PolicyActType, **kwargs: Any) -> tuple[ObsType, float, bool, bool, InfoDict]:  # type: ignore[override]
        """Go on by one action of the policy."""
        # The inner loop of everything: what could be methods of their own stands here, since calls cost most of it.
        status = self.status
        if status["done"]:
            raise InvalidInputError("the episode is over: call reset before the next step")
        simulator = self.simulator
        logs: Logs = {}
        self.logger._logged = logs
        if status["cur_step"] and self._checks_action is not None:
            self._checks_action(policy_action)
            action = self.action_interpreter.interpret(self._state, policy_action)
        else:
            action = self.action_interpreter(self._state, policy_action)
        status["action_history"].append(policy_action)
        status["cur_step"] += 1
        simulator.step(action)
        status["done"] = done = simulator.done()
        self._state = state = simulator.get_state()
        if self._checks_obs is not None:
            obs = self.state_interpreter.interpret(state)
            self._checks_obs(obs)
        else:
            obs = self.state_interpreter(state)
        status["obs_history"].append(obs)
        reward = self._reward(state)
        if type(reward) is not float or not isfinite(reward):
            reward = as_number(reward, status["cur_step"])
        status["reward_history"].append(reward)
        aux_info = {} if self.aux_info_collector is None else self.aux_info_collector(state)
        if not done and not logs and self.logger._min_loglevel == PERIODIC:
            logs["reward"] = (PERIODIC, reward)  # nearly every step
            return obs, reward, False, False, {"log": logs, "aux_info": aux_info}
        self._log_step(obs, policy_action, reward, done=done)
        truncated = bool(done and simulator.truncated())
        return obs, reward, bool(done) and not truncated, truncated, {"log": logs, "aux_info": aux_info}

    def _aux_info(self) -> Any:
        return {} if self.aux_info_collector is None else self.aux_info_collector(self._state)

    def _log_step(self, obs: ObsType, policy_action: PolicyActType, reward: float, *, done: bool) -> None:
        logger = self.logger
        logger._put("reward", reward, PERIODIC)
        if done:
            logger._put("steps_per_episode", self.status["cur_step"], PERIODIC)
        logger._put("obs", obs, DEBUG)
        logger._put("policy_act", policy_action, DEBUG)

    def render(self) -> None:
        raise NotImplementedError("an EnvWrapper has no picture: look at its simulator")


def _fresh_status(initial: Any) -> EnvWrapperStatus:
    return {
        "cur_step": 0,
        "done": False,
        "initial_state": initial,
        "obs_history": [],
        "action_history": [],
        "reward_history": [],
    }


def _quick_check(interpreter: Interpreter, kind: type[Interpreter]) -> Callable[[Any], None] | None:
    """What calling the interpreter would check after an episode's first step; None where it must be called."""
    is_plain = type(interpreter).__call__ is kind.__call__ and type(interpreter).validate is Interpreter.validate
    if not is_plain or interpreter.validate_when == "always":
        return None
    return interpreter.space_check.quick if interpreter.validate_when == "shape" else _nothing


def _reward_of(reward: Reward[Any] | None) -> Callable[[Any], float]:
    if reward is None:
        return lambda state: 0.0
    return reward.reward if type(reward).__call__ is Reward.__call__ else reward


def _nothing(x: Any) -> None:
    """No check."""
