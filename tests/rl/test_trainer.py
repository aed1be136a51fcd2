"""The trainer: the order of its hooks, its metrics, and going on after a crash as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharpen.callbacks import load_state
from sharpen.errors import ConfigError
from sharpen.loggers import Logger
from sharpen.rl import (
    Actions,
    Callback,
    Checkpoint,
    EarlyStopping,
    EpisodeError,
    LogLevel,
    LogWriter,
    Reward,
    SeedIteratorNotAvailable,
    Trainer,
    TrainingVessel,
    backtest,
    train,
)
from tests.errors import raises
from tests.rl.toys import (
    Countdown,
    Guess,
    GuessReward,
    GuessState,
    InitialAsReward,
    Left,
    SoftmaxPolicy,
    Two,
    VectorCartPole,
    Zeros,
)


def guess(policy: Any, **settings: Any) -> TrainingVessel[Any, Any, Any, Any, Any]:
    given = {"train_initial_states": range(50), "val_initial_states": range(20), "episode_per_iter": 13} | settings
    return TrainingVessel(
        simulator_fn=Guess,
        state_interpreter=GuessState(),
        action_interpreter=Two(),
        policy=policy,
        reward=GuessReward(),
        **given,
    )


def countdown(policy: Any, **settings: Any) -> TrainingVessel[Any, Any, Any, Any, Any]:
    return TrainingVessel(
        simulator_fn=Countdown,
        state_interpreter=Left(),
        action_interpreter=Two(),
        policy=policy,
        reward=InitialAsReward(),
        **settings,
    )


HOOKS = [f"on_{when}_{edge}" for when in ("fit", "iter", "train", "validate", "test") for edge in ("start", "end")]


class Recorder(Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        for name in HOOKS:
            setattr(self, name, self._hook(name))

    def _hook(self, name: str) -> Any:
        def hook(trainer: Trainer, vessel: Any) -> None:
            assert trainer.vessel is vessel
            assert vessel.trainer is trainer
            self.calls.append((name, trainer.current_iter))

        return hook


def test_hooks_come_in_the_stated_order_and_iterations_are_counted_before_their_end() -> None:
    recorder = Recorder()
    Trainer(max_iters=2, val_every_n_iters=2, finite_env_type="dummy", callbacks=[recorder]).fit(guess(SoftmaxPolicy()))
    assert recorder.calls == [
        ("on_fit_start", 0),
        ("on_iter_start", 0),
        ("on_train_start", 0),
        ("on_train_end", 0),
        ("on_iter_end", 1),
        ("on_iter_start", 1),
        ("on_train_start", 1),
        ("on_train_end", 1),
        ("on_validate_start", 1),
        ("on_validate_end", 1),
        ("on_iter_end", 2),
        ("on_fit_end", 2),
    ]


def test_a_small_policy_learns_and_validation_has_names_of_its_own() -> None:
    trainer = Trainer(max_iters=25, val_every_n_iters=25, finite_env_type="dummy", concurrency=4, seed=3)
    trainer.fit(guess(SoftmaxPolicy()))
    assert trainer.metrics["val/reward"] > 7.5  # of 8; chance is 4
    assert trainer.metrics["val/reward"] > trainer.metrics["reward"] > 4.5
    assert {"loss", "steps_per_episode", "val/steps_per_episode"} <= set(trainer.metrics)
    assert "val/loss" not in trainer.metrics
    assert trainer.current_episode == 25 * 13 + 20


@pytest.mark.parametrize("kind", ["subproc", "shmem"])
def test_every_kind_of_environment_gives_the_same_numbers(kind: Any) -> None:
    def run(kind: Any) -> tuple[dict[str, float], Any]:
        policy = SoftmaxPolicy()
        trainer = Trainer(max_iters=4, val_every_n_iters=2, finite_env_type=kind, concurrency=3, seed=5)
        trainer.fit(guess(policy))
        return trainer.metrics, policy.weights

    metrics, weights = run(kind)
    expected_metrics, expected = run("dummy")
    assert metrics == expected_metrics
    assert np.array_equal(weights, expected)


def test_workers_live_across_iterations() -> None:
    pids: list[float] = []

    class Pids(Callback):
        def on_train_end(self, loop: Any, trained: Any) -> None:
            pids.append(loop.metrics["pid"])

    vessel = guess(SoftmaxPolicy())
    vessel.reward = PidReward()
    trainer = Trainer(max_iters=3, val_every_n_iters=1, finite_env_type="subproc", concurrency=1, callbacks=[Pids()])
    trainer.fit(vessel)
    assert len(pids) == 3
    assert len(set(pids)) == 1
    assert pids[0] != os.getpid()


class PidReward(GuessReward):
    def reward(self, simulator_state: Any) -> float:
        self.log("pid", os.getpid())
        return 1.0


def test_a_reward_that_a_callback_changes_reaches_the_workers() -> None:
    class Scaled(GuessReward):
        scale = 1.0

        def reward(self, simulator_state: Any) -> float:
            return self.scale

    class Raise(Callback):
        def on_iter_start(self, loop: Any, trained: Any) -> None:
            trained.reward.scale = 1.0 + loop.current_iter

    seen = []

    class See(Callback):
        def on_train_end(self, loop: Any, trained: Any) -> None:
            seen.append(loop.metrics["reward"])

    vessel = guess(SoftmaxPolicy())
    vessel.reward = Scaled()
    Trainer(max_iters=2, finite_env_type="subproc", callbacks=[Raise(), See()]).fit(vessel)
    assert seen == [8.0, 16.0]


def test_an_average_counts_only_the_episodes_that_logged_the_metric() -> None:
    class Sometimes(InitialAsReward):
        def reward(self, simulator_state: float) -> float:
            assert self.env is not None
            if self.env.status["initial_state"] == 4 and simulator_state == 0:
                self.log("rare", 10.0)
            return 1.0

    vessel = countdown(Zeros(), test_initial_states=[1, 2, 3, 4])
    vessel.reward = Sometimes()
    trainer = Trainer(finite_env_type="dummy")
    trainer.test(vessel)
    assert trainer.metrics["rare"] == 10.0
    assert trainer.metrics["reward"] == 2.5


def test_training_uses_every_state_equally_often_over_iterations() -> None:
    policy = Zeros()
    vessel = countdown(policy, train_initial_states=[1, 2, 3, 4, 5, 6], episode_per_iter=4)
    Trainer(max_iters=3, finite_env_type="dummy", seed=1).fit(vessel)
    played = [length for batch in policy.batches for length in batch.lengths_E.tolist()]
    assert sorted(played) == sorted([1, 2, 3, 4, 5, 6] * 2)
    assert [batch.n_episodes for batch in policy.batches] == [4, 4, 4]


def test_fast_dev_run_uses_few_episodes_and_states() -> None:
    policy = Zeros()
    states = list(range(1, 40))
    vessel = countdown(
        policy, train_initial_states=states, val_initial_states=states, test_initial_states=states, episode_per_iter=100
    )
    heard = Episodes()
    trainer = Trainer(max_iters=2, val_every_n_iters=1, finite_env_type="dummy", fast_dev_run=3, loggers=heard, seed=1)
    trainer.fit(vessel)
    assert [batch.n_episodes for batch in policy.batches] == [3, 3]
    assert sorted(policy.batches[0].lengths_E.tolist()) == sorted(policy.batches[1].lengths_E.tolist())
    assert heard.count == 2 * (3 + 3)
    heard.count = 0
    trainer.test(vessel)
    assert heard.count == 3


class Episodes(LogWriter):
    count = 0

    def log_episode(self, length: int, rewards: list[float], contents: list[dict[str, Any]]) -> None:
        self.count += 1


def test_the_callers_lists_are_never_changed_and_the_least_level_is_found() -> None:
    callbacks: list[Callback] = [Callback()]
    loggers = [Episodes(LogLevel.INFO), Episodes(LogLevel.DEBUG)]
    trainer = Trainer(max_iters=1, loggers=loggers, callbacks=callbacks)
    assert len(loggers) == 2
    assert len(callbacks) == 1
    assert trainer._min_loglevel() == LogLevel.DEBUG
    assert Trainer()._min_loglevel() == LogLevel.PERIODIC
    assert list(trainer.named_loggers()) == ["episodes", "episodes1", "logbuffer"]


class Kept(Logger):
    def __init__(self, loglevel: LogLevel = LogLevel.PERIODIC) -> None:
        super().__init__(loglevel)
        self.lines: list[Any] = []

    def log_config(self, config: Any) -> None:
        self.lines.append(("config", config["seed"]))

    def log_metrics(self, metrics: Any, step: int) -> None:
        self.lines.append((step, set(metrics)))

    def log_text(self, name: str, text: str, step: int) -> None:
        self.lines.append((name, text, step))

    def finish(self, status: Any = "succeeded") -> None:
        self.lines.append(status)


class Says(Callback):
    def on_train_end(self, loop: Any, trained: Any) -> None:
        trained.log("temperature", 0.5)


def test_loggers_of_every_loop_get_each_iteration_and_the_end() -> None:
    kept = Kept()
    trainer = Trainer(
        max_iters=2, val_every_n_iters=2, finite_env_type="dummy", loggers=[kept], callbacks=[Says()], seed=9
    )
    trainer.fit(guess(SoftmaxPolicy()))
    train_names = {"reward", "steps_per_episode", "loss", "run/steps"}
    assert kept.lines == [
        ("config", 9),
        ("train", "temperature: 0.5000", 0),
        (1, train_names),
        ("train", "temperature: 0.5000", 1),
        (2, train_names | {"val/reward", "val/steps_per_episode"}),
        "succeeded",
    ]
    trainer.test(guess(SoftmaxPolicy(), test_initial_states=range(5)))
    assert kept.lines[6:] == [(2, {"test/reward", "test/steps_per_episode"}), "succeeded"]


def test_a_failed_run_leaves_no_worker_and_tells_the_loggers() -> None:
    class Fails(Reward[Any]):
        def reward(self, simulator_state: Any) -> float:
            raise ArithmeticError("bad luck")

    kept, vessel = Kept(), guess(SoftmaxPolicy())
    vessel.reward = Fails()
    with raises(EpisodeError, "bad luck"):
        Trainer(max_iters=1, finite_env_type="subproc", loggers=[kept]).fit(vessel)
    assert kept.lines[-1] == "failed"
    found = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    assert "sharpen.rl.worker" not in found.stdout


def test_an_interrupted_run_tells_the_loggers() -> None:
    class CtrlC(Callback):
        def on_train_end(self, loop: Any, trained: Any) -> None:
            raise KeyboardInterrupt

    kept = Kept()
    with pytest.raises(KeyboardInterrupt):
        Trainer(max_iters=1, finite_env_type="dummy", loggers=kept, callbacks=CtrlC()).fit(guess(SoftmaxPolicy()))
    assert kept.lines[-1] == "interrupted"


def test_a_logger_hears_only_what_its_level_wants() -> None:
    quiet, loud = Kept(LogLevel.CRITICAL), Kept(LogLevel.INFO)
    trainer = Trainer(max_iters=1, finite_env_type="dummy", loggers=[quiet, loud], seed=4, callbacks=Says())
    trainer.fit(guess(SoftmaxPolicy()))
    assert quiet.lines == [("config", 4), "succeeded"]
    assert loud.lines == [("config", 4), ("train", "temperature: 0.5000", 0), "succeeded"]


def test_missing_states_are_a_clear_error() -> None:
    with raises(SeedIteratorNotAvailable, "train_initial_states"):
        Trainer(max_iters=1, finite_env_type="dummy").fit(guess(SoftmaxPolicy(), train_initial_states=None))
    with raises(SeedIteratorNotAvailable, "val_initial_states"):
        Trainer(max_iters=1, val_every_n_iters=1, finite_env_type="dummy").fit(
            guess(SoftmaxPolicy(), val_initial_states=None)
        )
    with raises(SeedIteratorNotAvailable, "test_initial_states"):
        Trainer(finite_env_type="dummy").test(guess(SoftmaxPolicy()))


def test_settings_that_cannot_work_are_refused() -> None:
    with raises(ConfigError, "concurrency", 0):
        Trainer(concurrency=0)
    with raises(ConfigError, "loggers", "csv", "LogWriter", "Logger"):
        Trainer(loggers="csv")  # type: ignore[arg-type]
    with raises(ConfigError, "callbacks", "Checkpoint", "Callback"):
        Trainer(callbacks=[Checkpoint])  # type: ignore[list-item]
    with raises(ConfigError, "episode_per_iter", 0):
        guess(SoftmaxPolicy(), episode_per_iter=0)
    with raises(ConfigError, "ModulePolicy"):
        guess(object())
    with raises(ConfigError, "VectorSimulator"):
        TrainingVessel(simulator_fn=Guess, policy=SoftmaxPolicy())


def test_train_and_backtest_return_their_metrics() -> None:
    policy = SoftmaxPolicy()
    settings = {"max_iters": 20, "finite_env_type": "dummy", "seed": 1}
    metrics = train(Guess, GuessState(), Two(), range(30), policy, GuessReward(), {"episode_per_iter": 16}, settings)
    assert metrics["reward"] > 5
    heard = Episodes()
    after = backtest(Guess, GuessState(), Two(), range(30), policy, heard, GuessReward(), finite_env_type="dummy")
    assert after["reward"] > 7.5
    assert heard.count == 30


def test_a_vector_simulator_is_trained_like_any_other() -> None:
    policy = SoftmaxPolicy(4, lr=0.1)
    vessel: Any = TrainingVessel(
        simulator_fn=VectorCartPole,
        policy=policy,
        train_initial_states=range(1000),
        val_initial_states=range(40),
        episode_per_iter=100,
    )
    trainer = Trainer(max_iters=2, val_every_n_iters=2, finite_env_type="dummy", concurrency=64, seed=1)
    trainer.fit(vessel)
    assert policy.seen == 200
    assert trainer.current_episode == 240
    assert trainer.metrics["steps_per_episode"] == trainer.metrics["reward"] > 5


class CountsSteps(SoftmaxPolicy):
    """Keeps the size of every batch that it learns from."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.firsts: list[Any] = []

    def learn(self, batch: Any, **update_kwargs: Any) -> dict[str, float]:
        self.sizes.append(len(batch))
        self.firsts.append(batch.obs_T[0, 0])
        return super().learn(batch) | {"size": float(len(batch))}


