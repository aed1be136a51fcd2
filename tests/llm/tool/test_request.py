"""Calls that are refused say which key, which value, and what would be right."""

import json
from typing import Any

import pytest

from tests.llm.internals import ParameterError, read_request

TRAIN = {"action": "train", "algorithm": "sft", "model_name": "m"}


def problems_of(parameters: Any) -> dict[str, str]:
    with pytest.raises(ParameterError) as caught:
        read_request(parameters)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_a_call_may_be_a_dict_or_a_json_text() -> None:
    assert read_request(json.dumps(TRAIN)).given == read_request(TRAIN).given == {"algorithm": "sft", "model_name": "m"}


@pytest.mark.parametrize("fenced", ["```json\n{}\n```", " \n```\n{}\n```\n ", "```json {}```", "```{}```"])
def test_a_fence_around_json_is_taken_off(fenced: str) -> None:
    assert read_request(fenced.replace("{}", json.dumps(TRAIN))).given == read_request(TRAIN).given


def test_null_means_left_out() -> None:
    request = read_request({**TRAIN, "batch_size": None, "wait": None})
    assert "batch_size" not in request.given
    assert request.get("wait") is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "3",
        "```",
        "``````",
        "```json",
        "```json```",
        '"train"',
        "null",
        "[" * 100_000,
        '{"a": ' + "1" * 5000 + "}",
    ],
)
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ParameterError):
        read_request(text)


def test_a_call_that_is_too_long_is_refused() -> None:
    with pytest.raises(ParameterError):
        read_request('{"action": "' + "x" * 2_000_000)


@pytest.mark.parametrize("name", [None, "trian", 3, ["train"], {"a": 1}, "Train"])
def test_an_unknown_action_names_all_actions(name: Any) -> None:
    message = problems_of({"action": name})["action"]
    assert "train, load_dataset, create_reward, evaluate, status, stop, list" in message


def test_a_misspelt_action_or_key_gets_its_nearest_name() -> None:
    assert "Did you mean 'train'?" in problems_of({"action": "trian"})["action"]
    assert "did you mean 'num_epochs'?" in problems_of({**TRAIN, "epochs": 3})["epochs"]
    assert "did you mean 'learning_rate'?" in problems_of({**TRAIN, "learningrate": 3})["learningrate"]


def test_a_key_of_another_action_says_whose_it_is() -> None:
    assert "it belongs to create_reward" in problems_of({**TRAIN, "step_bonus": 0.1})["step_bonus"]


def test_all_problems_are_told_at_once() -> None:
    found = problems_of({"action": "train", "algorithm": "ppo", "batch_size": "4", "num_epoch": 1, "temperature": -1})
    assert set(found) == {"algorithm", "batch_size", "num_epoch", "temperature", "model_name"}
    assert all(value in found["algorithm"] for value in ("'ppo'", "sft", "grpo", "dpo"))
    assert "model_name" in found["model_name"]


@pytest.mark.parametrize(
    ("key", "value", "needs"),
    [
        ("num_generations", 4, "grpo"),
        ("reward", "accuracy", "grpo"),
        ("beta", 0.1, "grpo and dpo"),
        ("lora_r", 8, "use_lora"),
        ("eval_steps", 5, "eval_dataset"),
        ("eval_reward", "accuracy", "eval_dataset"),
        ("temperature", 0.7, "eval_reward"),
    ],
)
def test_a_key_that_would_do_nothing_is_refused(key: str, value: Any, needs: str) -> None:
    assert needs in problems_of({**TRAIN, key: value})[key]


def test_sampling_settings_act_in_grpo_by_themselves() -> None:
    given = {**TRAIN, "algorithm": "grpo", "temperature": 0.7, "num_generations": 4}
    assert read_request(given).given["temperature"] == 0.7


def test_use_lora_false_is_as_good_as_none() -> None:
    assert "use_lora" in problems_of({**TRAIN, "use_lora": False, "lora_alpha": 8})["lora_alpha"]
