"""Rewards by name: registered, created, nested, and kept for later processes."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.llm import create_accuracy_reward, create_length_penalty_reward, create_step_reward
from tests.errors import raises
from tests.llm.internals import build

from .calls import Calls

STEPS = "2 + 2 = 4. Then 4 * 3 = 12.\nFinal Answer: 12"


def always_one(completions: list[Any], **columns: Any) -> list[float]:
    return [1.0 for _ in completions]


def test_a_created_reward_is_kept_for_later_processes(call: Calls, base: Path) -> None:
    answer = call("create_reward", reward_type="step", name="steps", step_bonus=0.2)
    assert answer["name"] == "steps"
    assert answer["reward"] == {"reward_type": "step", "step_bonus": 0.2, "base": {"reward_type": "accuracy"}}
    assert answer["replaced"] is False
    listed = Calls(base)("list", kind="rewards")["rewards"]
    assert {"name": "steps", **answer["reward"]} in listed
    assert json.loads((base / ".sharpen" / "rewards.json").read_text(encoding="utf-8")) == {"steps": answer["reward"]}


def test_rewards_nest_by_name(call: Calls) -> None:
    call("create_reward", reward_type="accuracy", name="loose", tolerance=0.5)
    call("create_reward", reward_type="step", base="loose", name="steps")
    spec = call("create_reward", reward_type="length_penalty", base="steps", max_length=10)["reward"]
    made = build(spec, {})
    by_hand = create_length_penalty_reward(create_step_reward(create_accuracy_reward(0.5)), max_length=10)
    truths = {"ground_truth": ["12.4", "7"]}
    assert made([STEPS, STEPS], **truths) == by_hand([STEPS, STEPS], **truths)


def test_the_name_is_the_type_where_none_is_given(call: Calls) -> None:
    assert call("create_reward", reward_type="length_penalty")["name"] == "length_penalty"


def test_a_reward_keeps_its_base_when_the_name_of_that_is_given_anew(call: Calls) -> None:
    call("create_reward", reward_type="accuracy", name="a", tolerance=0.1)
    call("create_reward", reward_type="step", name="b", base="a")
    assert call("create_reward", reward_type="step", name="a", base="b")["replaced"] is True
    listed = {each["name"]: each for each in call("list", kind="rewards")["rewards"]}
    assert listed["b"]["base"] == {"reward_type": "accuracy", "tolerance": 0.1}


def test_a_base_that_is_a_function_is_needed_again_in_a_later_process(call: Calls, base: Path) -> None:
    call.tool.register_reward_function("ones", always_one)
    spec = call("create_reward", reward_type="step", name="plus", base="ones")["reward"]
    assert build(spec, {"ones": always_one})([STEPS], ground_truth=["12"]) == [1.2]
    later = Calls(base)
    message = later.refused("train", algorithm="grpo", model_name="model", reward="plus")
    assert "register_reward_function('ones', ...)" in message


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"reward_type": "steps"}, "accuracy, length_penalty, step"),
        ({"reward_type": "step", "tolerance": 0.1}, "step_bonus, base"),
        ({"reward_type": "accuracy", "base": "accuracy"}, "tolerance"),
        ({"reward_type": "step", "base": "acuracy"}, "Did you mean 'accuracy'?"),
        ({"reward_type": "step", "step_bonus": -1}, "step_bonus is -1"),
        ({"reward_type": "length_penalty", "max_length": 0}, "max_length is 0"),
        ({"reward_type": "step", "name": "../x"}, "'../x'"),
        ({"reward_type": "accuracy", "tolerance": 0.1}, "name is 'accuracy'"),
        ({"reward_type": "step", "name": "waiting"}, "name is 'waiting'"),
    ],
)
def test_a_reward_that_cannot_be_is_refused(call: Calls, base: Path, asked: dict[str, Any], words: str) -> None:
    assert words in call.refused("create_reward", **asked)
    assert not (base / ".sharpen" / "rewards.json").exists()


def test_the_default_may_be_created_as_it_is(call: Calls) -> None:
    assert call("create_reward", reward_type="accuracy")["name"] == "accuracy"


def test_a_function_takes_no_name_of_a_created_reward(call: Calls) -> None:
    call("create_reward", reward_type="step", name="mine")
    with raises(ConfigError, "mine"):
        call.tool.register_reward_function("mine", always_one)
    with pytest.raises(ConfigError):
        call.tool.register_reward_function("three", 3)  # type: ignore[arg-type]


def test_a_function_does_not_replace_the_default(call: Calls) -> None:
    with raises(ConfigError, "accuracy"):
        call.tool.register_reward_function("accuracy", always_one)
    assert call("list", kind="rewards")["rewards"][0] == {"name": "accuracy", "reward_type": "accuracy"}


def test_a_damaged_file_of_rewards_is_named(call: Calls, base: Path) -> None:
    call("create_reward", reward_type="step")
    (base / ".sharpen" / "rewards.json").write_text("{", encoding="utf-8")
    message = call.refused("list", kind="rewards")
    assert "rewards.json" in message


def test_a_function_that_cannot_travel_is_named_before_a_job_begins(call: Calls) -> None:
    lock = threading.Lock()
    call.tool.register_reward_function("bound", lambda completions: [float(lock.locked()) for _ in completions])
    message = call.refused("train", algorithm="grpo", model_name="model", reward="bound", dataset="sums.jsonl")
    assert "'bound'" in message
    assert call("list", kind="jobs")["jobs"] == []