def test_a_budget_of_steps_bounds_updates_and_the_run() -> None:
    policy = CountsSteps()
    vessel = countdown(policy, train_initial_states=[40, 50], step_per_iter=30)
    trainer = Trainer(max_steps=300, finite_env_type="dummy", concurrency=2, seed=1)
    trainer.fit(vessel)
    assert policy.sizes == [30] * 12  # two episodes of 90 steps together are three updates of one iteration
    assert trainer.current_step == 90 * trainer.current_iter == 360
    assert trainer.metrics["reward"] == 45.0
    assert "loss" in trainer.metrics


@pytest.mark.parametrize(("length", "n_envs"), [(10, 4), (257, 1), (1000, 3), (1, 2)])
def test_an_update_has_as_many_steps_as_asked_for_however_long_episodes_are(length: int, n_envs: int) -> None:
    policy = CountsSteps()
    vessel = countdown(policy, train_initial_states=[length], step_per_iter=256)
    trainer = Trainer(max_iters=5, finite_env_type="dummy", concurrency=n_envs, seed=1)
    trainer.fit(vessel)
    assert len(policy.sizes) >= 5
    assert all(256 <= size < 256 + n_envs for size in policy.sizes)
    assert 0 <= trainer.current_step - sum(policy.sizes) < 256  # they wait for the next iteration


