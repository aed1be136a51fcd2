"""Calling reward functions: columns, async, time, and what goes wrong."""

import asyncio
import functools
import math
import threading
import time
from fractions import Fraction
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.llm import RewardError, RewardTimeoutError, create_accuracy_reward, create_step_reward
from tests.errors import raises
from tests.llm.internals import RewardRunner, reward_runners, score

ROWS = ["one", "two", "three"]


def length(completions: list[str], **columns: Any) -> list[float]:
    return [len(text) for text in completions]


# -- calling -----------------------------------------------------------------------------------------


def test_a_reward_gives_one_number_for_each_completion() -> None:
    assert score(length, ROWS) == [3.0, 3.0, 5.0]
    assert score(create_accuracy_reward(), ["1", "2"], {"ground_truth": ["1", "1"]}) == [1.0, 0.0]


def test_a_runner_is_called_like_its_function_and_has_its_name() -> None:
    runner = RewardRunner(length)
    assert runner.__name__ == "length"
    assert runner(completions=ROWS, prompts=ROWS, trainer_state=object()) == [3.0, 3.0, 5.0]


def test_a_reward_gets_the_columns_that_it_takes() -> None:
    columns = {"prompts": ["p"], "hint": ["h"], "other": ["o"]}

    def narrow(completions: list[str], hint: list[str]) -> list[float]:
        return [float((completions, hint) == (["c"], ["h"]))]

    def in_another_order(prompts: list[str], completions: list[str], **rest: Any) -> list[float]:
        return [float((prompts, completions, sorted(rest)) == (["p"], ["c"], ["hint", "other"]))]

    def under_another_name(texts: list[str], **rest: Any) -> list[float]:
        return [float((texts, sorted(rest)) == (["c"], ["hint", "other", "prompts"]))]

    for reward in (narrow, in_another_order, under_another_name):
        assert score(reward, ["c"], columns) == [1.0], reward.__name__


def test_a_column_that_is_missing_is_named() -> None:
    def needy(completions: list[str], hint: list[str]) -> list[float]:
        return [0.0]

    with raises(RewardError, "needy", "hint", "prompts"):
        score(needy, ["c"], {"other": ["o"], "prompts": ["p"]})


@pytest.mark.parametrize(
    "given", [[1, True, Fraction(1, 2)], (0.5, 1, 2), iter([1.0, 2.0, 3.0])], ids=["list", "tuple", "iterator"]
)
def test_any_numbers_will_do(given: Any) -> None:
    rewards = score(lambda completions: given, ROWS)
    assert all(type(reward) is float for reward in rewards)
    assert len(rewards) == 3


def test_none_stands_for_no_opinion_only_where_it_may() -> None:
    values = [1.0, None, 0.0]
    assert RewardRunner(lambda completions: values, may_skip=True)(ROWS) == values
    with raises(RewardError, 1):
        RewardRunner(lambda completions: values)(ROWS)


def test_several_rewards_have_different_names() -> None:
    rewards = [
        length,
        lambda completions: [0.0],
        length,
        functools.partial(length),
        create_accuracy_reward(),
        _Object(),
    ]
    assert [runner.__name__ for runner in reward_runners(rewards)] == [
        "length",
        "reward",
        "length_2",
        "length_3",
        "accuracy",
        "_Object",
    ]


def test_one_reward_must_judge_every_row_and_several_may_share_them() -> None:
    (alone,) = reward_runners(length, timeout_seconds=30)
    assert (alone.may_skip, alone.timeout_seconds, alone(ROWS)) == (False, 30, [3.0, 3.0, 5.0])
    assert all(runner.may_skip for runner in reward_runners([length, length]))
    with pytest.raises(ConfigError):
        reward_runners([])


class _Object:
    def __call__(self, completions: list[str]) -> list[float]:
        return [0.0]


# -- what goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1.0", "high", [1.0]])
def test_what_is_no_number_is_reported_with_its_row(value: Any) -> None:
    with raises(RewardError, "reward", 2, 0, "three") as caught:
        score(lambda completions: [0.0, 0.0, value], ROWS)
    assert (caught.value.row, caught.value.reward) == (2, "reward")


@pytest.mark.parametrize("result", [1.0, None, "111", {"a": 1.0}])
def test_what_is_no_list_is_refused(result: Any) -> None:
    with raises(RewardError, 3):
        score(lambda completions: result, ROWS)


def test_a_wrong_number_of_rewards_is_refused() -> None:
    with raises(RewardError, 2, 3):
        score(lambda completions: [0.0, 1.0], ROWS)


def test_an_exception_is_reported_with_the_row_that_raises_it() -> None:
    def fragile(completions: list[str], number: list[int]) -> list[float]:
        return [1 / value for value in number]

    with raises(RewardError, "fragile", 1, "ZeroDivisionError", "two") as caught:
        score(fragile, ROWS, {"number": [1, 0, 2]})
    assert caught.value.row == 1
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_of_an_async_reward_is_reported_with_its_row() -> None:
    async def fragile(completions: list[str]) -> list[float]:
        await asyncio.sleep(0)
        return [float(text == "one" or int(text)) for text in completions]

    with raises(RewardError, 1, "ValueError", "two"):
        score(fragile, ROWS)


