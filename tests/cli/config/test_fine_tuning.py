"""The kind `fine-tuning`: what its configuration may hold, and its runs."""

import json
from pathlib import Path

import pytest

from sharpen.cli import main
from sharpen.errors import ConfigError
from sharpen.llm import MathRewardFunction
from tests.archive.internals import RunEntry
from tests.cli.internals import load_config, make_plan, rewards
from tests.cli.projects import write
from tests.errors import raises
from tests.llm.tiny_models import write_tiny_model

CONFIG = """
kind: fine-tuning
method: sft
model_name: tiny
train_dataset: [{prompt: "What is 1?", completion: One.}, {prompt: "What is 2?", completion: Two.}]
val_dataset: [{prompt: "What is 3?", completion: Three.}, {prompt: "What is 4?", completion: Four.}]
num_epochs: 2
batch_size: 1
logging_steps: 1
save_steps: 2
max_new_tokens: 4
eval_reward_fn: accuracy
loggers: []
"""


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("num_epoch=3", ("num_epoch", "num_epochs")),
        ("method=grop", ("grop", "grpo")),
        ("model_name=null", ("model_name",)),
        ("eval_reward_fn=acuracy", ("acuracy", "accuracy")),
        ("eval_reward_fn={type: accuracy, tolerence: 1}", ("tolerence", "tolerance")),
        ("output_dir=x", ("output_dir",)),
    ],
)
def test_what_is_wrong_is_told_when_the_configuration_is_read(
    tmp_path: Path, override: str, named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        load_config(write(tmp_path, CONFIG), [override])


def test_rewards_are_names_specs_or_functions_of_ones_own(tmp_path: Path) -> None:
    own = "def half(completions, **columns):\n    return [0.5 for _ in completions]\n"
    path = write(tmp_path, CONFIG, own__py=own)
    assert isinstance(rewards(load_config(path), "eval_reward_fn"), MathRewardFunction)
    both = ["method=grpo", "reward_fn=['own.py:half', {type: accuracy, tolerance: 0.1}]"]
    first, second = rewards(load_config(path, both), "reward_fn")
    assert first(["x"]) == [0.5]
    assert isinstance(second, MathRewardFunction)


@pytest.mark.slow
def test_a_run_trains_a_model_that_can_be_measured_and_gone_on_with(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "p", CONFIG))
    write_tiny_model(tmp_path / "p" / "tiny")
    plan = make_plan(load_config(path))
    assert plan.bound == {"steps": 4, "completions": 0}
    assert not own_runs.exists()
    assert main(["train", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], "val/loss" in found["metrics"]) == ("succeeded", True)
    folder = Path(found["run_dir"])
    assert (folder / "model" / "model.safetensors").is_file()
    assert json.loads((folder / "config.json").read_text())["kind"] == "fine-tuning"
    assert RunEntry.of(folder).state == "succeeded"
    assert main(["eval", path, "--run", "last", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["num_samples"], measured["model"]) == (2, str(folder / "model"))
    assert main(["train", path, "num_epochs=3", "--resume", "last", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["epoch"] == 3.0
