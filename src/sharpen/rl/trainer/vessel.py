"""Vessels: a simulator, its interpreters, its reward and a policy, ready to be trained.

A vessel defines where episodes begin in each stage and what one collect does; the trainer does the rest. Whatever can
be seen to be wrong with the parts is reported before anything is played.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ...checks import check_int
from ...errors import ConfigError, SeedIteratorNotAvailable
from ...loggers import LogLevel, Metrics, wanting
from ..collector import Collector
from ..data_queue import DataQueue
from ..finite_env import FiniteVectorEnv
from ..interpreter import ActionInterpreter, ObsType, PolicyActType, StateInterpreter
from ..logging import is_number
from ..policy import Actor, EpisodeBatch, Policy
from ..reward import Reward
from ..seed import InitialStateType, SeedIterator
from ..simulator import ActType, Simulator, StateType
from ..vector_simulator import VectorSimulator

if TYPE_CHECKING:
    from .trainer import Trainer

_logger = logging.getLogger(__name__)

_VERBS = {"train": "train", "val": "validate", "test": "test"}


class TrainingVesselBase(Generic[InitialStateType, StateType, ActType, ObsType, PolicyActType]):
    """What the trainer needs of a vessel."""

    simulator_fn: Callable[..., Simulator[InitialStateType, StateType, ActType]] | type[VectorSimulator[Any]]
    state_interpreter: StateInterpreter[StateType, ObsType]
    action_interpreter: ActionInterpreter[StateType, PolicyActType, ActType]
    policy: Policy
    reward: Reward[StateType] | None
    _trainer: weakref.ref[Trainer] | None = None

    @property
    def trainer(self) -> Trainer:
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None:
            raise ConfigError("this vessel has no trainer: pass it to Trainer.fit or Trainer.test")
        return trainer

    def assign_trainer(self, trainer: Trainer) -> None:
        """Bind the trainer, by a weak reference."""
        self._trainer = weakref.ref(trainer)

    def check_ready(self, stages: Sequence[str]) -> None:
        """Raise an error now for what would fail in one of these stages later. Overriding it is optional."""

    def train_seed_iterator(self) -> SeedIterator[InitialStateType]:
        """Return the initial states of a training collect."""
        raise _no_states("train")

    def val_seed_iterator(self) -> SeedIterator[InitialStateType]:
        """Return the initial states of a validation."""
        raise _no_states("val")

    def test_seed_iterator(self) -> SeedIterator[InitialStateType]:
        """Return the initial states of a test."""
        raise _no_states("test")

    def train(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        """Play and learn from one collect; return the metrics of the update."""
        raise NotImplementedError

    def validate(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        """Play the validation episodes; return metrics beyond those that are logged."""
        raise NotImplementedError

    def test(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        """Play the test episodes; return metrics beyond those that are logged."""
        raise NotImplementedError

    def log(self, name: str, value: Any) -> None:
        """Log one value, with the current iteration and stage."""
        self.log_dict({name: value})

    def log_dict(self, data: Mapping[str, Any]) -> None:
        """Log several values in one line, with the current iteration and stage."""
        trainer = self.trainer
        text = ", ".join(f"{name}: {_shown(value)}" for name, value in data.items())
        _logger.info("[%s iteration %d] %s", trainer.current_stage, trainer.current_iter, text)
        for logger in wanting(trainer.metric_loggers(), LogLevel.INFO):
            logger.log_text(trainer.current_stage, text, trainer.current_iter)

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.policy.load_state_dict(state_dict["policy"])


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float | np.floating) else str(value)


class TrainingVessel(TrainingVesselBase[InitialStateType, StateType, ActType, ObsType, PolicyActType]):
    """Trains on `episode_per_iter` episodes per iteration; validates and tests on every state exactly once.

    Use `step_per_iter` instead of `episode_per_iter` if episodes are long or differ in length: an iteration begins
    episodes until they have made this many steps together and plays them to their ends, and the policy learns after
    every `step_per_iter` steps, so that the size of an update does not depend on the length of an episode. Steps that
    remain at the end of an iteration belong to the first update of the next one, and are saved in checkpoints.

    Training draws the states in a shuffled order that continues across iterations, so each is used equally often.
    `buffer_size` is how many steps the buffer holds before it has to grow. `update_kwargs` are passed to
    `policy.learn`.
    """

    def __init__(
        self,
        *,
        simulator_fn: Callable[..., Simulator[InitialStateType, StateType, ActType]] | type[VectorSimulator[Any]],
        state_interpreter: StateInterpreter[StateType, ObsType] | None = None,
        action_interpreter: ActionInterpreter[StateType, PolicyActType, ActType] | None = None,
        policy: Policy,
        reward: Reward[StateType] | None = None,
        train_initial_states: Sequence[InitialStateType] | None = None,
        val_initial_states: Sequence[InitialStateType] | None = None,
        test_initial_states: Sequence[InitialStateType] | None = None,
        buffer_size: int = 20000,
        episode_per_iter: int = 1000,
        update_kwargs: dict[str, Any] | None = None,
        step_per_iter: int | None = None,
    ) -> None:
        _check_parts(
            simulator_fn,
            policy=policy,
            state_interpreter=state_interpreter,
            action_interpreter=action_interpreter,
            reward=reward,
        )
        _check_states(
            train_initial_states=train_initial_states,
            val_initial_states=val_initial_states,
            test_initial_states=test_initial_states,
        )
        self.simulator_fn, self.policy, self.reward = simulator_fn, policy, reward
        self.state_interpreter, self.action_interpreter = state_interpreter, action_interpreter  # type: ignore[assignment]
        self.train_initial_states = train_initial_states
        self.val_initial_states, self.test_initial_states = val_initial_states, test_initial_states
        self.buffer_size, self.episode_per_iter, self.step_per_iter = buffer_size, episode_per_iter, step_per_iter
        self._check_numbers()
        self.update_kwargs = dict(update_kwargs or {})
        self._queue: DataQueue[InitialStateType] | None = None
        self._cursor: dict[str, int] | None = None
        self._waiting: EpisodeBatch | None = None  # steps that the policy has not learned from yet

    def _check_numbers(self) -> None:
        for name in ("episode_per_iter", "buffer_size"):
            check_int(name, getattr(self, name), at_least=1)
        check_int("step_per_iter", self.step_per_iter, at_least=1, optional=True)

    def assign_trainer(self, trainer: Trainer) -> None:
        if self._trainer is None or self._trainer() is not trainer:
            self._queue = self._cursor = self._waiting = None  # another run, with another seed and other states
        super().assign_trainer(trainer)

    def check_ready(self, stages: Sequence[str]) -> None:
        self._check_numbers()  # they may have been assigned since
        if "train" in stages:
            _check_trainable(self.policy)
        _check_spaces(self.policy, self.simulator_fn, self.state_interpreter, self.action_interpreter)
        for stage in stages:
            method = f"{stage}_seed_iterator"
            if getattr(type(self), method) is getattr(TrainingVessel, method):  # an override may do without the list
                _check_available(stage, getattr(self, f"{stage}_initial_states"))

    def train_seed_iterator(self) -> SeedIterator[InitialStateType]:
        if self.train_initial_states is None:
            return super().train_seed_iterator()
        if self._queue is None:
            states = self._subset("train", self.train_initial_states)
            self._queue = DataQueue(states, repeat=-1, shuffle=True, seed=self.trainer.seed)
            if self._cursor is not None:
                self._queue.load_state_dict(self._cursor)
        return self._queue

    def val_seed_iterator(self) -> SeedIterator[InitialStateType]:
        if self.val_initial_states is None:
            return super().val_seed_iterator()
        return DataQueue(self._subset("val", self.val_initial_states), repeat=1, shuffle=False)

    def test_seed_iterator(self) -> SeedIterator[InitialStateType]:
        if self.test_initial_states is None:
            return super().test_seed_iterator()
        return DataQueue(self._subset("test", self.test_initial_states), repeat=1, shuffle=False)

    def train(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        collector = Collector(self.policy, vector_env, buffer_size=self.buffer_size)
        few = self.trainer.fast_dev_run
        if self.step_per_iter is None or few is not None:
            self._waiting = None
            batch = collector.collect(few or self.episode_per_iter)
            return dict(self.policy.learn(batch, **self.update_kwargs) or {})
        means, waiting = Metrics(), self._waiting
        for part in collector.collect_steps(self.step_per_iter, n_waiting=0 if waiting is None else len(waiting)):
            batch = part if waiting is None else waiting.followed_by(part)
            waiting = batch if len(batch) < self.step_per_iter else None
            if waiting is None:
                found = self.policy.learn(batch, **self.update_kwargs) or {}
                numbers = {name: float(value) for name, value in found.items() if is_number(value)}
                means.add_all(numbers, count=len(batch))
        self._waiting = waiting
        return dict(means.means())

    def validate(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        Collector(self.policy, vector_env).play(deterministic=True)
        return {}

    def test(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        return self.validate(vector_env)

    def _subset(self, name: str, states: Sequence[InitialStateType]) -> Sequence[InitialStateType]:
        """Return all states, or a few random ones for a `fast_dev_run`."""
        few = self.trainer.fast_dev_run
        if few is None or few >= len(states):
            return states
        chosen = np.random.default_rng(self.trainer.seed).choice(len(states), few, replace=False)
        _logger.info("fast_dev_run: %d of %d initial states for %s", few, len(states), name)
        return [states[i] for i in chosen.tolist()]

    def state_dict(self) -> dict[str, Any]:
        cursor = self._cursor if self._queue is None else self._queue.state_dict()
        waiting = {} if self._waiting is None else {"waiting_steps": self._waiting.state_dict()}
        return {**super().state_dict(), "train_cursor": cursor, **waiting}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._cursor = state_dict.get("train_cursor")
        waiting = state_dict.get("waiting_steps")
        self._waiting = None if waiting is None else EpisodeBatch(**waiting)
        if self._queue is not None and self._cursor is not None:
            self._queue.load_state_dict(self._cursor)


# -- checks before a run -----------------------------------------------------------------------------


def _check_parts(simulator_fn: Any, **parts: Any) -> None:
    """Check that the parts are objects and that `simulator_fn` makes simulators."""
    for name, part in parts.items():
        if isinstance(part, type):
            raise ConfigError(f"{name} is the class {part.__name__}; pass an object, {part.__name__}(…)")
    if isinstance(simulator_fn, Simulator) or not callable(simulator_fn):
        raise ConfigError(
            f"simulator_fn is {simulator_fn!r:.200}; pass the simulator's class, or a function that makes a simulator "
            "from an initial state"
        )
    if not isinstance(parts["policy"], Actor):
        raise ConfigError(
            f"{type(parts['policy']).__name__} is not a policy because it has no act(): wrap it with "
            "Tianshou04Policy, SB3Policy or ModulePolicy"
        )
    has_both = parts["state_interpreter"] is not None and parts["action_interpreter"] is not None
    if not _is_vector(simulator_fn) and not has_both:
        raise ConfigError(
            "a simulator needs a state_interpreter and an action_interpreter; only a VectorSimulator does without"
        )


def _is_vector(simulator_fn: Any) -> bool:
    return isinstance(simulator_fn, type) and issubclass(simulator_fn, VectorSimulator)


def _check_states(**states: Any) -> None:
    """Check that initial states are sequences, so that they can be shuffled and used again."""
    for name, given in states.items():
        is_sequence = hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, Mapping)
        if given is not None and not is_sequence:
            raise ConfigError(f"{name} is a {type(given).__name__}; pass a sequence of initial states, such as a list")


def _check_available(stage: str, states: Any) -> None:
    """Check that there are initial states for a stage."""
    if states is None:
        raise _no_states(stage)
    if not len(states):
        raise SeedIteratorNotAvailable(f"{stage}_initial_states is empty: add initial states to {_VERBS[stage]} on")


def _no_states(stage: str) -> SeedIteratorNotAvailable:
    verb = _VERBS[stage]
    return SeedIteratorNotAvailable(f"this vessel has no initial states to {verb} on: pass {stage}_initial_states")


def _check_trainable(policy: Any) -> None:
    """Check that a policy has what training needs."""
    if not isinstance(policy, Policy):
        missing = [name for name in ("learn", "state_dict", "load_state_dict") if not hasattr(policy, name)]
        raise ConfigError(f"{type(policy).__name__} cannot be trained: it has no {', '.join(missing)}")


def _check_spaces(policy: Any, simulator_fn: Any, state_interpreter: Any, action_interpreter: Any) -> None:
    """Check that a policy is used in the spaces it was made for, if it knows them."""
    observer, actor = (
        (simulator_fn, simulator_fn) if _is_vector(simulator_fn) else (state_interpreter, action_interpreter)
    )
    observations, actions = getattr(observer, "observation_space", None), getattr(actor, "action_space", None)
    if not _has_same_form(getattr(policy, "obs_space", None), observations):
        raise ConfigError(
            f"{type(policy).__name__} was made for observations in {policy.obs_space}, but {_name(observer)} has "
            f"{observations}: create the policy with that space"
        )
    if not _has_same_form(getattr(policy, "action_space", None), actions):
        raise ConfigError(
            f"{type(policy).__name__} was made for actions in {policy.action_space}, but {_name(actor)} has "
            f"{actions}: create the policy with that space"
        )


def _name(part: Any) -> str:
    return part.__name__ if isinstance(part, type) else type(part).__name__


def _has_same_form(one: Any, other: Any) -> bool:
    """Return whether values of both spaces have the same form. Bounds may differ; a missing space matches any."""
    if not isinstance(one, gym.Space) or not isinstance(other, gym.Space):
        return True
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.keys() == other.keys() and all(_has_same_form(one[key], other[key]) for key in one)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(map(_has_same_form, one, other))
    if isinstance(one, spaces.Discrete) and isinstance(other, spaces.Discrete):
        return bool(one.n == other.n and one.start == other.start)
    return type(one) is type(other) and one.shape == other.shape
