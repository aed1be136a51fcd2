"""What people get wrong at first: the error says what it is, with which value, and what to do."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sharpen.errors import ConfigError, InvalidInputError, SharpenError, StateFileError, TransportError
from sharpen.rl import (
    DQN,
    MLP,
    PPO,
    SAC,
    Actions,
    Checkpoint,
    Collector,
    EarlyStopping,
    EpisodeError,
    GymSpaceValidationError,
    Reward,
    RewardError,
    SeedIteratorNotAvailable,
    Trainer,
    TrainingVessel,
    backtest,
    vectorize_env,
)
from tests.errors import raises
from tests.rl.internals import EnvParts
from tests.rl.toys import Countdown, Guess, GuessReward, GuessState, InitialAsReward, Left, SoftmaxPolicy, Two, Zeros

OBS, ACT = GuessState().observation_space, Two().action_space


def vessel(**parts: Any) -> TrainingVessel[Any, Any, Any, Any, Any]:
    given = {
        "simulator_fn": Guess,
        "state_interpreter": GuessState(),
        "action_interpreter": Two(),
        "policy": SoftmaxPolicy(),
        "reward": GuessReward(),
        "train_initial_states": range(8),
        "episode_per_iter": 4,
    }
    return TrainingVessel(**{**given, **parts})


def fit(*, settings: Any = None, **parts: Any) -> Trainer:
    trainer = Trainer(**{"max_iters": 1, "finite_env_type": "dummy", "seed": 0, **(settings or {})})
    trainer.fit(vessel(**parts))
    return trainer


def ppo(**settings: Any) -> PPO:
    return PPO(MLP(OBS, (8,)), OBS, ACT, lr=1e-3, **settings)


# -- rewards -----------------------------------------------------------------------------------------


class Pays(Reward[Any]):
    def __init__(self, what: Any) -> None:
        self.what = what

    def reward(self, simulator_state: Any) -> Any:
        return self.what


@pytest.mark.parametrize("what", [None, "1", np.ones(1), np.ones(2), float("inf"), 1j], ids=repr)
def test_a_reward_that_is_no_finite_number_is_named_with_its_episode(what: Any) -> None:
    with raises(EpisodeError, 0) as caught:
        fit(reward=Pays(what))
    assert isinstance(caught.value.__cause__, RewardError)
    assert f"the reward is {what!r} after step 1" in str(caught.value)


@pytest.mark.parametrize("what", [1, True, np.float32(1), np.int8(1), np.array(1.0)], ids=repr)
def test_every_kind_of_number_is_a_reward(what: Any) -> None:
    assert fit(reward=Pays(what)).metrics["reward"] == 8.0


class Foreign(gym.Env[Any, Any]):
    """An environment that is not made of our parts."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float("nan"), True, False, {}


def test_the_reward_of_a_foreign_environment_is_checked_too() -> None:
    with vectorize_env(Foreign, "dummy", 1) as venv:
        venv.bind(None)
        with raises(EpisodeError, "nan", 1):
            Collector(Zeros(), venv).collect(1)


# -- policies ----------------------------------------------------------------------------------------


class Says(Zeros):
    """Acts as it is told."""

    def __init__(self, say: Callable[[int], Any]) -> None:
        super().__init__()
        self.say = say

    def act(self, obs_N: Any, *, rng: Any, deterministic: bool) -> Any:
        return self.say(len(obs_N))


def test_a_policy_that_returns_bare_arrays_is_told_to_wrap_them() -> None:
    with raises(InvalidInputError, "Says.act", "Actions(action_N)"):
        fit(policy=Says(lambda n: np.zeros(n, np.int64)))


@pytest.mark.parametrize("shape", [(1,), (), (3,)], ids=str)
def test_too_few_or_too_many_actions_are_refused_and_not_spread(shape: Any) -> None:
    with raises(InvalidInputError, "Says.act", shape, 2):
        fit(policy=Says(lambda n: Actions(np.zeros(shape, np.int64))))
    with vectorize_env(EnvParts(Countdown, Left(), Two(), None), "dummy", 2) as venv:
        venv.bind([4, 4])
        venv.open_collection(each_step=True)
        venv.reset()
        with raises(GymSpaceValidationError, "(2,)"):
            venv.step(np.zeros(shape, np.int64))


