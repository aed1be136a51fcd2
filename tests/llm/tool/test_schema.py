"""The forms in which the tool describes itself."""

import json
from typing import Any

import jsonschema
import pytest

from sharpen.llm import RLTrainingTool
from tests.llm.internals import ACTIONS, ParameterError, read_request, setting_names, trl_fields

CALLS: list[dict[str, Any]] = [
    {"action": "train", "algorithm": "sft", "model_name": "m", "use_lora": True, "batch_size": 4, "max_samples": None},
    {"action": "train", "algorithm": "grpo", "model_name": "m", "reward": ["a", "b"], "wait": False},
    {"action": "load_dataset"},
    {"action": "create_reward", "reward_type": "step", "step_bonus": 0.2},
    {"action": "evaluate", "model_path": "m", "temperature": 0},
    {"action": "status"},
    {"action": "stop", "job_id": "x", "grace_seconds": 0},
    {"action": "list", "kind": "jobs"},
]
BAD: list[dict[str, Any]] = [
    {},
    {"action": "traim"},
    {"action": "train", "algorithm": "sft"},
    {"action": "train", "algorithm": "ppo", "model_name": "m"},
    {"action": "train", "algorithm": "sft", "model_name": "m", "batch_size": 0},
    {"action": "train", "algorithm": "sft", "model_name": "m", "batchsize": 1},
    {"action": "status", "job_id": 3},
    {"action": "list", "kind": "everything"},
]


@pytest.fixture
def tool(tmp_path: Any) -> RLTrainingTool:
    return RLTrainingTool(tmp_path)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_schemas_take_what_the_tool_takes(tool: RLTrainingTool, call: dict[str, Any]) -> None:
    assert read_request(call).action.name == call["action"]
    jsonschema.validate(call, tool.schema())
    jsonschema.validate(call, tool.openai_tool()["function"]["parameters"])


@pytest.mark.parametrize("call", BAD, ids=str)
def test_the_schema_refuses_what_the_tool_refuses(tool: RLTrainingTool, call: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        read_request(call)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(call, tool.schema())


def test_the_schema_is_a_schema(tool: RLTrainingTool) -> None:
    for schema in (tool.schema(), tool.openai_tool()["function"]["parameters"]):
        jsonschema.Draft202012Validator.check_schema(json.loads(json.dumps(schema)))


def test_the_openai_tool_has_no_alternatives_at_its_top(tool: RLTrainingTool) -> None:
    described = tool.openai_tool()
    assert described["type"] == "function"
    assert described["function"]["name"] == tool.name == "rl_training"
    assert described["function"]["description"] == tool.description
    parameters = described["function"]["parameters"]
    assert not {"oneOf", "anyOf", "allOf", "enum", "not"} & set(parameters)
    assert parameters["properties"]["action"]["enum"] == [*ACTIONS]


def test_the_list_for_people_has_every_key_of_every_action(tool: RLTrainingTool) -> None:
    listed = {(each.name, action) for each in tool.get_parameters() for action in each.actions}
    assert listed == {(each.name, action.name) for action in ACTIONS.values() for each in action.parameters} | {
        ("action", name) for name in ACTIONS
    }
    required = {each.name for each in tool.get_parameters() if each.required}
    assert required == {"action", "algorithm", "model_name", "model_path", "reward_type", "job_id"}


def test_every_setting_of_training_is_one_of_the_trainers() -> None:
    own = {
        "algorithm", "dataset", "split", "max_samples", "reward", "reward_timeout_seconds", "wait", "resume",
        "eval_dataset", "eval_split", "eval_max_samples", "eval_reward",
    }  # fmt: skip
    for parameter in ACTIONS["train"].parameters:
        for algorithm in parameter.algorithms or ("sft", "grpo", "dpo"):
            names = {*setting_names(algorithm), *trl_fields(algorithm)}  # type: ignore[arg-type]
            assert parameter.name in own | names


def test_descriptions_state_the_defaults_of_the_trainers(tool: RLTrainingTool) -> None:
    described = {each.name: each.description for each in tool.get_parameters() if "train" in each.actions}
    assert "Default: sft 2e-05, grpo 1e-05, dpo 1e-06." in described["learning_rate"]
    assert "Default: 3." in described["num_epochs"]
    assert "Default: 2." in described["save_total_limit"]
