"""The environment around a simulator, and its parts."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sharpen.errors import InvalidInputError
from sharpen.rl import (
    ActionInterpreter,
    Actions,
    AuxiliaryInfoCollector,
    Collector,
    EnvWrapper,
    GymSpaceValidationError,
    LogCollector,
    LogLevel,
    Reward,
    RewardCombination,
    RewardError,
    SeedsExhausted,
    Simulator,
    StateInterpreter,
    check_nan_observation,
    generate_nan_observation,
    vectorize_env,
)
from tests.errors import raises
from tests.rl.internals import SpaceCheck
from tests.rl.toys import Countdown, InitialAsReward, Left, Two


class Aux(AuxiliaryInfoCollector[float, dict[str, float]]):
    def collect(self, simulator_state: float) -> dict[str, float]:
        return {"left": simulator_state}


def env(seeds: Any = (3, 2), **settings: Any) -> EnvWrapper[Any, Any, Any, Any, Any]:
    return EnvWrapper(Countdown, Left(), Two(), seeds, InitialAsReward(), **settings)


def test_an_episode_from_reset_to_end() -> None:
    wrapped = env(aux_info_collector=Aux(), logger=LogCollector(LogLevel.DEBUG))
    obs, info = wrapped.reset()
    assert obs[0] == 3
    assert info == {"log": {}, "aux_info": {"left": 3.0}}
    obs, reward, terminated, truncated, info = wrapped.step(1)
    assert (obs[0], reward, terminated, truncated) == (2, 1.0, False, False)
    assert info["aux_info"] == {"left": 2.0}
    assert set(info["log"]) == {"reward", "obs", "policy_act"}
    wrapped.step(0)
    _, _, terminated, truncated, info = wrapped.step(0)
    assert (terminated, truncated) == (False, True)  # three steps: cut, not over
    assert info["log"]["steps_per_episode"] == (LogLevel.PERIODIC, 3)
    status = wrapped.status
    assert status["cur_step"] == 3
    assert status["done"]
    assert status["initial_state"] == 3
    assert [float(each[0]) for each in status["obs_history"]] == [3, 2, 1, 0]
    assert status["action_history"] == [1, 0, 0]
    assert status["reward_history"] == [1.0, 1.0, 1.0]
    with pytest.raises(InvalidInputError):
        wrapped.step(0)


def test_terminated_and_truncated_are_kept_apart() -> None:
    wrapped = env([2])
    wrapped.reset()
    wrapped.step(0)
    assert wrapped.step(0)[2:4] == (True, False)


def test_when_seeds_run_out_reset_says_so() -> None:
    wrapped = env([1])
    wrapped.reset()
    with pytest.raises(SeedsExhausted):
        wrapped.reset()


def test_without_seeds_a_simulator_begins_by_itself() -> None:
    wrapped = EnvWrapper(lambda: Countdown(2), Left(), Two())
    assert wrapped.reset()[0][0] == 2
    assert wrapped.step(0)[1] == 0.0  # no reward
    assert wrapped.status["initial_state"] is None


def test_random_numbers_of_an_episode_come_from_its_seed() -> None:
    wrapped = env(None)
    first = wrapped.reset(options={"initial_state": 4}, seed=7)[0]
    again = wrapped.reset(options={"initial_state": 4}, seed=7)[0]
    other = wrapped.reset(options={"initial_state": 4}, seed=8)[0]
    assert first[1] == again[1] != other[1]


def test_parts_see_their_own_environment_also_when_they_are_shared() -> None:
    state, action, reward = Left(), Two(), InitialAsReward()
    one = EnvWrapper(Countdown, state, action, [1], reward)
    two = EnvWrapper(Countdown, state, action, [2], reward)
    assert one.state_interpreter.env is one
    assert two.state_interpreter.env is two
    assert two.reward_fn is not None
    assert two.reward_fn.env is two
    assert pickle.loads(pickle.dumps(state)).env is None


# -- validation --------------------------------------------------------------------------------------


class Counted(Left):
    """Leaves its space after the first step."""

    def interpret(self, simulator_state: float) -> Any:
        return np.array([simulator_state, 9.0 if simulator_state < 3 else 0.5], np.float32)

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0, 5, (2,), np.float32)


def test_values_are_checked_fully_on_the_first_step_and_then_by_shape() -> None:
    wrapped = EnvWrapper(Countdown, Counted(), Two(), [3, 2])
    wrapped.reset()
    wrapped.step(0)  # outside the bounds, of the right shape
    with pytest.raises(GymSpaceValidationError):
        wrapped.reset()


def test_validation_can_be_asked_for_at_every_step() -> None:
    wrapped = EnvWrapper(Countdown, Counted(), Two(), [3], validate="always")
    wrapped.reset()
    with pytest.raises(GymSpaceValidationError):
        wrapped.step(0)


@pytest.mark.parametrize("action", [2, -1, 0.5, "1", np.array([1])])
def test_an_action_outside_its_space_is_refused_at_any_step(action: Any) -> None:
    wrapped = env([5])
    wrapped.reset()
    with pytest.raises(GymSpaceValidationError):
        wrapped.step(action)
    fresh = env([5])
    fresh.reset()
    fresh.step(1)
    with pytest.raises(GymSpaceValidationError):
        fresh.step(action)


NESTED = spaces.Dict(
    {
        "price": spaces.Box(0, 1, (2,), np.float32),
        "inner": spaces.Dict({"n": spaces.Discrete(3), "m": spaces.MultiDiscrete([2, 2])}),
        "pair": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]),
    }
)


def nested(**changes: Any) -> dict[str, Any]:
    good = {
        "price": np.zeros(2, np.float32),
        "inner": {"n": 1, "m": np.array([1, 0])},
        "pair": (0, np.array([0, 1], np.int8)),
    }
    return {**good, **changes}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"price": np.full(2, 2, np.float32)}, ("price",)),
        ({"price": np.zeros(2, np.float64)}, ("price", "float64")),
        ({"price": [0.0, 0.0]}, ("price",)),
        ({"inner": {"n": 3, "m": np.array([1, 0])}}, ("inner.n",)),
        ({"inner": {"n": 1}}, ("inner", "m")),
        ({"pair": (0,)}, ("pair", 2)),
        ({"pair": (5, np.array([0, 1], np.int8))}, ("pair.0",)),
        ({"more": 1}, ("more",)),
    ],
)
def test_a_mismatch_names_the_key_that_fails(changes: dict[str, Any], named: tuple[object, ...]) -> None:
    check = SpaceCheck(NESTED)
    check.full(nested())
    check.quick(nested())
    with raises(GymSpaceValidationError, *named) as caught:
        check.full(nested(**changes))
    assert isinstance(caught.value.space, spaces.Space)
    assert "Sample:" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.message == caught.value.message


def test_the_quick_check_sees_kind_dtype_shape_and_keys() -> None:
    check = SpaceCheck(NESTED)
    for changes in ({"price": np.zeros(3, np.float32)}, {"price": None}, {"inner": {}}, {"more": 1}):
        with pytest.raises(GymSpaceValidationError):
            check.quick(nested(**changes))
    check.quick(nested(price=np.full(2, 9, np.float32)))


def test_nan_is_a_value_where_there_is_no_bound() -> None:
    SpaceCheck(spaces.Box(-np.inf, np.inf, (1,), np.float32)).full(np.array([np.nan], np.float32))
    with pytest.raises(GymSpaceValidationError):
        SpaceCheck(spaces.Box(0, 1, (1,), np.float32)).full(np.array([np.nan], np.float32))


def test_observations_of_nans_for_old_code() -> None:
    obs = generate_nan_observation(NESTED)
    assert check_nan_observation(obs)
    assert not check_nan_observation(nested())


# -- rewards -----------------------------------------------------------------------------------------


class Logs(Reward[float]):
    def reward(self, simulator_state: float) -> float:
        self.log("state", simulator_state)
        return simulator_state


class One(Reward[float]):
    def reward(self, simulator_state: float) -> float:
        return 1.0


def test_a_combination_logs_each_weighted_part_and_parts_may_log_too() -> None:
    inner = RewardCombination({"deep": (Logs(), 10.0)})
    wrapped = EnvWrapper(
        Countdown, Left(), Two(), [3], RewardCombination({"a": (Logs(), 0.5), "b": (One(), -1.0), "c": (inner, 1.0)})
    )
    wrapped.reset()
    _, reward, _, _, info = wrapped.step(0)
    assert reward == 2 * 0.5 - 1 + 20
    values = {name: value for name, (_, value) in info["log"].items()}
    assert values == {
        "a": 1.0,
        "a/state": 2.0,
        "b": -1.0,
        "c": 20.0,
        "c/deep": 20.0,
        "c/deep/state": 2.0,
        "reward": 20.0,
    }


def test_a_reward_that_is_no_number_is_refused() -> None:
    class Nan(Reward[float]):
        def reward(self, simulator_state: float) -> float:
            return float("nan")

    wrapped = EnvWrapper(Countdown, Left(), Two(), [3], Nan())
    wrapped.reset()
    with raises(RewardError, "nan", 1):
        wrapped.step(0)


def test_a_simulator_alone_has_random_numbers_too() -> None:
    assert 0 <= Countdown(3).luck < 1


def test_the_parts_are_abstract() -> None:
    for kind in (Simulator, StateInterpreter, ActionInterpreter, Reward, AuxiliaryInfoCollector):
        with pytest.raises(TypeError):
            kind()  # type: ignore[abstract, call-arg]


@pytest.mark.parametrize("check", ["quick", "full"])
def test_a_python_number_is_a_value_of_a_scalar_box(check: Any) -> None:
    fraction = SpaceCheck(spaces.Box(np.float32(0.1), np.float32(0.9), (), np.float32))
    for value in (0.5, 0.1, 0.9, np.float32(0.5), np.array(0.5, np.float32)):  # 0.1 is rounded as its bound is
        getattr(fraction, check)(value)
    count = SpaceCheck(spaces.Box(0, 5, (), np.int64))
    getattr(count, check)(3)
    getattr(SpaceCheck(spaces.Box(0, 5, (), np.float32)), check)(3)
    for space, value in [(fraction, "0.5"), (fraction, True), (fraction, [0.5]), (count, 0.5)]:
        with pytest.raises(GymSpaceValidationError):
            getattr(space, check)(value)
    with pytest.raises(GymSpaceValidationError):
        getattr(SpaceCheck(spaces.Box(0, 1, (1,), np.float32)), check)(0.5)
    for space, value in [(fraction, 1.5), (fraction, float("nan")), (count, 6)]:
        with pytest.raises(GymSpaceValidationError):
            space.full(value)


@pytest.mark.parametrize("check", ["quick", "full"])
@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(0, 9, (), np.uint8), 300),
        (spaces.Box(0, 9, (), np.uint8), -1),
        (spaces.Box(-np.inf, np.inf, (), np.int64), 2**63),
        (spaces.Box(-np.inf, np.inf, (), np.float32), 1e300),
        pytest.param(spaces.Box(-np.inf, np.inf, (), np.float32), -(10**400), id="beyond all floats"),
        (spaces.Dict({"a": spaces.Box(0, 9, (), np.uint8)}), {"a": 300}),
    ],
)
def test_a_python_number_that_the_dtype_cannot_hold_is_refused(check: Any, space: Any, value: Any) -> None:
    with pytest.raises(GymSpaceValidationError) as caught:
        getattr(SpaceCheck(space), check)(value)
    assert any(name in caught.value.message for name in ("uint8", "int64", "float32"))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38])
def test_a_box_without_bounds_takes_what_its_dtype_has(value: float) -> None:
    SpaceCheck(spaces.Box(-np.inf, np.inf, (), np.float32)).full(value)


def test_a_float_for_a_box_of_integers_fails_by_its_dtype() -> None:
    with raises(GymSpaceValidationError, "int64"):
        SpaceCheck(spaces.Box(0, 5, (), np.int64)).full(0.5)


def test_an_episode_with_python_numbers_for_scalar_boxes_is_played() -> None:
    class Half(Simulator[int, float, float]):
        def __init__(self, initial: int) -> None:
            self.value = float(initial)

        def step(self, action: float) -> None:
            self.value *= action

        def get_state(self) -> float:
            return self.value

        def done(self) -> bool:
            return self.value < 1

    class Seen(StateInterpreter[float, Any]):
        observation_space = spaces.Box(0, 100, (), np.float32)

        def interpret(self, simulator_state: float) -> Any:
            return simulator_state

    class Factor(ActionInterpreter[float, Any, float]):
        action_space = spaces.Box(0, 1, (), np.float32)

        def interpret(self, simulator_state: float, action: Any) -> float:
            return float(action)

    env = EnvWrapper(Half, Seen(), Factor(), [8])
    env.reset()
    observed = [env.step(0.5)[0] for _ in range(4)]
    assert observed == [4.0, 2.0, 1.0, 0.5]

    class Halves:
        def act(self, obs_N: Any, *, rng: Any, deterministic: bool) -> Actions:
            return Actions(np.full(len(obs_N), 0.5, np.float32))

    with vectorize_env(lambda: EnvWrapper(Half, Seen(), Factor(), [8]), "dummy", 1) as venv:
        assert Collector(Halves(), venv).collect().obs_T.tolist() == [8.0, 4.0, 2.0, 1.0]