def test_a_policy_that_cannot_learn_is_refused_before_anything_is_played() -> None:
    class OnlyActs:
        def act(self, obs_N: Any, *, rng: Any, deterministic: bool) -> Actions:
            raise AssertionError("nothing is played")

    with raises(ConfigError, "OnlyActs", "state_dict", "load_state_dict"):
        fit(policy=OnlyActs())


def test_learn_may_return_nothing() -> None:
    class Silent(Zeros):
        def learn(self, batch: Any, **update_kwargs: Any) -> Any:
            return None

    assert fit(policy=Silent()).metrics["steps_per_episode"] == 8


@pytest.mark.parametrize(
    "part",
    [
        {"policy": SoftmaxPolicy},
        {"state_interpreter": GuessState},
        {"action_interpreter": Two},
        {"reward": GuessReward},
    ],
    ids=lambda part: next(iter(part)),
)
def test_a_class_in_place_of_an_object_is_refused(part: Any) -> None:
    name, kind = next(iter(part.items()))
    with raises(ConfigError, name, kind.__name__):
        vessel(**part)


def test_a_simulator_in_place_of_its_class_is_refused() -> None:
    with raises(ConfigError, "simulator_fn", "Guess"):
        vessel(simulator_fn=Guess.__new__(Guess))


def test_a_policy_made_for_other_spaces_is_refused_with_both() -> None:
    other = spaces.Box(-1, 1, (3,), np.float32)
    with raises(ConfigError, "(3,)", "(2,)"):
        fit(policy=PPO(MLP(other), other, ACT, lr=1e-3))
    with raises(ConfigError, "Discrete(5)", "Discrete(2)"):
        fit(policy=PPO(MLP(OBS), OBS, spaces.Discrete(5), lr=1e-3))


def test_bounds_of_a_policys_space_may_differ() -> None:
    wider = spaces.Box(-9, 9, (2,), np.float32)
    assert fit(policy=PPO(MLP(wider), wider, ACT, lr=1e-3)).current_iter == 1


@pytest.mark.parametrize("kind", ["ppo", "dqn", "sac"])
def test_a_nan_that_spoils_learning_ends_the_run_and_is_found(kind: str) -> None:
    class Blind(GuessState):
        def interpret(self, simulator_state: Any) -> Any:
            return np.full(2, np.nan if simulator_state.steps == 3 else 0.0, np.float32)

    class Push(Two):
        @property
        def action_space(self) -> Any:
            return spaces.Box(-1, 1, (1,), np.float32) if kind == "sac" else spaces.Discrete(2)

        def interpret(self, simulator_state: Any, action: Any) -> int:
            return 1

    act, early = Push().action_space, {"learning_starts": 1, "batch_size": 32, "lr": 1e-3}
    policies: dict[str, Callable[[], Any]] = {
        "ppo": ppo,
        "dqn": lambda: DQN(MLP(OBS, (8,)), OBS, act, **early),
        "sac": lambda: SAC(MLP(OBS, (8,)), OBS, act, critic_hidden_sizes=(8,), **early),
    }
    with raises(InvalidInputError, "nan", 4, 32, "always"):
        fit(policy=policies[kind](), state_interpreter=Blind(), action_interpreter=Push())


def test_a_buffer_too_small_to_ever_learn_from_is_refused() -> None:
    with raises(ConfigError, "learning_starts", 1000, 500):
        DQN(MLP(OBS), OBS, ACT, lr=1e-3, buffer_size=500)
    box = spaces.Box(-1, 1, (1,))
    with raises(ConfigError, "learning_starts", 100, 50):
        SAC(MLP(OBS), OBS, box, lr=1e-3, buffer_size=50)


