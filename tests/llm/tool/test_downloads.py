"""`RLTrainingTool()` fetches models and data by their hub names: the real client libraries, a hub on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import DOCUMENTED_CALLS, PROBLEMS
from ..hub_stub import Hub, running_hub
from ..tiny_models import write_tiny_model
from .calls import end_jobs, wait_until

MODEL, DATA = "Qwen/Qwen3-0.6B", "openai/gsm8k"

ONE_CALL = """
import sys
from sharpen.llm import RLTrainingTool

print(RLTrainingTool(**eval(sys.argv[2])).run(sys.argv[1]))
"""
SMALL = {"action": "train", "algorithm": "sft", "model_name": MODEL, "max_steps": 1, "batch_size": 2}


class Scene:
    """A hub, an empty cache, and a folder in which programs run."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.folder, self.home = hub, folder, folder / "home"
        self.base = folder / "base"
        self.base.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.hub.environment(self.home), "OMP_NUM_THREADS": "1", "SHARPEN_DATA": ""}

    def run(self, code: str, *arguments: str) -> tuple[list[dict[str, Any]], str]:
        """The answers that a program printed, and what it said on standard error."""
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=self.base,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def call(self, parameters: dict[str, Any], **options: Any) -> tuple[dict[str, Any], str]:
        (answer,), told = self.run(ONE_CALL, json.dumps(parameters), repr(options))
        return answer, told

    def half_done(self) -> list[Path]:
        """What must not be left by a download that did not come to its end."""
        return [*self.home.rglob("*.incomplete"), *self.base.glob("output*")]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    from datasets import Dataset

    model = write_tiny_model(tmp_path / "model")
    data = tmp_path / "gsm8k"
    for split, rows in (("train", PROBLEMS), ("test", PROBLEMS[:1])):
        (data / "main").mkdir(parents=True, exist_ok=True)
        Dataset.from_list(rows).to_parquet(str(data / "main" / f"{split}-00000-of-00001.parquet"))
    files = "".join(f"  - split: {split}\n    path: main/{split}-*\n" for split in ("train", "test"))
    (data / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n")
    with running_hub() as hub:
        hub.add("models", MODEL, model)
        hub.add("datasets", DATA, data)
        made = Scene(hub, tmp_path)
        yield made
        end_jobs(made.base)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_recommended_example_of_the_document_runs(scene: Scene) -> None:
    (sft, grpo), told = scene.run(DOCUMENTED_CALLS + "print(sft_result)\nprint(grpo_result)\n")

    assert (sft["status"], grpo["status"]) == ("success", "success"), (sft, grpo)
    assert (sft["steps"], grpo["steps"]) == (3, 6)  # four rows, three times, in batches of four and two
    assert (scene.base / "output" / "grpo" / "adapter_config.json").is_file()
    model, data = (line for line in told.splitlines() if "downloading" in line)
    size = sum(map(len, scene.hub.repositories["models", MODEL].files.values()))
    assert sft["download"] == {"files": 6, "size_bytes": size}
    assert MODEL in model
    assert DATA in data
    assert "download" not in grpo  # its base is in the cache by then


def test_nothing_is_fetched_where_that_is_not_allowed(scene: Scene) -> None:
    answer, _ = scene.call(SMALL, allow_download=False)

    assert (answer["status"], answer["error"]["problems"][0]["key"]) == ("error", "model_name")
    assert "allow_download" in answer["error"]["message"]
    assert scene.hub.requests == []
    assert scene.half_done() == []


def test_a_model_that_the_hub_does_not_have_is_an_answer_before_any_job(scene: Scene) -> None:
    answer, _ = scene.call({**SMALL, "model_name": "Qwen/Qwen3-0.6"})

    assert (answer["status"], answer["error"]["type"]) == ("error", "ModelError")
    assert "Qwen/Qwen3-0.6" in answer["error"]["message"]
    assert not list(scene.base.glob(".sharpen/jobs/*"))
    assert scene.half_done() == []


def test_a_data_set_that_breaks_off_is_an_answer_that_leaves_nothing(scene: Scene) -> None:
    scene.hub.broken.add("main/train-00000-of-00001.parquet")

    answer, _ = scene.call({"action": "load_dataset"})

    assert (answer["status"], answer["error"]["type"]) == ("error", "DatasetError")
    assert DATA in answer["error"]["message"]
    assert scene.half_done() == []
    scene.hub.broken.clear()
    answer, told = scene.call({"action": "load_dataset"})
    assert (answer["status"], answer["size"]) == ("success", len(PROBLEMS))
    assert "downloading" in told


def test_a_model_that_breaks_off_is_an_error_and_no_half_model_is_used(scene: Scene) -> None:
    scene.hub.broken.add("model.safetensors")

    answer, _ = scene.call(SMALL)

    assert (answer["status"], answer["error"]["type"]) == ("error", "ModelError"), answer
    assert "try again" in answer["error"]["message"]
    assert scene.half_done() == []
    answer, _ = scene.call(SMALL, allow_download=False)  # the other files are there, and that is not enough
    assert answer["error"]["problems"][0]["key"] == "model_name"


@pytest.mark.slow
def test_a_job_that_is_killed_while_it_downloads_can_be_called_again(scene: Scene) -> None:
    scene.hub.held.add("model.safetensors")
    started, _ = scene.call({**SMALL, "wait": False})
    assert started["download"]["files"] == 6
    assert scene.hub.holding.wait(60)
    process = json.loads((scene.base / ".sharpen" / "jobs" / started["job_id"] / "process.json").read_text())
    os.kill(process["pid"], signal.SIGKILL)
    scene.hub.held.clear()
    scene.hub.released.set()
    status: dict[str, Any] = {}

    def has_ended() -> bool:
        status.update(scene.call({"action": "status"})[0])
        return status["state"] not in ("starting", "running")

    wait_until(has_ended)
    assert (status["state"], status["error"]["type"]) == ("died", "JobDied")
    for left in scene.home.rglob("*.incomplete"):
        os.utime(left, (time.time() - 600,) * 2)

    again, _ = scene.call({**SMALL, "output_dir": "./again"})

    assert again["status"] == "success", again
    assert 1 <= again["download"]["files"] <= 6
    assert scene.half_done() == []
