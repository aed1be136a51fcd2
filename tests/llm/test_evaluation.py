"""How good a model is: what is counted as right, the numbers, and what a reward is given."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen.errors import ConfigError
from sharpen.llm import (
    DatasetError,
    ModelError,
    RewardError,
    RewardTimeoutError,
    RowError,
    create_accuracy_reward,
    create_length_penalty_reward,
    create_step_reward,
    evaluate,
    evaluate_model,
)
from sharpen.stats import mean_interval, wilson_interval
from tests.errors import raises

from .scripted_models import scripted_model
from .tiny_models import write_tiny_model

ROWS = [
    {"prompt": "a", "ground_truth": "1", "colour": "red"},
    {"prompt": "b", "ground_truth": 2, "colour": "green"},
    {"prompt": "c", "ground_truth": "7", "colour": "blue"},
    {"prompt": "zza", "ground_truth": 1.0, "colour": None},
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def speaker() -> tuple[Any, Any]:
    """It answers a with 1, b with 2, c with 3, chat messages with 4, e with 5555…, anything else with nothing."""
    return scripted_model({"a": "1", "b": "2", "c": "3", "\n": "4", "e": "5", "5": "5", "f": "x"})


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def test_the_share_of_right_answers_comes_with_its_interval(speaker: tuple[Any, Any]) -> None:
    result = evaluate_model(*speaker, ROWS, create_accuracy_reward(), max_new_tokens=8)
    assert result["accuracy"] == result["mean_reward"] == 0.75
    assert result["accuracy_interval"] == list(wilson_interval(3, 4))
    assert result["reward_interval"] == list(mean_interval([1, 1, 0, 1]))
    assert result["rewards"] == {"accuracy": 0.75}
    assert (result["num_samples"], result["tokens"], result["truncated"]) == (4, 8, 0)
    assert result["seconds"] > 0


def test_a_wider_confidence_gives_a_wider_interval(speaker: tuple[Any, Any]) -> None:
    result = evaluate_model(*speaker, ROWS, max_new_tokens=8, confidence=0.99)
    assert result["accuracy_interval"] == list(wilson_interval(3, 4, 0.99))
    assert result["reward_interval"] == list(mean_interval([1, 1, 0, 1], 0.99))


def test_a_single_row_has_no_interval_of_its_reward(speaker: tuple[Any, Any]) -> None:
    assert evaluate_model(*speaker, ROWS, max_samples=1, max_new_tokens=8)["reward_interval"] is None


def test_results_are_numbers_that_survive_json(speaker: tuple[Any, Any]) -> None:
    rows = [*ROWS, {"prompt": chat("hello"), "ground_truth": Path("a/path")}]
    result = evaluate_model(*speaker, rows, max_new_tokens=8)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_examples_show_whole_questions_and_completions(speaker: tuple[Any, Any]) -> None:
    long = "Natalia sold clips. " * 2
    rows = [*ROWS, {"prompt": chat(long), "ground_truth": "9"}]
    examples = evaluate_model(*speaker, rows, max_new_tokens=8, num_examples=2)["examples"]
    right = {"prompt": "a", "completion": "1", "reward": 1.0, "ground_truth": "1", "truncated": False}
    assert examples["right"] == [
        {"row": 0, **right},
        {"row": 1, **right, "prompt": "b", "completion": "2", "ground_truth": 2},
    ]
    assert [example["row"] for example in examples["wrong"]] == [2, 4]
    assert examples["wrong"][1]["prompt"] == chat(long)
    assert examples["wrong"][1]["completion"] == "4"
    none = evaluate_model(*speaker, rows, max_new_tokens=8, num_examples=0)["examples"]
    assert none == {"right": [], "wrong": []}


def test_only_the_first_samples_are_asked(speaker: tuple[Any, Any]) -> None:
    result = evaluate_model(*speaker, ROWS, max_samples=2, max_new_tokens=8)
    assert (result["num_samples"], result["accuracy"]) == (2, 1)


def test_the_completion_of_an_sft_row_is_its_truth(speaker: tuple[Any, Any]) -> None:
    rows = [
        {"prompt": "a", "completion": "So it is one.\n\nFinal Answer: 1"},
        {"prompt": chat("What?"), "completion": [{"role": "assistant", "content": "Final Answer: 4"}]},
        {"prompt": "f", "completion": " x\n"},  # States no answer: then the text itself is compared.
        {"prompt": "b", "completion": "y"},
        {"prompt": "b", "completion": "y", "ground_truth": "2"},
    ]
    result = evaluate_model(*speaker, rows, max_new_tokens=8, num_examples=9)
    assert [example["row"] for example in result["examples"]["right"]] == [0, 1, 2, 4]
    assert [example["ground_truth"] for example in result["examples"]["right"]][2:] == ["x", "2"]


def test_a_hugging_face_data_set_and_a_file_are_taken_too(speaker: tuple[Any, Any], tmp_path: Path) -> None:
    import datasets

    rows = [{"prompt": chat(each), "ground_truth": truth} for each, truth in (("x", "4"), ("y", "5"))]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for source in (datasets.Dataset.from_list(rows), file, str(file)):
        assert evaluate_model(*speaker, source, max_new_tokens=8)["accuracy"] == 0.5


def test_a_reward_is_given_what_it_is_given_in_training(speaker: tuple[Any, Any]) -> None:
    given: dict[str, Any] = {}

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        given.update(columns, completions=completions)
        return [0.0] * len(completions)

    rows = [{"prompt": "a", "colour": "red", "prompts": "other"}, {"prompt": chat("x"), "completion": "y"}]
    evaluate_model(*speaker, rows, reward, max_new_tokens=8)
    ids = given.pop("completion_ids")
    assert [speaker[1].decode(each) for each in ids] == ["1<|im_end|>", "4<|im_end|>"]
    assert given == {
        "completions": ["1", [{"role": "assistant", "content": "4"}]],
        "prompts": ["a", chat("x")],
        "colour": ["red", None],
        "completion": [None, "y"],
        "ground_truth": [None, "y"],
    }


def test_right_is_what_is_above_the_mark(speaker: tuple[Any, Any]) -> None:
    def reward(completions: list[str], colour: list[str | None]) -> list[float]:
        return [{"red": 0.4, "green": 0.6}.get(each or "", 2) for each in colour]

    results = [evaluate_model(*speaker, ROWS, reward, max_new_tokens=8, correct_above=mark) for mark in (0.5, 0.6, 5)]
    assert [result["accuracy"] for result in results] == [0.75, 0.5, 0]
    assert results[0]["mean_reward"] == pytest.approx(1.25)


def test_a_bonus_or_a_penalty_does_not_decide_what_is_right(speaker: tuple[Any, Any]) -> None:
    rows = [{"prompt": "e", "ground_truth": "55555555"}, {"prompt": "b", "ground_truth": "3"}]
    shaped = create_length_penalty_reward(create_accuracy_reward(), max_length=1, penalty_weight=0.1)
    result = evaluate_model(*speaker, rows, shaped, max_new_tokens=8)
    assert (result["accuracy"], result["truncated"]) == (0.5, 0.5)
    assert result["rewards"] == {"accuracy_length_penalty": pytest.approx(0.15)}
    bonus = create_step_reward(lambda completions, **_: [0.5] * len(completions), step_bonus=0.5)
    assert evaluate_model(*speaker, rows, bonus, max_new_tokens=8)["accuracy"] == 0


def test_of_several_rewards_the_first_decides_and_all_add_up(speaker: tuple[Any, Any]) -> None:
    def brevity(completions: list[str], colour: Sequence[str | None]) -> list[float | None]:
        return [None if each is None else 0.25 for each in colour]

    result = evaluate_model(*speaker, ROWS, [create_accuracy_reward(), brevity], max_new_tokens=8)
    assert result["accuracy"] == 0.75
    assert result["rewards"] == {"accuracy": 0.75, "brevity": 0.25}
    assert result["mean_reward"] == pytest.approx((1.25 + 1.25 + 0.25 + 1) / 4)


def test_an_async_reward_is_awaited(speaker: tuple[Any, Any]) -> None:
    async def later(completions: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(0)
        return [float(each == "1") for each in completions]

    assert evaluate_model(*speaker, ROWS, later, max_new_tokens=8)["accuracy"] == 0.5


def test_a_reward_that_fails_names_its_row(speaker: tuple[Any, Any]) -> None:
    def fails(completions: list[str], **_: Any) -> list[float]:
        return [{"1": 1.0, "2": 0.0}[each] for each in completions]

    with raises(RewardError, "fails", 2, "KeyError", 3):
        evaluate_model(*speaker, ROWS, fails, max_new_tokens=8)


def test_a_reward_has_the_time_that_it_is_given(speaker: tuple[Any, Any]) -> None:
    async def endless(completions: list[str], **_: Any) -> list[float]:
        await asyncio.Event().wait()
        return []

    with raises(RewardTimeoutError, "endless", 0.05):
        evaluate_model(*speaker, ROWS, endless, max_new_tokens=8, reward_timeout_seconds=0.05)


def test_sampled_answers_follow_the_seed(tmp_path: Path) -> None:
    folder = str(write_tiny_model(tmp_path / "tiny"))

    def completions(**settings: Any) -> list[str]:
        rows = [{"prompt": chat(question), "ground_truth": "1"} for question in ("a", "b", "c")]
        result = evaluate(folder, rows, max_new_tokens=8, batch_size=2, **settings)
        return [example["completion"] for example in result["examples"]["wrong"]]

    assert completions(temperature=1.0) == completions(temperature=1.0, seed=42)
    assert completions(temperature=1.0) != completions(temperature=1.0, seed=43)
    assert completions() == completions(seed=43)


BAD = [
    ([], {}, DatasetError, ()),
    (ROWS, {"max_samples": 0}, ConfigError, ("max_samples", 0)),
    (
        [ROWS[0], {"question": "a", "answer": "1"}],
        {},
        RowError,
        (1, "prompt", "format_math_dataset"),
    ),
    ([ROWS[0], {"prompt": "a"}], {}, RowError, (1, "ground_truth")),
    ([{"prompt": "a", "completion": " "}], {}, RowError, (0, "ground_truth")),
    ([{"prompt": "a", "completion": 5}], {}, RowError, (0, "completion")),
    (ROWS, {"max_new_tokens": 0}, ConfigError, ("max_new_tokens", 0)),
    (ROWS, {"temperature": -1}, ConfigError, ("temperature", -1)),
    (ROWS, {"temperature": 1, "top_p": 0}, ConfigError, ("top_p", 0)),
    (ROWS, {"confidence": 95}, ConfigError, ("confidence", 95)),
    (ROWS, {"correct_above": float("nan")}, ConfigError, ("correct_above", "nan")),
    (ROWS, {"num_examples": -1}, ConfigError, ("num_examples", -1)),
    (ROWS, {"num_examples": 1.5}, ConfigError, ("num_examples", 1.5)),
    (ROWS, {"correct_above": "half"}, ConfigError, ("correct_above", "half")),
    (ROWS, {"confidence": "95%"}, ConfigError, ("confidence", "95%")),
    (ROWS, {"max_samples": "3"}, ConfigError, ("max_samples", 3)),
    (ROWS, {"reward_timeout_seconds": "1"}, ConfigError, ("timeout_seconds", 1)),
    (ROWS, {"reward_fn": "accuracy"}, ConfigError, ("accuracy",)),
    (ROWS, {"reward_fn": []}, ConfigError, ()),
    (ROWS, {"reward_timeout_seconds": 0}, ConfigError, ("timeout_seconds", 0)),
]


@pytest.mark.parametrize(("rows", "settings", "kind", "named"), BAD)
def test_what_cannot_work_is_refused_before_the_model_is_loaded(
    rows: Any, settings: dict[str, Any], kind: type[Exception], named: tuple[object, ...]
) -> None:
    with raises(kind, *named):
        evaluate("./no such model", rows, **settings)


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with raises(ModelError, None):
        evaluate(None, ROWS)  # type: ignore[arg-type]
    with raises(ModelError, "nowhere"):
        evaluate(str(tmp_path / "nowhere"), ROWS)
    with raises(ModelError, "someone/nothing"):
        evaluate("someone/nothing", ROWS, allow_download=False)
