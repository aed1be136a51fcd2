"""Vessels: a simulator, its interpreters, its reward and a policy, ready to be trained.

A vessel says where episodes begin in each stage and what one collect does; the trainer does the rest.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from ...checks import check_int
from ...errors import ConfigError, SeedIteratorNotAvailable
from ...loggers import LogLevel, Metrics, wanting
from ..collector import Collector
from ..data_queue import DataQueue
from ..finite_env import FiniteVectorEnv
from ..interpreter import ActionInterpreter, ObsType, PolicyActType, StateInterpreter
from ..logging import is_number
from ..policy import EpisodeBatch, Policy
from ..reward import Reward
from ..seed import InitialStateType, SeedIterator
from ..simulator import ActType, Simulator, StateType
from ..vector_simulator import VectorSimulator
from .readiness import check_available, check_parts, check_spaces, check_states, check_trainable

if TYPE_CHECKING:
    from .trainer import Trainer

_logger = logging.getLogger(__name__)


class TrainingVesselBase(Generic[InitialStateType, StateType, ActType, ObsType, PolicyActType]):
    """What the trainer asks of a vessel."""

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
            raise ConfigError("this vessel has no trainer: use it through Trainer.fit or Trainer.test")
        return trainer

    def assign_trainer(self, trainer: Trainer) -> None:
        """Bind the trainer, by a weak reference."""
        self._trainer = weakref.ref(trainer)

    def check_ready(self, stages: Sequence[str]) -> None:
        """Raise at once what would fail in one of these stages, perhaps hours later. A vessel need not know."""

    def train_seed_iterator(self) -> SeedIterator[InitialStateType]:
        """Where the episodes of a training collect begin."""
        raise SeedIteratorNotAvailable("this vessel has no initial states to train on: give it train_initial_states")

    def val_seed_iterator(self) -> SeedIterator[InitialStateType]:
        """Where the episodes of a validation begin."""
        raise SeedIteratorNotAvailable("this vessel has no initial states to validate on: give it val_initial_states")

    def test_seed_iterator(self) -> SeedIterator[InitialStateType]:
        """Where the episodes of a test begin."""
        raise SeedIteratorNotAvailable("this vessel has no initial states to test on: give it test_initial_states")

    def train(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        """One collect: play episodes and learn from them; the metrics of the update."""
        raise NotImplementedError

    def validate(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        """Play the validation episodes; metrics beyond those that are logged."""
        raise NotImplementedError

    def test(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        """Play the test episodes; metrics beyond those that are logged."""
        raise NotImplementedError

    def log(self, name: str, value: Any) -> None:
        """Say one thing, with the current iteration and stage."""
        self.log_dict({name: value})

    def log_dict(self, data: Mapping[str, Any]) -> None:
        """Say several things in one line, with the current iteration and stage."""
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
    """Trains on `episode_per_iter` episodes an iteration; validates and tests on every state exactly once.

    `step_per_iter` takes the place of `episode_per_iter` where episodes are long or differ in length: an iteration
    begins episodes until they have made so many steps together and plays them to their ends, and the policy learns
    after every `step_per_iter` steps, so that the size of an update does not depend on the length of an episode. Steps
    that remain at the end of an iteration belong to the first update of the next one, and are kept in checkpoints.

    Training draws the states in a shuffled order that goes on over iterations, so each is used as often as any other.
    `buffer_size` is how many steps the buffer holds before it has to grow. `update_kwargs` go to `policy.learn`.
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
        check_parts(
            simulator_fn,
            policy=policy,
            state_interpreter=state_interpreter,
            action_interpreter=action_interpreter,
            reward=reward,
        )
        check_states(
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
        self._waiting: EpisodeBatch | None = None  # steps that the current policy made and has not learned from yet

    def _check_numbers(self) -> None:
        for name in ("episode_per_iter", "buffer_size"):
            check_int(name, getattr(self, name), at_least=1)
        check_int("step_per_iter", self.step_per_iter, at_least=1, optional=True)

    def assign_trainer(self, trainer: Trainer) -> None:
        if self._trainer is None or self._trainer() is not trainer:
            self._queue = self._cursor = self._waiting = None  # another run, with another seed and other states
        super().assign_trainer(trainer)

    def check_ready(self, stages: Sequence[str]) -> None:
        self._check_numbers()  # they may have been assigned
        if "train" in stages:
            check_trainable(self.policy)
        check_spaces(self.policy, self.simulator_fn, self.state_interpreter, self.action_interpreter)
        for stage in stages:
            method = f"{stage}_seed_iterator"
            if getattr(type(self), method) is getattr(TrainingVessel, method):  # a vessel's own needs no list
                check_available(stage, getattr(self, f"{stage}_initial_states"))

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
        """All states, or for a `fast_dev_run` a random few."""
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
