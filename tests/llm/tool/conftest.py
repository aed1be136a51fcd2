"""What the tests of the training tool share: a base folder, and a tool on it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .calls import Calls, end_jobs
from .waiting_rewards import WaitingReward


@pytest.fixture
def base(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A base folder with data, and with a folder that passes for a model until somebody loads it."""
    monkeypatch.setenv("SHARPEN_DATA", str(data_folder))
    folder = tmp_path / "base"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder / "model" / "model.safetensors").touch()
    rows = [{"question": f"What is {each} + 1?", "answer": f"It is {each + 1}.\n#### {each + 1}"} for each in range(8)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    yield folder
    end_jobs(folder)


@pytest.fixture
def call(base: Path) -> Calls:
    calls = Calls(base, allow_download=False)
    calls.tool.register_reward_function("waiting", WaitingReward())
    return calls
