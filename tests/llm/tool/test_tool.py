"""The tool as a whole: its answers are JSON, whatever it is asked."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sharpen.llm import RLTrainingTool, RLTrainingTool as known_by_its_path
from tests.errors import whole

from .calls import Calls

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
KEYS = st.sampled_from(["action", "algorithm", "model_name", "dataset", "job_id", "output_dir", "name", "wait", "x"])


@given(
    parameters=st.dictionaries(KEYS, JSON | st.sampled_from(["train", "stop", "status", "list", "grpo"]), max_size=5)
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_call_raises_and_every_answer_is_json(tmp_path: Path, parameters: dict[str, Any]) -> None:
    tool = RLTrainingTool(tmp_path, allow_download=False)
    for call in (parameters, json.dumps(parameters)):
        answer = json.loads(tool.run(call))
        assert answer["status"] == "success" or answer["error"]["message"]
    assert not list(tmp_path.glob(".sharpen/jobs/*/process.json"))


@pytest.mark.parametrize("call", [None, 3, [], b"\xff", object(), {"action": object()}, {3: 4, "action": "list"}])
def test_what_is_no_call_is_refused(tmp_path: Path, call: Any) -> None:
    assert json.loads(RLTrainingTool(tmp_path, allow_download=False).run(call))["status"] == "error"


def test_a_refusal_tells_key_value_and_what_was_meant(call: Calls) -> None:
    answer = call("train", algorithm="sft", model_name="model", num_epoch=3, batch_size="four")
    problems = {each["key"]: each for each in answer["error"]["problems"]}
    assert problems["num_epoch"]["did_you_mean"] == "num_epochs"
    assert problems["num_epoch"]["value"] == 3
    assert problems["batch_size"]["value"] == "four"
    assert problems["batch_size"]["message"].startswith("batch_size is 'four'")
    assert re.search(whole(1), problems["batch_size"]["message"])
    assert answer["error"]["type"] == "ParameterError"


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ({"num_epochs": 1, "max_steps": 3}, ["max_steps", "epochs"]),
        ({"output_dir": "model"}, ["output_dir is "]),
        ({"model_name": "model/checkpoint-1", "output_dir": "model"}, ["output_dir is "]),
        ({"output_dir": "../out"}, ["output_dir is '../out'"]),
        ({"warmup": 2.5}, ["warmup is 2.5"]),
        ({"eval_dataset": "missing.jsonl"}, ["eval_dataset is 'missing.jsonl'"]),
        ({"eval_dataset": "sums.jsonl", "eval_reward": "nice"}, ["eval_reward is 'nice'"]),
        ({"algorithm": "grpo", "reward": ["accuracy", "nice"]}, ["reward is", "'nice'"]),
        ({"algorithm": "grpo", "temperature": 0}, ["temperature is 0"]),
        ({"algorithm": "grpo", "batch_size": 9}, ["batch_size is 9", "8"]),
    ],
)
def test_what_training_would_refuse_is_refused_before_a_job_begins(
    call: Calls, asked: dict[str, Any], values: list[str]
) -> None:
    checkpoint = call.base / "model" / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}", encoding="ascii")
    (checkpoint / "model.safetensors").touch()
    message = call.refused("train", **{"algorithm": "sft", "model_name": "model", "dataset": "sums.jsonl", **asked})
    assert [each for each in values if each not in message] == []
    assert not (call.base / ".sharpen" / "jobs").exists() or not list((call.base / ".sharpen" / "jobs").iterdir())


def test_an_error_that_nobody_foresaw_is_an_answer_too(call: Calls) -> None:
    class Trap:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield {"a": 1}
            raise ZeroDivisionError("the trap")

    call.tool.register_dataset("trap", Trap())
    answer = call("load_dataset", dataset="trap")
    assert answer["error"] == {"type": "ZeroDivisionError", "message": "the trap"}


def test_list_shows_everything_there_is(call: Calls) -> None:
    (call.base / "output" / "sft").mkdir(parents=True)
    (call.base / "output" / "sft" / "adapter_config.json").write_text("{}", encoding="ascii")
    (call.base / "link").symlink_to(call.base / "model")
    (call.base / ".hidden").mkdir()
    (call.base / ".hidden" / "adapter_config.json").write_text("{}", encoding="ascii")
    listed = call("list")
    assert set(listed) == {"status", "jobs", "datasets", "rewards", "models"}
    found = {(Path(each["path"]).relative_to(call.base).as_posix(), each["kind"]) for each in listed["models"]}
    assert found == {("model", "model"), ("output/sft", "adapter")}
    assert [each["name"] for each in listed["rewards"]] == ["accuracy", "waiting"]
    assert set(call("list", kind="models", limit=1)) == {"status", "models"}


def test_paths_are_those_of_the_moment_the_tool_was_made(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    call = Calls(Path("."))
    monkeypatch.chdir("/")
    assert call("load_dataset", dataset="./sums.jsonl")["size"] == 8


def test_the_known_path_leads_to_the_same_class() -> None:
    assert known_by_its_path is RLTrainingTool


def test_the_tool_loads_nothing_heavy_by_itself(base: Path) -> None:
    code = f"""
import sys
from sharpen.llm.tools import RLTrainingTool
tool = RLTrainingTool({str(base)!r})
tool.schema(), tool.run({{"action": "list"}}), tool.run({{"action": "load_dataset", "dataset": "sums.jsonl"}})
print(*sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "trl", "peft", "datasets", "numpy", "mcp", "rich"} & set(run.stdout.split())