# -- states ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [(n for n in range(3)), {1, 2}, {1: 2}, 7], ids=lambda s: type(s).__name__)
def test_states_that_are_no_sequence_are_refused(states: Any) -> None:
    with raises(ConfigError, "val_initial_states", type(states).__name__):
        vessel(val_initial_states=states)


def test_no_states_at_all_are_refused_by_the_name_of_the_argument() -> None:
    with raises(SeedIteratorNotAvailable, "train_initial_states"):
        fit(train_initial_states=[])
    with raises(SeedIteratorNotAvailable, "test_initial_states"):
        backtest(Guess, GuessState(), Two(), [], SoftmaxPolicy(), [], finite_env_type="dummy")


def test_missing_validation_states_are_told_before_the_first_iteration() -> None:
    policy = Zeros()
    with raises(SeedIteratorNotAvailable, "val_initial_states"):
        fit(policy=policy, settings={"val_every_n_iters": 5, "max_iters": 10})
    assert policy.batches == []


# -- workers -----------------------------------------------------------------------------------------


class Exits(Countdown):
    def step(self, action: int) -> None:
        raise SystemExit(3)


def test_sys_exit_in_a_worker_is_an_error_of_its_episode() -> None:
    with vectorize_env(EnvParts(Exits, Left(), Two(), InitialAsReward()), "subproc", 1) as venv:
        venv.bind([4])
        with raises(EpisodeError, 0, 4, "SystemExit", 3):
            Collector(Zeros(), venv).play()


def test_a_part_that_cannot_be_copied_is_named() -> None:
    reward = Pays(1.0)
    reward.lock = threading.Lock()  # type: ignore[attr-defined]
    with raises(TransportError, "Pays"):
        fit(reward=reward)


# -- checkpoints and callbacks -----------------------------------------------------------------------


def test_a_checkpoint_of_another_policy_is_named(tmp_path: Path) -> None:
    fit(policy=ppo(), settings={"callbacks": Checkpoint(tmp_path)})
    other = PPO(MLP(OBS, (16,)), OBS, ACT, lr=1e-3)
    with raises(StateFileError, "latest.pth"):
        Trainer(max_iters=2, finite_env_type="dummy").fit(vessel(policy=other), tmp_path / "latest.pth")
    with raises(StateFileError, "KeyError"):
        Trainer(max_iters=2, finite_env_type="dummy").fit(vessel(), tmp_path / "latest.pth")
    with raises(ConfigError, "latest.pth"):
        PPO(MLP(OBS, (16,)), OBS, ACT, lr=1e-3, weight_file=tmp_path / "latest.pth")


def test_a_folder_in_place_of_a_checkpoint_is_told(tmp_path: Path) -> None:
    with raises(StateFileError, "latest.pth"):
        Trainer(max_iters=2, finite_env_type="dummy").fit(vessel(), tmp_path)


@pytest.mark.parametrize("make", [EarlyStopping, lambda: Checkpoint("x", keep_best=1)], ids=["stopping", "keep_best"])
def test_what_waits_for_validations_warns_where_there_are_none(
    make: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        fit(settings={"callbacks": make()})
    assert "val_every_n_iters" in caplog.text


def test_every_mistake_is_one_of_our_errors() -> None:
    for settings in ({"episode_per_iter": 2.5}, {"buffer_size": -1}):
        with raises(SharpenError, next(iter(settings))):
            vessel(**settings)


def test_a_space_of_another_package_is_named_with_its_place() -> None:
    old = type("Box", (), {"__module__": "gym.spaces.box"})()

    class Old(GuessState):
        observation_space = old

    with raises(GymSpaceValidationError, "Old.observation_space", "gym.spaces.box.Box"):
        fit(state_interpreter=Old())


def test_a_backtest_with_a_seed_can_be_repeated() -> None:
    def played(seed: int) -> dict[str, float]:
        parts = (Guess, GuessState(), Two(), range(6), SoftmaxPolicy(), [], GuessReward())
        return backtest(*parts, finite_env_type="dummy", seed=seed)

    assert played(1) == played(1) != played(2)