def test_metrics_of_several_updates_are_weighted_by_their_steps() -> None:
    policy = CountsSteps()
    vessel = countdown(policy, train_initial_states=[5, 5, 6], step_per_iter=4)
    trainer = Trainer(max_iters=1, finite_env_type="dummy", concurrency=3, seed=1)
    trainer.fit(vessel)
    assert len(set(policy.sizes)) > 1
    assert trainer.metrics["size"] == pytest.approx(sum(n * n for n in policy.sizes) / sum(policy.sizes))


def test_steps_of_validations_do_not_count_for_the_budget() -> None:
    vessel = countdown(Zeros(), train_initial_states=[5], val_initial_states=[50], episode_per_iter=1)
    trainer = Trainer(max_steps=15, val_every_n_iters=1, finite_env_type="dummy", seed=1)
    trainer.fit(vessel)
    assert (trainer.current_iter, trainer.current_step) == (3, 15)


def test_a_run_with_a_budget_of_steps_can_be_extended_and_ends_like_one_that_never_stopped(tmp_path: Path) -> None:
    def fit(folder: Path, max_steps: int, resume: Path | None = None) -> tuple[Trainer, CountsSteps]:
        policy, saving = CountsSteps(), Checkpoint(folder)
        trainer = Trainer(max_steps=max_steps, finite_env_type="dummy", concurrency=3, callbacks=saving, seed=11)
        trainer.fit(guess(policy, step_per_iter=100), ckpt_path=resume)
        return trainer, policy

    stopped, first = fit(tmp_path / "a", 400)
    extended, policy = fit(tmp_path / "a", 900, tmp_path / "a" / "latest.pth")
    whole, expected = fit(tmp_path / "b", 900)
    assert np.array_equal(policy.weights, expected.weights)
    assert (extended.current_step, extended.metrics) == (whole.current_step, whole.metrics)
    assert first.sizes + policy.sizes == expected.sizes
    assert sum(first.sizes) < stopped.current_step  # some steps wait in the checkpoint


