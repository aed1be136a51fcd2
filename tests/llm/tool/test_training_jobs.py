"""Jobs that really train: a tiny model, a few steps, in processes of their own."""

import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import DOCUMENTED_CALLS
from ..tiny_models import write_tiny_model
from .calls import Answer, Calls, end_jobs, wait_until
from .test_mcp_server import served

ROWS = [{"prompt": f"What is {each} + 1?", "completion": f"{each + 1}", "ground_truth": each + 1} for each in range(60)]
SFT: dict[str, Any] = {"algorithm": "sft", "model_name": "tiny", "dataset": "rows.jsonl", "precision": "fp32"}
GRPO: dict[str, Any] = SFT | {"algorithm": "grpo", "num_generations": 2, "max_new_tokens": 4, "max_steps": 1}

pytestmark = pytest.mark.timeout(600)  # every job loads torch and TRL anew, which takes long on a busy machine


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def base(tmp_path: Path, data_folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SHARPEN_DATA", str(data_folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "base"
    folder.mkdir()
    _copy(tiny_model, folder / "tiny")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    yield folder
    end_jobs(folder)


@pytest.fixture
def call(base: Path) -> Calls:
    return Calls(base)


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())


def always_raises(completions: list[Any], **columns: Any) -> list[float]:
    raise ZeroDivisionError("no reward today")


def length_of(completions: list[Any], **columns: Any) -> list[float]:
    return [float(len(str(each))) for each in completions]


def test_training_gives_numbers_and_prints_nothing(call: Calls, capfd: pytest.CaptureFixture[str]) -> None:
    answer = call("train", max_steps=2, use_lora=True, lora_r=2, logging_steps=1, save_steps=0, **SFT)
    assert (answer["status"], answer["state"], answer["steps"]) == ("success", "finished", 2), answer
    assert capfd.readouterr().out == ""
    loss = answer["final_metrics"]["loss"]
    assert isinstance(loss, float)
    assert answer["metrics"]["loss"] == loss
    assert answer["progress"] == {"step": 2, "total_steps": 2, "fraction": 1.0, "eta_seconds": None}
    assert answer["output_dir"] == str(call.base / "output" / "sft")
    assert answer["stopped_early"] is False
    models = {each["path"]: each["kind"] for each in call("list", kind="models")["models"]}
    assert models[answer["output_dir"]] == "adapter"
    again = call("status", job_id=answer["job_id"])
    assert again["final_metrics"] == answer["final_metrics"]
    assert {file.name for file in call.job(answer["job_id"]).folder.iterdir()} == {
        "job.json", "process.json", "status.json", "result.json", "log",
    }  # fmt: skip


