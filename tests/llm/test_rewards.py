"""The rewards as users call them."""

import math
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.llm import (
    MathRewardFunction,
    RewardError,
    create_accuracy_reward,
    create_length_penalty_reward,
    create_step_reward,
    evaluate_rewards,
)
from tests.errors import raises
from tests.llm.internals import ShapedReward


def constant(value: float) -> Any:
    def reward(completions: list[str], **columns: Any) -> list[float]:
        return [value] * len(completions)

    return reward


# -- accuracy ----------------------------------------------------------------------------------------


def test_accuracy_compares_row_by_row() -> None:
    reward = create_accuracy_reward()
    assert reward(completions=["42", "43", "#### 42"], ground_truth=["42", "42", "42"]) == [1.0, 0.0, 1.0]


def test_completions_may_be_chat_messages() -> None:
    said = {"role": "assistant", "content": "The answer is 12."}
    with_a_tool = [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "#### 99"},
        {"role": "assistant", "content": [{"type": "text", "text": "#### 12"}]},
    ]
    assert create_accuracy_reward()([[said], said, with_a_tool, "12"], ground_truth=[12] * 4) == [1.0] * 4


@pytest.mark.parametrize("truth", [72, 72.0, "72", "72.0", "$72", "48+24 = 72\n#### 72", "The answer is 72."])
def test_the_right_answer_may_be_given_in_many_forms(truth: object) -> None:
    assert create_accuracy_reward()(["Final Answer: 72", "Final Answer: 71"], ground_truth=[truth] * 2) == [1.0, 0.0]


def test_the_tolerance_is_honoured() -> None:
    texts, truths = ["#### 3.14", "#### 3.2"], ["3.14159"] * 2
    assert create_accuracy_reward()(texts, ground_truth=truths) == [0.0, 0.0]
    assert create_accuracy_reward(tolerance=0.01)(texts, ground_truth=truths) == [1.0, 0.0]
    assert create_accuracy_reward(tolerance=0.1)(texts, ground_truth=truths) == [1.0, 1.0]


def test_answers_can_be_extracted_and_compared_one_by_one() -> None:
    reward = MathRewardFunction()
    assert reward.extract_answer("计算结果是 #### 42") == "42"
    assert reward.extract_answer("no idea") is None
    assert reward.compare_answers("42", "42.0")
    assert not reward.compare_answers("42", "43")


def test_a_subclass_can_use_its_parts() -> None:
    class Lenient(MathRewardFunction):
        def __call__(self, completions: Any, **columns: Any) -> list[float]:
            truths = columns["ground_truth"]
            answers = [self.extract_answer(text) for text in completions]
            return [0.5 if answer else 0.0 for answer, _ in zip(answers, truths, strict=True)]

    assert Lenient()(["42", "hm"], ground_truth=["1", "1"]) == [0.5, 0.0]


def test_a_missing_ground_truth_is_named() -> None:
    with raises(RewardError, "ground_truth"):
        create_accuracy_reward()(["42"], question=["?"])


@pytest.mark.parametrize("truths", [["42"], "42", []])
def test_too_few_ground_truths_are_refused(truths: object) -> None:
    with raises(RewardError, "ground_truth", 2):
        create_accuracy_reward()(["42", "43"], ground_truth=truths)


@pytest.mark.parametrize("truth", [None, "", "  ", math.nan])
def test_an_empty_ground_truth_is_reported_with_its_row(truth: object) -> None:
    with raises(RewardError, 1, "ground_truth") as caught:
        create_accuracy_reward()(["42", "43"], ground_truth=["42", truth])
    assert caught.value.row == 1


@pytest.mark.parametrize("completion", [None, 42, ["text"], [{"role": "assistant", "content": 42}]])
def test_a_completion_of_the_wrong_kind_is_reported_with_its_row(completion: Any) -> None:
    with raises(RewardError, 1):
        create_accuracy_reward()(["42", completion], ground_truth=["42", "42"])


@pytest.mark.parametrize("tolerance", [-1, math.nan, math.inf])
def test_a_tolerance_that_cannot_work_is_refused(tolerance: float) -> None:
    with raises(ConfigError, "tolerance"):
        create_accuracy_reward(tolerance=tolerance)


# -- length ------------------------------------------------------------------------------------------


def test_length_is_free_up_to_the_limit_and_costs_beyond() -> None:
    reward = create_length_penalty_reward(constant(1.0), max_length=10, penalty_weight=0.1)
    assert reward(["x" * 10, "x" * 20, "x" * 30]) == pytest.approx([1.0, 0.9, 0.8])


def test_a_penalty_takes_no_more_than_there_is() -> None:
    texts = ["x" * 100_000]
    assert create_length_penalty_reward(constant(1.0), max_length=10)(texts) == [0.0]
    assert create_length_penalty_reward(constant(0.0), max_length=10)(texts) == [0.0]
    assert create_length_penalty_reward(constant(-1.0), max_length=10)(texts) == [-1.0]


@given(lengths=st.tuples(st.integers(0, 5000), st.integers(0, 5000)), base=st.floats(-2, 2), weight=st.floats(0, 5))
def test_a_longer_text_never_earns_more(lengths: tuple[int, int], base: float, weight: float) -> None:
    reward = create_length_penalty_reward(constant(base), max_length=100, penalty_weight=weight)
    shorter, longer = [reward.shape(base, "x" * length) for length in sorted(lengths)]
    assert longer <= shorter <= base