def test_another_run_does_not_learn_from_steps_that_the_last_one_left() -> None:
    policy = CountsSteps()
    vessel = countdown(policy, train_initial_states=[10], step_per_iter=16)
    for _ in range(2):
        Trainer(max_iters=1, finite_env_type="dummy", concurrency=1, seed=1).fit(vessel)
    assert policy.sizes == [16, 16]
    assert [float(each) for each in policy.firsts] == [10.0, 10.0]


@pytest.mark.parametrize("name", ["step_per_iter", "episode_per_iter", "buffer_size"])
@pytest.mark.parametrize("value", [0, True, 2.5])
def test_numbers_of_a_vessel_are_refused_also_when_they_are_assigned(name: str, value: Any) -> None:
    with raises(ConfigError, name, value):
        countdown(Zeros(), train_initial_states=[3], **{name: value})
    vessel, policy = countdown(Zeros(), train_initial_states=[3]), Zeros()
    vessel.policy = policy
    setattr(vessel, name, value)
    with raises(ConfigError, name, value):
        Trainer(max_iters=1, finite_env_type="dummy").fit(vessel)
    assert not policy.batches


@pytest.mark.parametrize("name", ["max_iters", "max_steps", "val_every_n_iters", "concurrency"])
def test_a_truth_value_is_not_a_number_of_a_trainer(name: str) -> None:
    settings: Any = {name: True}
    with raises(ConfigError, name, True):
        Trainer(**settings)


