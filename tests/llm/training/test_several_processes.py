"""Fine-tuning under `accelerate launch`: several processes learn what one learns, and the first alone writes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.llm import SFTTrainerWrapper
from tests.errors import raises
from tests.execution.processes import REPOSITORY
from tests.llm.internals import Processes, processes, run_length

from .scenes import metric_lines, sft_rows, weights_of

PROGRAM = Path(__file__).parent / "programs" / "launched.py"
SFT: dict[str, Any] = {"num_epochs": 2, "learning_rate": 1e-3, "logging_steps": 1, "precision": "fp32"}


def launch(algorithm: str, **options: Any) -> str:
    """Run two processes on the CPU: accelerate starts several of them only as if they were for GPUs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, *launcher, "--main_process_port", str(port), PROGRAM, algorithm, json.dumps(options)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def results(folder: Path) -> list[dict[str, Any]]:
    """What the processes were told."""
    return [json.loads(folder.with_suffix(f".rank{rank}.json").read_text("utf-8")) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_processes_learn_what_one_does_also_when_they_stop_and_go_on(tiny_model: Path, tmp_path: Path) -> None:
    options = {**SFT, "model_name": str(tiny_model), "batch_size": 2, "output_dir": str(tmp_path / "two")}
    SFTTrainerWrapper(
        dataset=sft_rows(16),
        eval_dataset=sft_rows(4),
        **{**options, "batch_size": 4, "output_dir": tmp_path / "one"},
    ).train()
    said = launch("sft", **options, stop_after=3)
    assert said.count("step 3/8") == 1
    assert [each["steps"] for each in results(tmp_path / "two")] == [3, 3]
    assert [each.name for each in (tmp_path / "two").glob("checkpoint-*")] == ["checkpoint-3"]
    launch("sft", **options, resume=True)
    first, second = results(tmp_path / "two")
    assert (first["steps"], first["resumed_from"]) == (8, str(tmp_path / "two" / "checkpoint-3"))
    assert first["final_metrics"] == second["final_metrics"]
    found, wanted = metric_lines(tmp_path / "two"), metric_lines(tmp_path / "one")
    assert len(found) == len(wanted) == 8
    for mine, its in zip(found, wanted, strict=True):
        assert mine == pytest.approx(its, rel=1e-4)
    ours, theirs = weights_of(tmp_path / "two"), weights_of(tmp_path / "one")
    assert max((ours[name] - each).abs().max().item() for name, each in theirs.items()) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_grpo_samples_in_both_processes_and_writes_in_one(tiny_model: Path, tmp_path: Path) -> None:
    options = {"num_epochs": 1, "learning_rate": 1e-3, "logging_steps": 1, "precision": "fp32", "save_steps": 1}
    sizes = {"batch_size": 2, "num_generations": 2, "max_new_tokens": 6, "gradient_accumulation_steps": 1}
    said = launch("grpo", **options, **sizes, model_name=str(tiny_model), output_dir=str(tmp_path / "two"))
    lines = metric_lines(tmp_path / "two")
    assert len(lines) == 2  # 8 prompts, 4 in each step
    assert said.count("step 1/2") == 1
    assert all(0 <= line["reward"] <= 1 for line in lines)
    first, second = results(tmp_path / "two")
    assert first["final_metrics"]["reward"] == second["final_metrics"]["reward"]
    assert sorted(each.name for each in (tmp_path / "two").glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    assert not list((tmp_path / "two").glob(".*"))


def test_the_environment_tells_which_process_this_is(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    assert processes() == Processes(1, 0, 0)
    assert processes().device("cuda") == "cuda"
    settings = SFTTrainerWrapper(str(tiny_model), sft_rows(16), batch_size=2, num_epochs=1).settings
    assert run_length(settings, 16).steps == 8
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert processes() == Processes(4, 3, 1)
    assert not processes().is_first
    assert (processes().device("cuda"), processes().device("cpu")) == ("cuda:1", "cpu")
    assert run_length(settings, 16).steps == 2
    monkeypatch.setenv("WORLD_SIZE", "many")
    with raises(ConfigError, "WORLD_SIZE", "many"):
        processes()


def test_a_launcher_that_divides_the_model_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    wrapper = SFTTrainerWrapper(str(tiny_model), sft_rows(4), output_dir=tmp_path / "out")
    with raises(ConfigError, "ACCELERATE_USE_FSDP", "strategy=fsdp"):
        wrapper.train()
    assert not (tmp_path / "out").exists()