@pytest.mark.parametrize("settings", [{"max_length": 0}, {"penalty_weight": -0.1}, {"penalty_weight": math.nan}])
def test_a_length_penalty_that_cannot_work_is_refused(settings: dict[str, Any]) -> None:
    with raises(ConfigError, next(iter(settings))):
        create_length_penalty_reward(create_accuracy_reward(), **settings)


# -- steps -------------------------------------------------------------------------------------------


def test_each_step_earns_the_bonus() -> None:
    reward = create_step_reward(create_accuracy_reward(), step_bonus=0.1)
    texts = ["72", "48/2 = 24\n48+24 = 72\nFinal Answer: 72", "48/2 = 24\nFinal Answer: 24"]
    assert reward(texts, ground_truth=["72"] * 3) == pytest.approx([1.0, 1.2, 0.1])


def test_blank_lines_and_repetition_earn_no_bonus() -> None:
    reward = create_step_reward(constant(0.0))
    assert reward(["\n" * 50, "Step 1:\n" * 50, "1 + 1 = 2\n" * 50]) == pytest.approx([0.0, 0.0, 0.1])


def test_the_bonus_has_a_limit() -> None:
    text = "".join(f"{number} + 1 = {number + 1}\n" for number in range(100))
    assert create_step_reward(constant(1.0), step_bonus=0.1)([text]) == [1.5]


@pytest.mark.parametrize("bonus", [-0.1, math.nan, math.inf])
def test_a_bonus_that_cannot_work_is_refused(bonus: float) -> None:
    with raises(ConfigError, "step_bonus"):
        create_step_reward(create_accuracy_reward(), step_bonus=bonus)


# -- all of them -------------------------------------------------------------------------------------


def test_each_reward_has_its_own_name() -> None:
    base = create_accuracy_reward()
    rewards = [base, create_length_penalty_reward(base), create_step_reward(base)]
    rewards.append(create_length_penalty_reward(create_step_reward(base)))
    names = [reward.__name__ for reward in rewards]
    assert names == ["accuracy", "accuracy_length_penalty", "accuracy_steps", "accuracy_steps_length_penalty"]


def test_rewards_travel_to_other_processes() -> None:
    reward = create_length_penalty_reward(create_step_reward(create_accuracy_reward(tolerance=0.5), step_bonus=0.2))
    copy = pickle.loads(pickle.dumps(reward))
    texts = ["48/2 = 24\n#### 24.4", "#### 25"]
    assert copy(texts, ground_truth=[24, 24]) == reward(texts, ground_truth=[24, 24]) == [1.2, 0.0]
    assert copy.__name__ == reward.__name__


@pytest.mark.parametrize("create", [create_length_penalty_reward, create_step_reward])
def test_a_base_that_is_no_function_is_refused(create: Any) -> None:
    with raises(ConfigError, "base_reward_fn", "accuracy"):
        create("accuracy")


async def test_a_shaped_async_reward_is_awaited() -> None:
    async def judge(completions: list[str], **columns: Any) -> list[float]:
        return [1.0] * len(completions)

    reward: Any = create_length_penalty_reward(judge, max_length=1)
    assert reward.__name__ == "judge_length_penalty"
    assert await reward(["xx"]) == [0.9]


# -- evaluation --------------------------------------------------------------------------------------


def test_rewards_are_evaluated() -> None:
    found = evaluate_rewards(["42", "43", "42"], ["42", "42", "42"], create_accuracy_reward())
    assert found == {
        "mean_reward": pytest.approx(2 / 3),
        "std_reward": pytest.approx(math.sqrt(2) / 3),
        "min_reward": 0.0,
        "max_reward": 1.0,
        "accuracy": pytest.approx(2 / 3),
        "num_samples": 3,
    }


def test_accuracy_knows_neither_bonus_nor_penalty() -> None:
    steps = "".join(f"{number} + 1 = {number + 1}\n" for number in range(100))
    shaped = create_length_penalty_reward(create_step_reward(constant(0.4), step_bonus=1.0))
    assert evaluate_rewards([steps], ["1"], shaped)["accuracy"] == 0.0
    penalised = create_length_penalty_reward(create_accuracy_reward(), max_length=1, penalty_weight=10)
    found = evaluate_rewards(["#### 12"], ["12"], penalised)
    assert (found["accuracy"], found["mean_reward"]) == (1.0, 0.0)


def test_a_shaped_reward_is_evaluated_as_it_is_called() -> None:
    texts, truths = ["48/2 = 24\n48+24 = 72\n#### 72", "x" * 3000], ["72", "72"]
    reward: ShapedReward = create_length_penalty_reward(create_step_reward(create_accuracy_reward()), max_length=20)
    called: Any = reward(texts, ground_truth=truths)
    found = evaluate_rewards(texts, truths, reward)
    assert (found["min_reward"], found["max_reward"]) == (min(called), max(called))


def test_further_columns_reach_the_reward() -> None:
    def hinted(completions: list[str], ground_truth: list[str], hint: list[str]) -> list[float]:
        return [float(one + other == text) for one, other, text in zip(hint, ground_truth, completions, strict=True)]

    assert evaluate_rewards(["ab"], ["b"], hinted, hint=["a"])["mean_reward"] == 1.0


def test_an_evaluation_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        evaluate_rewards([], [], create_accuracy_reward())


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_the_mean_lies_between_the_extremes(values: list[float]) -> None:
    found = evaluate_rewards(["x"] * len(values), ["y"] * len(values), lambda completions, **columns: values)
    slack = 1e-6
    assert found["min_reward"] - slack <= found["mean_reward"] <= found["max_reward"] + slack
    assert found["std_reward"] >= 0