def test_a_vector_simulator_has_a_budget_of_steps_too() -> None:
    policy = SoftmaxPolicy(4, lr=0.1)
    vessel: Any = TrainingVessel(
        simulator_fn=VectorCartPole, policy=policy, train_initial_states=range(1000), step_per_iter=500
    )
    trainer = Trainer(max_steps=1000, concurrency=16, seed=1)
    trainer.fit(vessel)
    assert 1000 <= trainer.current_step < 3000


class ActsOnly:
    def act(self, obs_N: Any, *, rng: Any, deterministic: bool) -> Actions:
        assert deterministic
        return Actions(np.zeros(len(obs_N), np.int64))


def test_a_backtest_needs_only_something_that_acts() -> None:
    metrics = backtest(Countdown, Left(), Two(), [2, 4, 6], ActsOnly(), [], InitialAsReward(), "dummy")
    assert metrics["initial"] == 4.0


# -- state -------------------------------------------------------------------------------------------


def test_state_can_be_taken_after_a_test_alone(tmp_path: Path) -> None:
    trainer = Trainer(finite_env_type="dummy")
    trainer.test(countdown(Zeros(), test_initial_states=[1, 2]))
    state = trainer.state_dict()
    assert state["current_stage"] == "test"
    assert state["metrics"]["reward"] == 1.5


def run(folder: Path, max_iters: int, kind: Any = "dummy", resume: Path | None = None, **settings: Any) -> Any:
    policy = SoftmaxPolicy()
    stopping = EarlyStopping(monitor="val/reward", patience=1000)
    checkpoint = Checkpoint(folder, every_n_iters=1)
    callbacks = [stopping, checkpoint]
    trainer = Trainer(
        max_iters=max_iters, val_every_n_iters=2, finite_env_type=kind, concurrency=3, callbacks=callbacks, **settings
    )
    trainer.fit(guess(policy), ckpt_path=resume)
    return trainer, policy, stopping


