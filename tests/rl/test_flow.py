"""The whole flow of a run: who is called when, with which metrics, and what a state holds."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.rl import (
    Callback,
    Checkpoint,
    Collector,
    EarlyStopping,
    FiniteDummyVectorEnv,
    FiniteShmemVectorEnv,
    FiniteSubprocVectorEnv,
    FiniteVectorEnv,
    LogBuffer,
    LogLevel,
    LogWriter,
    Trainer,
    TrainingVessel,
    TrainingVesselBase,
)
from tests.rl.toys import Countdown, Guess, GuessReward, GuessState, InitialAsReward, Left, SoftmaxPolicy, Two, Zeros

Event = tuple[str, str, int]


class Watched(TrainingVessel[Any, Any, Any, Any, Any]):
    """Writes down, with the stage and the number of finished iterations, what the trainer asks of it."""

    def __init__(self, events: list[Event], **settings: Any) -> None:
        self.events = events
        parts = {"simulator_fn": Guess, "state_interpreter": GuessState(), "action_interpreter": Two()}
        super().__init__(**parts, policy=SoftmaxPolicy(), reward=GuessReward(), **settings)

    def note(self, name: str) -> None:
        self.events.append((name, self.trainer.current_stage, self.trainer.current_iter))

    def assign_trainer(self, trainer: Any) -> None:
        super().assign_trainer(trainer)
        self.note("assign_trainer")

    def train_seed_iterator(self) -> Any:
        self.note("train_seed_iterator")
        return super().train_seed_iterator()

    def val_seed_iterator(self) -> Any:
        self.note("val_seed_iterator")
        return super().val_seed_iterator()

    def test_seed_iterator(self) -> Any:
        self.note("test_seed_iterator")
        return super().test_seed_iterator()

    def train(self, vector_env: Any) -> Any:
        self.note("train")
        return super().train(vector_env)

    def validate(self, vector_env: Any) -> Any:
        self.note("validate")
        return super().validate(vector_env)

    def test(self, vector_env: Any) -> Any:
        self.note("test")
        return {"tested": 1.0}


class WatchedTrainer(Trainer):
    events: list[Event]

    def initialize(self) -> None:
        super().initialize()
        self.events.append(("initialize", self.current_stage, self.current_iter))

    def initialize_iter(self) -> None:
        super().initialize_iter()
        self.events.append(("initialize_iter", self.current_stage, self.current_iter))

    def venv_from_iterator(self, iterator: Any) -> Any:
        self.events.append(("venv_from_iterator", self.current_stage, self.current_iter))
        return super().venv_from_iterator(iterator)


class Hooks(Callback):
    """Writes down every hook, and which metrics there were."""

    def __init__(self, events: list[Event]) -> None:
        self.metrics: list[tuple[str, set[str]]] = []
        for hook in [name for name in dir(Callback) if name.startswith("on_")]:
            setattr(self, hook, lambda trainer, vessel, hook=hook: self._note(hook, trainer, events))

    def _note(self, hook: str, trainer: Trainer, events: list[Event]) -> None:
        events.append((hook, trainer.current_stage, trainer.current_iter))
        self.metrics.append((hook, set(trainer.metrics)))


def watched(**settings: Any) -> tuple[WatchedTrainer, Watched, Hooks, list[Event]]:
    events: list[Event] = []
    hooks = Hooks(events)
    trainer = WatchedTrainer(finite_env_type="dummy", callbacks=[hooks], seed=1, **settings)
    trainer.events = events
    states = {"train_initial_states": range(9), "val_initial_states": range(3), "test_initial_states": range(3)}
    return trainer, Watched(events, episode_per_iter=4, **states), hooks, events


def test_fit_goes_through_its_stations_in_order() -> None:
    trainer, vessel, _, events = watched(max_iters=2, val_every_n_iters=2)
    trainer.fit(vessel)
    assert events == [
        ("assign_trainer", "train", 0),
        ("initialize", "train", 0),
        ("on_fit_start", "train", 0),
        ("initialize_iter", "train", 0),
        ("on_iter_start", "train", 0),
        ("on_train_start", "train", 0),
        ("train_seed_iterator", "train", 0),
        ("venv_from_iterator", "train", 0),
        ("train", "train", 0),
        ("on_train_end", "train", 0),
        ("on_iter_end", "train", 1),
        ("initialize_iter", "train", 1),
        ("on_iter_start", "train", 1),
        ("on_train_start", "train", 1),
        ("train_seed_iterator", "train", 1),
        ("venv_from_iterator", "train", 1),
        ("train", "train", 1),
        ("on_train_end", "train", 1),
        ("on_validate_start", "val", 1),
        ("val_seed_iterator", "val", 1),
        ("venv_from_iterator", "val", 1),
        ("validate", "val", 1),
        ("on_validate_end", "val", 1),
        ("on_iter_end", "val", 2),
        ("on_fit_end", "val", 2),
    ]


def test_a_test_goes_through_its_stations_in_order() -> None:
    trainer, vessel, _, events = watched()
    trainer.test(vessel)
    assert events == [
        ("assign_trainer", "train", 0),
        ("initialize_iter", "train", 0),
        ("on_test_start", "test", 0),
        ("test_seed_iterator", "test", 0),
        ("venv_from_iterator", "test", 0),
        ("test", "test", 0),
        ("on_test_end", "test", 0),
    ]
    assert trainer.metrics == {"tested": 1.0}


def test_metrics_are_cleared_for_each_iteration_and_validation_hides_nothing_of_training() -> None:
    trainer, vessel, hooks, _ = watched(max_iters=2, val_every_n_iters=1)
    trainer.fit(vessel)
    trained = {"reward", "steps_per_episode", "loss"}
    validated = trained | {"val/reward", "val/steps_per_episode"}
    once = [
        ("on_iter_start", set()),
        ("on_train_start", set()),
        ("on_train_end", trained),
        ("on_validate_start", trained),
        ("on_validate_end", validated),
        ("on_iter_end", validated),
    ]
    assert hooks.metrics == [("on_fit_start", set()), *once, *once, ("on_fit_end", validated)]


def test_a_run_without_a_limit_goes_on_until_a_callback_stops_it() -> None:
    class Third(Callback):
        def on_train_end(self, trainer: Any, vessel: Any) -> None:
            trainer.should_stop = trainer.current_iter == 2

    trainer, vessel, _, _ = watched(max_iters=None)
    trainer.callbacks.append(Third())
    trainer.fit(vessel)
    assert trainer.current_iter == 3


def test_a_state_holds_the_stated_things(tmp_path: Any) -> None:
    callbacks = [EarlyStopping(), Checkpoint(tmp_path), Checkpoint(tmp_path / "other")]
    trainer = Trainer(max_iters=1, finite_env_type="dummy", loggers=[LogWriter()], callbacks=callbacks, seed=7)
    vessel = Watched([], train_initial_states=range(9), episode_per_iter=4)
    trainer.fit(vessel)
    state = trainer.state_dict()
    stated = {"vessel", "callbacks", "loggers", "should_stop"}
    stated |= {"current_iter", "current_episode", "current_stage", "metrics"}
    assert set(state) == stated | {"seed", "rng", "current_step", "validations"}
    assert set(state["callbacks"]) == {"earlystopping", "checkpoint", "checkpoint1"}
    assert set(state["loggers"]) == {"logwriter", "logbuffer"}
    assert set(state["vessel"]) == {"policy", "train_cursor"}
    assert state["vessel"]["train_cursor"] == {"cursor": 4, "seed": 7}
    assert set(state["rng"]) >= {"python", "numpy"}
    assert (state["current_iter"], state["current_episode"], state["current_stage"]) == (1, 4, "train")
    assert state["should_stop"] is False  # a limit is no reason to stop for a run that is resumed with more

    other = Trainer(max_iters=1, finite_env_type="dummy", callbacks=[EarlyStopping()])
    other.vessel = Watched([], train_initial_states=range(9))
    other.load_state_dict(state)
    assert (other.current_iter, other.current_episode, other.seed) == (1, 4, 7)
    assert other.metrics == trainer.metrics


def test_vessel_and_trainer_know_each_other_and_only_one_keeps_the_other_alive() -> None:
    vessel = Watched([], train_initial_states=range(9), episode_per_iter=2)
    trainer = Trainer(max_iters=1, finite_env_type="dummy")
    trainer.fit(vessel)
    assert vessel.trainer is trainer
    assert trainer.vessel is vessel
    del trainer
    gc.collect()
    with pytest.raises(ConfigError):
        _ = vessel.trainer


class Level(InitialAsReward):
    """Tells the level that its worker keeps to."""

    def reward(self, simulator_state: float) -> float:
        assert self.env is not None
        self.env.logger.add_scalar("level", self.env.logger.min_loglevel, LogLevel.CRITICAL)
        return 1.0


class Names(LogWriter):
    """Keeps the names that arrive."""

    def __init__(self, loglevel: LogLevel) -> None:
        super().__init__(loglevel)
        self.names: set[str] = set()
        self.level = 0.0

    def log_episode(self, length: int, rewards: list[float], contents: list[dict[str, Any]]) -> None:
        self.names |= {name for step in contents for name in step}
        self.level = contents[-1]["level"]


def countdown(**settings: Any) -> TrainingVessel[Any, Any, Any, Any, Any]:
    parts = {"simulator_fn": Countdown, "state_interpreter": Left(), "action_interpreter": Two()}
    return TrainingVessel(**parts, policy=Zeros(), reward=Level(), **settings)


@pytest.mark.parametrize("kind", ["dummy", "subproc"])
def test_the_least_level_that_anybody_wants_holds_in_the_workers_and_each_gets_its_own(kind: Any) -> None:
    debug, critical = Names(LogLevel.DEBUG), Names(LogLevel.CRITICAL)
    for loggers, least in (([critical], LogLevel.PERIODIC), ([debug, critical], LogLevel.DEBUG)):
        trainer = Trainer(finite_env_type=kind, loggers=loggers)
        assert trainer._min_loglevel() == least  # the trainer's own metrics are periodic
        trainer.test(countdown(test_initial_states=[2, 3]))
        assert critical.level == least
    assert critical.names == {"level"}
    assert debug.names == {"level", "reward", "steps_per_episode", "obs", "policy_act"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("dummy", FiniteDummyVectorEnv), ("subproc", FiniteSubprocVectorEnv), ("shmem", FiniteShmemVectorEnv)],
)
def test_a_vector_environment_of_an_iterator_plays_it_once_and_tells_the_loggers(kind: Any, expected: type) -> None:
    heard = Names(LogLevel.PERIODIC)
    trainer = Trainer(finite_env_type=kind, concurrency=3, loggers=[heard])
    with pytest.raises(ConfigError):
        trainer.venv_from_iterator([1])
    trainer.vessel = countdown()
    trainer.current_stage = "val"
    venv = trainer.venv_from_iterator(iter([1, 2, 3, 4, 5]))
    with venv:
        assert isinstance(venv, FiniteVectorEnv)
        assert type(venv) is expected
        assert len(venv) == 3
        assert Collector(Zeros(), venv).play() == 5
        assert (heard.global_episode, heard.global_step) == (5, 15)
        assert trainer.metrics["val/reward"] == 3.0
        assert trainer.current_episode == 5
        assert trainer.venv_from_iterator([6]) is venv  # its workers are kept
        assert Collector(Zeros(), venv).play() == 1


def test_a_collect_tells_of_every_episode_and_at_last_of_their_averages() -> None:
    told: list[tuple[bool, bool, dict[str, float]]] = []

    class Telling(Trainer):
        def _metrics_callback(self, on_episode: bool, on_collect: bool, log_buffer: LogBuffer) -> None:
            super()._metrics_callback(on_episode, on_collect, log_buffer)
            told.append((on_episode, on_collect, dict(self.metrics)))

    Telling(finite_env_type="dummy", concurrency=1).test(countdown(test_initial_states=[1, 3]))
    assert [(episode, collect, metrics["reward"]) for episode, collect, metrics in told] == [
        (True, False, 1.0),
        (True, False, 3.0),
        (False, True, 2.0),
    ]


class OwnSeeds(TrainingVesselBase[Any, Any, Any, Any, Any]):
    """A vessel from nothing: a generator to train on, and a context manager to validate with."""

    def __init__(self) -> None:
        self.simulator_fn, self.state_interpreter, self.action_interpreter = Countdown, Left(), Two()
        self.policy, self.reward = Zeros(), InitialAsReward()
        self.opened: list[str] = []

    def train_seed_iterator(self) -> Iterator[int]:
        yield from (1, 2, 3)

    @contextmanager
    def _opened(self) -> Iterator[list[int]]:
        self.opened.append("open")
        yield [4, 6]
        self.opened.append("closed")

    def val_seed_iterator(self) -> Any:
        return self._opened()

    def train(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        batch = Collector(self.policy, vector_env).collect()
        return {"episodes": batch.n_episodes, "note": "not a number"}

    def validate(self, vector_env: FiniteVectorEnv) -> dict[str, Any]:
        assert self.opened == ["open"]
        return {"played": Collector(self.policy, vector_env).play()}


def test_a_vessel_of_ones_own_gives_iterables_or_context_managers() -> None:
    vessel, trainer = OwnSeeds(), Trainer(max_iters=1, val_every_n_iters=1, finite_env_type="dummy")
    trainer.fit(vessel)
    assert vessel.opened == ["open", "closed"]
    assert trainer.metrics["episodes"] == 3
    assert trainer.metrics["val/played"] == 2
    assert (trainer.metrics["initial"], trainer.metrics["val/initial"]) == (2.0, 5.0)
    assert "note" not in trainer.metrics