@pytest.mark.slow
def test_the_documented_example_runs_as_written(
    base: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (base / "Qwen").mkdir()
    (base / "tiny").rename(base / "Qwen" / "Qwen3-0.6B")
    monkeypatch.chdir(base)
    names: dict[str, Any] = {}
    exec(DOCUMENTED_CALLS, names)
    for name, steps in (("sft", 3), ("grpo", 6)):
        answer = json.loads(names[f"{name}_result"])
        assert (answer["status"], answer["steps"]) == ("success", steps), answer
        assert (base / "output" / name / "adapter_model.safetensors").stat().st_size > 0
    assert capfd.readouterr().out == ""


def start_long(call: Calls) -> str:
    """A training of 60 steps with a checkpoint after each, which has taken three."""
    begun = call("train", batch_size=1, num_epochs=1, save_steps=1, logging_steps=1, wait=False, **SFT)
    assert begun["status"] == "success", begun
    output = call.base / "output" / "sft"
    wait_until(lambda: (output / "checkpoint-3").exists() or not call.job(begun["job_id"]).is_live(), 120)
    assert call.job(begun["job_id"]).state() == "running", call("status")
    return str(begun["job_id"])


def resume(call: Calls) -> Answer:
    return call("train", batch_size=1, num_epochs=1, save_steps=1, logging_steps=1, resume=True, **SFT)


@pytest.mark.slow
def test_a_killed_training_goes_on_with_resume(call: Calls) -> None:
    job_id = start_long(call)
    os.kill(call.pid(job_id), signal.SIGKILL)
    wait_until(lambda: not call.job(job_id).is_live())
    died = call("status", job_id=job_id)
    assert (died["state"], died["error"]["type"]) == ("died", "JobDied")
    resumed = resume(call)
    assert (resumed["status"], resumed["steps"], resumed["stopped_early"]) == ("success", 60, False), resumed
    assert "checkpoint-" in resumed["resumed_from"]


@pytest.mark.slow
def test_a_stopped_training_keeps_its_model_and_goes_on_with_resume(call: Calls) -> None:
    job_id = start_long(call)
    progress = call("status", job_id=job_id)["progress"]
    assert progress["total_steps"] == 60
    stopped = call("stop", job_id=job_id)
    assert (stopped["state"], stopped["was_killed"], stopped["stopped_early"]) == ("stopped", False, True), stopped
    assert 3 <= stopped["steps"] < 60
    assert (call.base / "output" / "sft" / "model.safetensors").exists()
    assert (call.base / "output" / "sft" / f"checkpoint-{stopped['steps']}").exists()
    resumed = resume(call)
    assert resumed["steps"] == 60
    assert resumed["resumed_from"].endswith(f"checkpoint-{stopped['steps']}")


@pytest.mark.slow
def test_a_reward_that_raises_is_named(call: Calls) -> None:
    call.tool.register_reward_function("moody", always_raises)
    answer = call("train", reward="moody", **GRPO)
    assert (answer["status"], answer["state"]) == ("error", "failed")
    assert answer["error"]["type"] == "RewardError"
    assert "'always_raises'" in answer["error"]["message"]
    assert "no reward today" in answer["error"]["message"]


@pytest.mark.slow
def test_rewards_registered_and_created_judge_together(call: Calls) -> None:
    call.tool.register_reward_function("length", length_of)
    call("create_reward", reward_type="length_penalty", name="short", base="length", max_length=1, penalty_weight=0.5)
    answer = call("train", reward=["length", "short", "accuracy"], logging_steps=1, save_steps=0, **GRPO)
    assert answer["status"] == "success", answer
    names = " ".join(answer["final_metrics"])
    for name in ("length_of/", "length_of_length_penalty/", "accuracy/"):
        assert f"rewards/{name}" in names


@pytest.mark.slow
def test_a_full_disk_ends_a_training_with_its_reason(call: Calls) -> None:
    weights = (call.base / "tiny" / "model.safetensors").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (weights // 2, before[1]))
    try:
        answer = call("train", max_steps=1, **SFT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (answer["status"], answer["state"]) == ("error", "failed"), answer
    assert "too large" in answer["error"]["message"].lower()
    left = [path.name for path in (call.base / "output" / "sft").rglob("*") if path.is_file()]
    assert not [name for name in left if name.endswith((".safetensors", ".tmp"))]


@pytest.mark.slow
def test_dpo_learns_from_pairs(call: Calls) -> None:
    pairs = [{"prompt": "1 + 1?", "chosen": "2", "rejected": str(each)} for each in range(4)]
    call.tool.register_dataset("pairs", pairs)
    answer = call("train", algorithm="dpo", model_name="tiny", dataset="pairs", max_steps=1, logging_steps=1, beta=0.2)
    assert answer["status"] == "success", answer
    assert isinstance(answer["final_metrics"]["rewards/margins"], float)


@pytest.mark.slow
def test_validation_judges_the_answers_of_the_model(call: Calls) -> None:
    asked = {"eval_dataset": "gsm8k", "eval_reward": "accuracy", "max_new_tokens": 4, "eval_max_samples": 1}
    answer = call("train", max_steps=1, save_steps=0, **asked, **SFT)
    assert answer["status"] == "success", answer
    assert {"val/loss", "val/accuracy", "val/reward"} <= set(answer["final_metrics"])


@pytest.mark.slow
def test_an_evaluation_gives_the_figures_of_evaluate(call: Calls) -> None:
    call.tool.register_reward_function("length", length_of)
    asked = {"dataset": "rows.jsonl", "max_samples": 4, "max_new_tokens": 4, "num_examples": 1}
    answer = call("evaluate", model_path="tiny", reward="length", **asked)
    assert (answer["status"], answer["num_samples"]) == ("success", 4), answer
    assert isinstance(answer["accuracy"], float)
    assert isinstance(answer["mean_reward"], float)
    low, high = answer["accuracy_interval"]
    assert 0 <= low <= answer["accuracy"] <= high <= 1
    assert set(answer["examples"]) == {"right", "wrong"}
    begun = call("evaluate", model_path="tiny", reward="length", wait=False, **asked)
    wait_until(lambda: not call.job(begun["job_id"]).is_live(), 120)
    later = call("status", job_id=begun["job_id"])
    assert (later["state"], later["mean_reward"]) == ("finished", answer["mean_reward"])


@pytest.mark.slow
async def test_a_client_of_mcp_waits_and_sees_progress(base: Path, data_folder: Path) -> None:
    told: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)
        assert total == 60

    async with served(base, data_folder) as client:
        asked = {"batch_size": 1, "num_epochs": 1, "save_steps": 1, **SFT}
        result = await client.session.call_tool("train", asked, progress_callback=note)
        assert result.structuredContent is not None
        assert result.structuredContent["steps"] == 60
        assert told == sorted(told)
        assert len(told) > 1