def test_a_finished_run_can_be_extended_and_ends_like_one_that_never_stopped(tmp_path: Path) -> None:
    random.seed(1)
    run(tmp_path / "a", 4, seed=11)
    np.random.seed(99)  # whatever happens in between
    extended, policy, stopping = run(tmp_path / "a", 8, resume=tmp_path / "a" / "latest.pth")
    whole, expected, expected_stopping = run(tmp_path / "b", 8, seed=11)
    assert extended.metrics == whole.metrics
    assert np.array_equal(policy.weights, expected.weights)
    assert policy.seen == expected.seen
    assert extended.current_episode == whole.current_episode
    assert stopping.state_dict().keys() == expected_stopping.state_dict().keys()
    assert Trainer.get_policy_state_dict(tmp_path / "a" / "latest.pth")["seen"] == expected.seen


def test_early_stopping_keeps_its_memory_and_a_stopped_run_stays_stopped(tmp_path: Path) -> None:
    def stopped(max_iters: int, resume: Path | None = None) -> Trainer:
        stopping = EarlyStopping(monitor="val/reward", min_delta=100.0, patience=2)
        trainer = Trainer(
            max_iters=max_iters,
            val_every_n_iters=1,
            finite_env_type="dummy",
            callbacks=[stopping, Checkpoint(tmp_path, every_n_iters=1)],
            seed=1,
        )
        trainer.fit(guess(SoftmaxPolicy()), ckpt_path=resume)
        return trainer

    first = stopped(2)
    assert first.current_iter == 2
    at = stopped(50, tmp_path / "latest.pth").current_iter
    assert 2 < at < 6  # it had been waiting already
    assert stopped(50, tmp_path / "latest.pth").current_iter == at


class AllSteps(LogWriter):
    def log_step(self, reward: float, contents: dict[str, Any]) -> None:
        return


@pytest.mark.parametrize("writers", [[], [AllSteps()]])
def test_early_stopping_decides_by_the_mean_of_an_episode_whoever_listens_to_steps(writers: list[LogWriter]) -> None:
    class OnePerIteration(Zeros):
        """Chooses action 1 as often in an episode as it has learned."""

        def act(self, obs_N: Any, *, rng: np.random.Generator | None, deterministic: bool) -> Actions:
            return Actions((obs_N[:, 0] > 8 - len(self.batches)).astype(np.int64))

    class Ones(InitialAsReward):
        def reward(self, simulator_state: float) -> float:
            assert self.env is not None
            self.log("one", float(self.env.status["action_history"][-1]))
            return 0.0

    stopping = EarlyStopping(monitor="val/one", patience=0)
    trainer = Trainer(
        max_iters=4, val_every_n_iters=1, finite_env_type="dummy", callbacks=stopping, loggers=writers, seed=1
    )
    vessel = countdown(OnePerIteration(), train_initial_states=[8], val_initial_states=[8], episode_per_iter=1)
    vessel.reward = Ones()
    trainer.fit(vessel)
    assert (trainer.current_iter, trainer.metrics["val/one"]) == (4, 0.5)


def test_best_weights_come_back_at_the_end() -> None:
    class Worse(SoftmaxPolicy):
        def learn(self, batch: Any, **update_kwargs: Any) -> dict[str, float]:
            metrics = super().learn(batch)
            if self.seen > 13 * 6:
                self.weights = -abs(self.weights) * [[-1, 1], [0, 0]]  # says the opposite from here on
            return metrics

    policy = Worse()
    stopping = EarlyStopping(monitor="val/reward", patience=2, restore_best_weights=True)
    trainer = Trainer(max_iters=30, val_every_n_iters=1, finite_env_type="dummy", callbacks=[stopping], seed=2)
    vessel = guess(policy, test_initial_states=range(40))
    trainer.fit(vessel)
    assert trainer.current_iter < 30
    trainer.test(vessel)
    assert trainer.metrics["reward"] > 6


class Unlearns(SoftmaxPolicy):
    """Guesses right from its first update on, and wrong from its third."""

    def learn(self, batch: Any, **update_kwargs: Any) -> dict[str, float]:
        self.seen += 1
        self.weights = np.array([[-1.0, 1.0], [0.0, 0.0]]) * (1 if self.seen < 3 else -1)
        return {}


