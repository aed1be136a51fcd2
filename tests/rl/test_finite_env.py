"""Finite vector environments: every initial state exactly once, whatever the kind, the number and the lengths."""

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings, strategies as st

from sharpen.errors import ConfigError, InvalidInputError, TransportError
from sharpen.rl import (
    Collector,
    ConsoleWriter,
    CsvWriter,
    EnvWrapper,
    FiniteVectorEnv,
    LogBuffer,
    LogLevel,
    LogWriter,
    OldGymEnv,
    Reward,
    SeedsExhausted,
    generate_nan_observation,
    vectorize_env,
)
from tests.errors import raises
from tests.rl.internals import EnvParts
from tests.rl.toys import Countdown, InitialAsReward, Left, SoftmaxPolicy, Two, VectorCartPole, Zeros

KINDS = ["dummy", "subproc", "shmem"]


class Heard(LogWriter):
    """Keeps which initial states were played, and how long."""

    def __init__(self, loglevel: int = LogLevel.PERIODIC) -> None:
        self.played: list[tuple[int, int]] = []
        self.collections = 0
        super().__init__(loglevel)

    def log_episode(self, length: int, rewards: list[float], contents: list[dict[str, Any]]) -> None:
        assert length == len(rewards) == len(contents)
        self.played.append((int(contents[-1]["initial"]), length))

    def on_env_all_done(self) -> None:
        self.collections += 1


PARTS = EnvParts(Countdown, Left(), Two(), InitialAsReward())


@pytest.fixture(scope="module")
def venvs() -> Any:
    """Workers live over many collections: one vector environment of each size serves all examples."""
    made: dict[tuple[str, int], FiniteVectorEnv] = {}

    def get(kind: Any, n: int) -> FiniteVectorEnv:
        if (kind, n) not in made:
            made[kind, n] = vectorize_env(PARTS, kind, n)
        return made[kind, n]

    yield get
    for venv in made.values():
        venv.close()


@given(lengths=st.lists(st.integers(1, 12), max_size=25), n=st.sampled_from([1, 2, 3, 5]), kind=st.sampled_from(KINDS))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_state_is_played_exactly_once(venvs: Any, lengths: list[int], n: int, kind: str) -> None:
    venv, heard = venvs(kind, n), Heard()
    venv.loggers = [heard]
    venv.bind(iter(lengths))
    assert Collector(Zeros(), venv).play() == len(lengths)
    assert Counter(heard.played) == Counter((each, each) for each in lengths)
    assert heard.collections == 1
    assert heard.episode_count == len(lengths)
    assert heard.step_count == sum(lengths)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=25),
    wanted=st.integers(1, 25),
    n=st.sampled_from([1, 2, 3, 5]),
    kind=st.sampled_from(KINDS),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_training_collects_exactly_the_first_episodes(
    venvs: Any, lengths: list[int], wanted: int, n: int, kind: str
) -> None:
    venv = venvs(kind, n)
    venv.loggers = []
    states = iter([*lengths, *[99] * wanted])
    venv.bind(states, entropy=(7,))
    batch = Collector(Zeros(), venv).collect(wanted)
    expected = [*lengths, *[99] * wanted][:wanted]
    assert batch.lengths_E.tolist() == expected  # in the order of k, whoever was first
    assert len(list(states)) == len(lengths)  # none was drawn that is not played
    left_T = np.concatenate([np.arange(length, 0, -1) for length in expected])
    assert batch.obs_T[:, 0].tolist() == left_T.tolist()
    assert batch.last_obs_E[:, 0].tolist() == [0.0] * wanted
    assert (batch.next_obs_T[:, 0] == left_T - 1).all()
    is_cut_E = np.array(expected) % 3 == 0
    assert batch.truncated_T[batch.last_E].tolist() == is_cut_E.tolist()
    assert batch.terminated_T[batch.last_E].tolist() == (~is_cut_E).tolist()
    assert (batch.terminated_T | batch.truncated_T).sum() == wanted
    assert batch.returns_E.tolist() == expected


