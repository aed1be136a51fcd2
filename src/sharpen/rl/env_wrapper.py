"""Environments of gymnasium: `EnvWrapper` makes one from a simulator, `OldGymEnv` from an environment of old gym.

The order of an `EnvWrapper`'s step: the action is interpreted, the simulator steps, the new state is interpreted,
rewarded and passed to the collector of auxiliary information. Terminated and truncated are distinct. When the seeds
have run out, `reset` raises `SeedsExhausted`; no observation has a special meaning.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, TypedDict

import gymnasium as gym
import numpy as np

from ..errors import InvalidInputError, TransportError
from ..loggers import LogLevel
from .aux_info import AuxiliaryInfoCollector
from .interpreter import ActionInterpreter, Interpreter, ObsType, PolicyActType, StateInterpreter, Validate
from .logging import LogCollector, Logs
from .reward import Reward, as_number
from .seed import InitialStateType
from .simulator import ActType, Simulator, StateType, _building
from .spaces import check_nan_observation

NO_INITIAL: Any = object()  # for simulators that begin without an initial state
DEBUG, PERIODIC = int(LogLevel.DEBUG), int(LogLevel.PERIODIC)


class SeedsExhausted(StopIteration):
    """There is no further initial state for this environment."""


class InfoDict(TypedDict):
    """What an `EnvWrapper` returns besides an observation."""

    log: Logs
    aux_info: Any


class EnvWrapperStatus(TypedDict):
    """The episode so far, as the parts of the environment can see it."""

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
        """Return the part, or a copy of it if another environment already has it."""
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
        """Begin the next episode, or that of `options={"initial_state": …}`."""
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
        """Step by one action of the policy."""
        # The inner loop of everything: it is one long method because calls would cost most of its time.
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
        raise NotImplementedError("EnvWrapper cannot render: use its simulator")


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
    """Return what calling the interpreter checks after an episode's first step, or None if it must be called."""
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


# -- many of one kind --------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnvParts:
    """The parts of an `EnvWrapper`, in a form that can be sent to workers.

    Calling it returns an environment with copies of the parts. Its seeds come with each episode.
    """

    simulator_fn: Callable[..., Any]
    state_interpreter: StateInterpreter[Any, Any]
    action_interpreter: ActionInterpreter[Any, Any, Any]
    reward: Reward[Any] | None
    aux_info_collector: AuxiliaryInfoCollector[Any, Any] | None = None

    def __call__(self) -> EnvWrapper[Any, Any, Any, Any, Any]:
        # Parts may keep something of their episode, and episodes run side by side.
        parts = (self.state_interpreter, self.action_interpreter, self.reward, self.aux_info_collector)
        state, action, reward, aux_info = self._copies(parts)
        return EnvWrapper(self.simulator_fn, state, action, None, reward, aux_info, LogCollector())

    def _copies(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return copy.deepcopy(parts)
        except Exception as error:
            raise TransportError(
                f"{_uncopyable(parts)} cannot be copied for each environment: {type(error).__name__}: {error}; "
                "create what cannot be copied inside the simulator, or when it is first used"
            ) from error


def _uncopyable(parts: tuple[Any, ...]) -> str:
    """Return a description of the part that cannot be copied."""
    names = ("the state interpreter", "the action interpreter", "the reward", "the auxiliary info collector")
    for name, part in zip(names, parts, strict=True):
        try:
            copy.deepcopy(part)
        except Exception:  # noqa: BLE001 - the caller raises an error with the cause
            return f"{name} {type(part).__name__}"
    return "a part of the environment"


# -- old gym -----------------------------------------------------------------------------------------


class OldGymEnv(gym.Env[Any, Any]):
    """Wraps an environment whose `step` returns (observation, reward, done, info).

    Old environments return only an observation from `reset` and are seeded with `seed()`. An episode is truncated if
    `info["TimeLimit.truncated"]` says so. With `is_finite`, an observation made by `generate_nan_observation` from
    `reset` means that there is nothing left to play.
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
    """Return the same space in gymnasium; spaces of old gym are recognised by their class names."""
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
    raise TypeError(f"{space!r} is not a space of gym or gymnasium")