def test_a_run_that_ends_worse_than_it_began_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(max_iters=4, val_every_n_iters=1, finite_env_type="dummy", seed=2)
    trainer.fit(guess(Unlearns()))
    (warning,) = trainer.warnings
    assert "val/reward" in warning
    assert "8 -> 0" in warning  # eight right guesses an episode, then none
    assert warning in caplog.text
    trainer.max_iters = 2
    trainer.fit(guess(Unlearns()))
    assert trainer.warnings == []


def test_a_resumed_run_is_compared_with_its_first_validation(tmp_path: Path) -> None:
    def fit(max_iters: int, resume: Path | None = None) -> list[str]:
        trainer = Trainer(
            max_iters=max_iters,
            val_every_n_iters=1,
            finite_env_type="dummy",
            callbacks=Checkpoint(tmp_path, every_n_iters=1),
            seed=2,
        )
        trainer.fit(guess(Unlearns()), ckpt_path=resume)
        return trainer.warnings

    assert fit(2) == []
    assert len(fit(3, tmp_path / "latest.pth")) == 1
    assert len(fit(3, tmp_path / "latest.pth")) == 1  # nothing was left to do


def test_a_run_that_ends_with_its_best_weights_has_not_declined() -> None:
    stopping = EarlyStopping(monitor="val/reward", patience=1, restore_best_weights=True)
    trainer = Trainer(max_iters=9, val_every_n_iters=1, finite_env_type="dummy", callbacks=stopping, seed=2)
    trainer.fit(guess(Unlearns()))
    assert (trainer.current_iter, trainer.warnings) == (2, [])
    stopping.patience = 5
    trainer.fit(guess(Unlearns()))
    assert (trainer.metrics["val/reward"], trainer.warnings) == (0.0, [])


def test_a_vector_simulator_that_ends_worse_warns_too() -> None:
    class Falls(Zeros):
        """Balances for a while, and only ever pushes to one side after its first update."""

        def act(self, obs_N: Any, *, rng: np.random.Generator | None, deterministic: bool) -> Actions:
            return Actions(
                (obs_N[:, 2] + obs_N[:, 3] > 0).astype(np.int64) if len(self.batches) < 2 else 0 * obs_N[:, 0]
            )

    vessel: Any = TrainingVessel(
        simulator_fn=VectorCartPole,
        policy=Falls(),
        train_initial_states=range(4),
        val_initial_states=range(10),
        episode_per_iter=4,
    )
    trainer = Trainer(max_iters=3, val_every_n_iters=1, concurrency=4, seed=3)
    trainer.fit(vessel)
    assert len(trainer.warnings) == 1


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.rl.test_trainer import run
folder = Path(sys.argv[1])
resume = folder / "latest.pth"
run(folder, 12, sys.argv[2], resume=resume if resume.exists() else None, seed=21)
print("finished", flush=True)
"""


def iterations_in(path: Path) -> int:
    return int(load_state(path.resolve())["current_iter"]) if path.exists() else 0


@pytest.mark.parametrize("kind", ["dummy", "subproc", pytest.param("shmem", marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_same_numbers(kind: str, tmp_path: Path, repository: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(repository)))
    latest, rng, kills = tmp_path / "latest.pth", random.Random(kind), 0
    command = [sys.executable, str(program), str(tmp_path), kind]
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=repository)
        goal = iterations_in(latest) + rng.randint(1, 4)
        while process.poll() is None and iterations_in(latest) < goal:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.01)  # anywhere in an iteration
        if process.poll() is None and kills < 3:
            process.send_signal(signal.SIGKILL)
            kills += 1
        output, _ = process.communicate()
        if "finished" in output:
            break
    assert kills >= 1
    trainer, policy, _ = run(tmp_path / "whole", 12, kind, seed=21)
    state = load_state(latest)
    assert state["metrics"] == trainer.metrics
    assert np.array_equal(state["vessel"]["policy"]["weights"], policy.weights)
    assert np.array_equal(state["vessel"]["policy"]["momentum"], policy.momentum)
    assert state["current_episode"] == trainer.current_episode