def collected(kind: Any, n: int) -> Any:
    policy = SoftmaxPolicy()
    with vectorize_env(PARTS, kind, n) as venv:
        venv.bind([3, 9, 1, 4, 7, 2, 8, 5, 5, 6], entropy=(1, 2))
        return Collector(policy, venv).collect()


def test_episodes_are_the_same_in_every_kind_and_number_of_environments() -> None:
    first = collected("dummy", 1)
    assert len(set(first.action_T.tolist())) == 2
    for kind, n in [("dummy", 4), ("subproc", 2), ("subproc", 3), ("shmem", 3)]:
        other = collected(kind, n)
        for name in ("obs_T", "action_T", "reward_T", "last_obs_E", "lengths_E"):
            assert np.array_equal(getattr(first, name), getattr(other, name)), (kind, n, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factory_with_a_generator_of_seeds_is_used_up_together(kind: Any) -> None:
    given = (number for number in [2, 3, 1, 4, 2])  # no process can have a copy of a generator
    heard = Heard()

    def factory() -> Any:
        return EnvWrapper(Countdown, Left(), Two(), given, InitialAsReward())

    with vectorize_env(factory, kind, 3, heard) as venv, venv.collector_guard():
        obs, infos = venv.reset()
        assert obs.shape == (3, 2)
        assert len(infos) == 3
        for _ in range(100):
            _, _, terminated, truncated, _ = venv.step(np.zeros(3, np.int64))
            done = np.flatnonzero((terminated | truncated) & venv.alive)
            if len(done):
                venv.reset(done)
    assert sorted(heard.played) == [(1, 1), (2, 2), (2, 2), (3, 3), (4, 4)]
    assert not venv.alive.any()


def test_a_retired_environment_answers_with_zeros() -> None:
    with vectorize_env(PARTS, "dummy", 2) as venv:
        venv.bind([1, 5])
        with venv.collector_guard():
            venv.reset()
            _, _, terminated, truncated, _ = venv.step([0, 0])
            assert (terminated | truncated).tolist() == [True, False]
            venv.reset([0])
            obs, reward, terminated, truncated, infos = venv.step([0, 0])
            assert venv.alive.tolist() == [False, True]
            assert obs[0].tolist() == [0.0, 0.0]
            assert reward.tolist() == [0.0, 1.0]
            assert not (terminated | truncated)[0]
            assert infos[0] == {"log": {}, "aux_info": {}}
            assert infos[1]["log"]["reward"] == (20, 1.0)


def test_running_out_of_seeds_is_an_exception_of_its_own() -> None:
    with vectorize_env(PARTS, "dummy", 1) as venv:
        venv.bind([1])
        venv.open_collection(each_step=True)
        venv.reset()
        venv.step([0])
        with pytest.raises(SeedsExhausted):
            venv.reset()


class NanEnv(gym.Env[Any, Any]):
    """Its first observation is NaN, or 255, which means nothing."""

    def __init__(self, space: Any, value: Any) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.value, self.episodes = value, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.episodes += 1
        if self.episodes > 2:
            raise StopIteration
        return self.value, {}

    def step(self, action: Any) -> Any:
        return self.value, 1.0, True, False, {"note": "hello"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_observation_of_nans_is_just_an_observation(kind: Any) -> None:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    value = generate_nan_observation(space)
    with vectorize_env(lambda: NanEnv(space, value), kind, 2) as venv:
        batch = Collector(Zeros(), venv).collect()
    assert batch.n_episodes == 4  # two of each environment, which say themselves that they are used up
    assert np.isnan(batch.obs_T).all()


def test_an_observation_of_largest_numbers_is_just_an_observation() -> None:
    space = spaces.Box(0, 255, (2,), np.uint8)
    value = np.full(2, 255, np.uint8)
    with vectorize_env(lambda: NanEnv(space, value), "dummy", 1) as venv:
        assert Collector(Zeros(), venv).collect().n_episodes == 2


class DictEnv(gym.Env[Any, Any]):
    observation_space = spaces.Dict({"a": spaces.Box(-9, 9, (2,), np.float32), "b": spaces.Discrete(5)})
    action_space = spaces.Dict({"x": spaces.Box(-1, 1, (3,), np.float32), "y": spaces.Discrete(4)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.steps = 0
        return {"a": np.zeros(2, np.float32), "b": 0}, {}

    def step(self, action: Any) -> Any:
        assert action["x"].shape == (3,)
        self.steps += 1
        obs = {"a": np.full(2, self.steps, np.float32), "b": int(action["y"])}
        return obs, float(action["x"].sum()), False, self.steps == 3, {}


class DictPolicy(Zeros):
    def act(self, obs_N: Any, *, rng: Any, deterministic: bool) -> Any:
        from sharpen.rl import Actions

        n = len(obs_N["b"])
        return Actions({"x": np.full((n, 3), 0.5, np.float32), "y": np.full(n, 3)})


@given(
    lengths=st.lists(st.integers(1, 12), min_size=60, max_size=60),
    budget=st.integers(1, 40),
    n=st.sampled_from([1, 2, 3, 5]),
    kind=st.sampled_from(KINDS),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_budget_of_steps_gives_batches_of_its_size_and_loses_no_step(
    venvs: Any, lengths: list[int], budget: int, n: int, kind: str
) -> None:
    venv, heard = venvs(kind, n), Heard()
    venv.loggers, states = [heard], iter(lengths)
    venv.bind(states, entropy=(7,))
    batches = list(Collector(Zeros(), venv).collect_steps(budget))
    played = lengths[: len(lengths) - len(list(states))]
    assert Counter(heard.played) == Counter((each, each) for each in played)  # whole episodes, each told once
    assert sum(map(len, batches)) == sum(played) >= budget
    assert all(budget <= len(batch) < budget + n for batch in batches[:-1])
    for batch in batches:  # its parts of episodes are in order, and each ends where the next observation says
        assert (batch.next_obs_T[:, 0] == batch.obs_T[:, 0] - 1).all()
        assert (batch.terminated_T | batch.truncated_T)[batch.last_E].all()
        assert (batch.terminated_T | batch.truncated_T).sum() == batch.n_episodes
        is_over_E = batch.last_obs_E[:, 0] == 0
        assert not batch.terminated_T[batch.last_E][~is_over_E].any()
    assert sum(int((batch.last_obs_E[:, 0] == 0).sum()) for batch in batches) == len(played)


@pytest.mark.parametrize("kind", KINDS)
def test_nested_observations_and_actions_travel_whole(kind: Any) -> None:
    with vectorize_env(DictEnv, kind, 3) as venv:
        batch = Collector(DictPolicy(), venv).collect(5)
    assert batch.lengths_E.tolist() == [3] * 5
    assert batch.obs_T["b"].tolist() == [0, 3, 3] * 5
    assert batch.next_obs_T["a"][:, 0].tolist() == [1.0, 2.0, 3.0] * 5
    assert batch.action_T["y"].tolist() == [3] * 15
    assert batch.truncated_T.sum() == 5
    assert not batch.terminated_T.any()
    assert batch.reward_T.tolist() == [1.5] * 15


class OldEnv:
    """An environment of the old API that counts to three, and says by NaNs that it is used up."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.episodes = 0

    def seed(self, seed: int) -> None:
        self.seeded = seed

    def reset(self) -> Any:
        self.episodes, self.steps = self.episodes + 1, 0
        return generate_nan_observation(self.observation_space) if self.episodes > 2 else np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        is_cut = self.episodes == 2
        return np.zeros(1, np.float32), 1.0, self.steps == 3, {"TimeLimit.truncated": is_cut}


def test_environments_of_the_old_api_run_through_an_adapter() -> None:
    with vectorize_env(lambda: OldGymEnv(OldEnv(), is_finite=True), "dummy", 2) as venv:
        batch = Collector(Zeros(), venv).collect()
    assert batch.lengths_E.tolist() == [3, 3, 3, 3]
    assert sorted(batch.truncated_T[batch.last_E].tolist()) == [False, False, True, True]


class Steps(LogWriter):
    """Wants every step."""

    def __init__(self) -> None:
        super().__init__(LogLevel.DEBUG)
        self.seen: list[dict[str, Any]] = []

    def log_step(self, reward: float, contents: dict[str, Any]) -> None:
        self.seen.append(contents)


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_wants_steps_gets_each_with_its_logs(kind: Any) -> None:
    steps = Steps()
    with vectorize_env(PARTS, kind, 2, steps) as venv:
        venv.bind([2, 3, 1])
        Collector(Zeros(), venv).play()
    assert len(steps.seen) == 6
    assert all({"reward", "obs", "policy_act"} <= set(each) for each in steps.seen)
    assert sorted(each["steps_per_episode"] for each in steps.seen if "steps_per_episode" in each) == [1, 2, 3]


class Distance(Reward[float]):
    """Logs how far each step is from the end."""

    def reward(self, simulator_state: float) -> float:
        self.log("distance", simulator_state)
        return -1.0


class AllSteps(LogWriter):
    def log_step(self, reward: float, contents: dict[str, Any]) -> None:
        return


class AllEnvSteps(LogWriter):
    def on_env_step(self, env_id: int, obs: Any, rew: float, done: bool, info: Any) -> None:
        super().on_env_step(env_id, obs, rew, done, info)


class AllResets(LogWriter):
    def on_env_reset(self, env_id: int, obs: Any) -> None:
        super().on_env_reset(env_id, obs)


def play_by_hand(venv: FiniteVectorEnv) -> None:
    """The loop that people write themselves."""
    with venv.collector_guard():
        venv.reset()
        while True:
            *_, terminated_N, truncated_N, _ = venv.step(np.zeros(len(venv), np.int64))
            if (ended_M := np.flatnonzero((terminated_N | truncated_N) & venv.alive)).size:
                venv.reset(ended_M)


def play_with_a_collector(venv: FiniteVectorEnv) -> None:
    Collector(Zeros(), venv).play()


@pytest.mark.parametrize("play", [play_by_hand, play_with_a_collector])
@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_has_the_same_metrics_whoever_listens_to_its_steps(kind: Any, play: Any, tmp_path: Path) -> None:
    with vectorize_env(EnvParts(Countdown, Left(), Two(), Distance()), kind, 2) as venv:
        for listener in (LogWriter, AllSteps, AllEnvSteps, AllResets):
            buffer, stream, folder = LogBuffer(lambda *_: None), io.StringIO(), tmp_path / listener.__name__
            venv.loggers = [listener(), buffer, CsvWriter(folder), ConsoleWriter(1, stream=stream)]
            venv.bind([10, 4])
            play(venv)
            assert buffer.collect_metrics() == {"reward": -7.0, "distance": 3.0, "steps_per_episode": 7.0}
            with open(folder / "result.csv", encoding="utf-8") as file:
                rows = [(row["reward"], row["distance"]) for row in csv.DictReader(file)]
            assert rows == [("-4.0", "1.5"), ("-10.0", "4.5")]
            assert "distance 4.5000 (3.0000)" in stream.getvalue()


class LoggingEnv(gym.Env[Any, Any]):
    """A plain environment of three steps, of which two log something."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        info = {} if self.steps == 2 else {"log": {"height": (LogLevel.PERIODIC, float(self.steps))}}
        return np.zeros(1, np.float32), 10.0 * self.steps, self.steps == 3, False, info


class StepBuffer(LogBuffer):
    """Keeps metrics, and wants every step."""

    def log_step(self, reward: float, contents: dict[str, Any]) -> None:
        return


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_environment_has_the_same_metrics_whoever_listens_to_its_steps(kind: Any) -> None:
    with vectorize_env(LoggingEnv, kind, 1) as venv:
        for writers in ([LogBuffer], [StepBuffer], [LogBuffer, StepBuffer]):
            buffers = [writer(lambda *_: None) for writer in writers]
            venv.loggers = list(buffers)
            venv.bind(None)
            Collector(Zeros(), venv).play(1)
            for buffer in buffers:
                assert buffer.collect_metrics() == {"reward": 60.0, "height": 2.0, "steps_per_episode": 3.0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_value_above_the_usual_level_is_kept_for_the_episode(kind: Any) -> None:
    buffer = LogBuffer(lambda *_: None, LogLevel.INFO)
    with vectorize_env(EnvParts(Countdown, Left(), Two(), LoudDistance()), kind, 1, buffer) as venv:
        venv.bind([10])
        Collector(Zeros(), venv).play()
    assert buffer.collect_metrics() == {"distance": 4.5}


class LoudDistance(Reward[float]):
    def reward(self, simulator_state: float) -> float:
        assert self.env is not None
        self.env.logger.add("distance", simulator_state, LogLevel.INFO)
        return -1.0


def test_nothing_below_the_least_level_is_logged() -> None:
    heard = Heard(LogLevel.CRITICAL)
    heard.log_episode = lambda length, rewards, contents: heard.played.append((len(contents), len(contents[-1])))  # type: ignore[method-assign]
    with vectorize_env(PARTS, "dummy", 1, heard) as venv:
        venv.bind([4])
        Collector(Zeros(), venv).play()
    assert heard.played == [(4, 0)]


def test_a_vector_simulator_plays_exactly_the_wanted_episodes_at_once() -> None:
    def played(n: int) -> Any:
        with vectorize_env(VectorCartPole, "dummy", n) as venv:  # type: ignore[arg-type]
            venv.bind(range(50), entropy=(3,))
            return Collector(SoftmaxPolicy(4), venv).collect(40)

    few, many = played(3), played(40)
    assert few.n_episodes == many.n_episodes == 40
    assert np.array_equal(few.lengths_E, many.lengths_E)
    assert np.array_equal(few.obs_T, many.obs_T)


def test_a_vector_simulator_may_speak_in_tensors() -> None:
    import torch  # here, since workers import this module too

    class TorchCartPole(VectorCartPole):  # its tensors carry a gradient, as where a simulator can be differentiated
        def reset(self, slots_M: Any, initial_states: Any, rng: Any) -> Any:
            return torch.as_tensor(super().reset(slots_M, initial_states, rng)).requires_grad_()

        def step(self, slots_N: Any, action_N: Any) -> Any:
            obs_N, *results = super().step(slots_N, torch.as_tensor(action_N))
            return torch.as_tensor(obs_N.copy()).requires_grad_(), *map(torch.as_tensor, results)

    def played(simulator: Any) -> Any:
        with vectorize_env(simulator, "dummy", 8) as venv:
            venv.bind(range(20), entropy=(3,))
            return Collector(SoftmaxPolicy(4), venv).collect()

    plain, torch_ = played(VectorCartPole), played(TorchCartPole)
    assert torch_.n_episodes == 20
    assert type(torch_.obs_T) is np.ndarray
    assert np.array_equal(plain.obs_T, torch_.obs_T)
    assert np.array_equal(plain.reward_T, torch_.reward_T)
    assert np.array_equal(plain.terminated_T, torch_.terminated_T)


def test_a_step_without_a_running_episode_is_refused() -> None:
    with vectorize_env(PARTS, "dummy", 1) as venv:
        venv.bind([1])
        venv.open_collection(each_step=True)
        with pytest.raises(InvalidInputError):
            venv.step([0])


def test_settings_that_cannot_work_are_refused_with_what_to_do() -> None:
    with raises(ConfigError, "dummy", "subproc", "shmem"):
        vectorize_env(PARTS, "threads", 2)  # type: ignore[arg-type]
    with raises(ConfigError, 1):
        vectorize_env(PARTS, "dummy", 0)
    with raises(ConfigError, "processes", 0):
        vectorize_env(PARTS, "subproc", 2, processes=0)


def test_an_environment_that_cannot_travel_is_refused_with_a_way_out() -> None:
    import threading

    lock = threading.Lock()

    def factory() -> Any:
        assert not lock.locked()
        return PARTS()

    with raises(TransportError, "finite_env_type='dummy'"):
        vectorize_env(factory, "subproc", 2)