def test_an_exception_of_the_batch_blames_no_row() -> None:
    def ranked(completions: list[str]) -> list[float]:
        if len(completions) > 1:
            raise LookupError("a tie")
        return [0.0]

    with raises(RewardError, "ranked", "LookupError") as caught:
        score(ranked, ROWS)
    assert caught.value.row is None


def test_in_training_the_completions_of_a_batch_are_counted_and_the_prompt_is_shown() -> None:
    (runner,) = reward_runners(lambda completions: [0.0, math.nan, 0.0], unit="completion of the batch")
    asked = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]] * 3
    for prompts in (["How many?"] * 3, asked):
        with raises(RewardError, "reward", 1, 0, "nan", "two", "How many?") as caught:
            runner(ROWS, prompts=prompts)
        assert (caught.value.row, caught.value.unit) == (1, "completion of the batch")


def test_a_reward_that_names_the_row_itself_is_counted_alike() -> None:
    (runner,) = reward_runners(create_accuracy_reward(), unit="completion of the batch")
    truths = {"ground_truth": ["1", None, "3"], "prompts": ["a", "b", "c"]}
    with raises(RewardError, "accuracy", 1, "ground_truth", None, "two", "b"):
        runner(ROWS, **truths)
    with raises(RewardError, "accuracy", 1, 0, "b"):
        score(runner, ROWS, truths)  # a runner in a runner, as when training evaluates


def test_prompts_that_cannot_be_shown_hide_no_error() -> None:
    for prompts in ([], [None] * 3, [[]] * 3, [5] * 3, "abc", None):
        with raises(RewardError, 0, "one"):
            score(lambda completions: [None] * 3, ROWS, {"prompts": prompts})


def test_what_a_trainer_adds_is_no_column() -> None:
    def needy(completions: list[str], hint: list[str]) -> list[float]:
        return [0.0]

    extras = {"trainer_state": object(), "log_extra": print, "log_metric": print, "environments": [None]}
    for reward in (needy, create_accuracy_reward()):
        with raises(RewardError, "prompts"):
            score(reward, ["c"], {**extras, "other": ["o"], "prompts": ["p"]})


def test_an_error_in_the_words_of_a_user_stays_as_it_is() -> None:
    def own(completions: list[str]) -> list[float]:
        raise RewardError("my own words")

    with raises(RewardError, "my own words"):
        score(own, ROWS)


@pytest.mark.parametrize("thing", [None, "accuracy", 3])
def test_what_is_no_function_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigError):
        RewardRunner(thing)


# -- async and time ----------------------------------------------------------------------------------


def test_async_rewards_run_on_one_loop_from_call_to_call() -> None:
    loops = []

    async def judge(completions: list[str], **columns: Any) -> list[float]:
        loops.append(asyncio.get_running_loop())
        return await asyncio.gather(*(asyncio.sleep(0, float(len(text))) for text in completions))

    runner = RewardRunner(judge)
    assert runner(ROWS) == runner(ROWS) == [3.0, 3.0, 5.0]
    assert loops[0] is loops[1]


async def test_an_async_reward_can_be_scored_while_a_loop_runs() -> None:
    async def judge(completions: list[str]) -> list[float]:
        return [1.0] * len(completions)

    assert score(judge, ROWS, timeout_seconds=30) == [1.0, 1.0, 1.0]
    assert score(create_step_reward(judge), ROWS) == [1.0, 1.0, 1.0]


def test_a_reward_within_its_time_is_left_alone() -> None:
    assert score(length, ROWS, timeout_seconds=30) == [3.0, 3.0, 5.0]
    with raises(RewardError, 0, "TimeoutError"):
        score(_own_timeout, ROWS, timeout_seconds=30)


def _own_timeout(completions: list[str]) -> list[float]:
    raise TimeoutError("of its own")


def test_a_slow_reward_is_given_up() -> None:
    release = threading.Event()

    def slow(completions: list[str]) -> list[float]:
        release.wait(60)
        return [0.0] * len(completions)

    with raises(RewardTimeoutError, "slow", 0.05, 3):
        score(slow, ROWS, timeout_seconds=0.05)
    release.set()


def test_a_slow_async_reward_is_cancelled() -> None:
    cancelled = threading.Event()

    async def slow(completions: list[str]) -> list[float]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return [0.0]

    with raises(TimeoutError, 0.05):
        score(slow, ROWS, timeout_seconds=0.05)
    assert cancelled.wait(30)


def test_an_async_reward_that_blocks_does_not_hold_the_next_one() -> None:
    release = threading.Event()

    async def blocking(completions: list[str]) -> list[float]:
        release.wait(60)
        return [0.0]

    async def quick(completions: list[str]) -> list[float]:
        return [1.0] * len(completions)

    with pytest.raises(RewardTimeoutError):
        score(blocking, ROWS, timeout_seconds=0.05)
    began = time.monotonic()
    assert score(quick, ROWS) == [1.0, 1.0, 1.0]
    assert time.monotonic() - began < 30
    release.set()


@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_a_time_that_cannot_work_is_refused(seconds: float) -> None:
    with raises(ConfigError, "timeout_seconds"):
        RewardRunner(length, timeout_seconds=seconds)
