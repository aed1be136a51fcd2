"""`sharpen eval`: an agent, a policy and a model, measured."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharpen.cli import main
from tests.cli.projects import CONFIG, own_imports, write


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    with own_imports():
        yield


def measure(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["eval", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_agent_is_measured_on_the_data_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "project"))
    found = measure(capsys, path, "--repeat", "2")
    assert (found["rollouts"], found["reward"]["tasks"]) == (6, 3)
    assert found["reward"]["mean"] == pytest.approx(2 / 3)
    assert (found["failed"], found["cost"]) == (0, None)
    assert measure(capsys, path, "--dataset", "train")["reward"]["mean"] == 0.5


def test_people_read_mean_interval_failures_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(write(tmp_path / "project")), "agent=agent.py:failing"]) == 0
    told = capsys.readouterr().out
    assert "mean reward 0 (95 %: 0 to 0.5615) on 3 tasks of the val data set" in told
    assert "failed: 3" in told
    assert "cost: unknown" in told


def test_the_prompts_that_a_run_published_take_the_place_of_those_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    polite = """
        from sharpen import PromptTemplate, algo
        @algo
        async def polite(store):
            await store.add_resources({"prompt": PromptTemplate("{n}, please")})
    """
    prompted = CONFIG.replace("plain", "prompted") + '    initial_resources: {prompt: "{n}"}\n'
    path = str(write(tmp_path / "project", prompted, polite__py=polite))
    assert main(["train", path, "algorithm=polite.py:polite"]) == 0
    capsys.readouterr()
    assert measure(capsys, path)["reward"]["mean"] == 0.0
    found = measure(capsys, path, "--run", "last")
    assert found["reward"]["mean"] == 1.0
    assert found["prompts_of"].endswith("-polite")


INTERRUPTED = """
    import asyncio, os, signal
    async def agent(task):
        os.kill(os.getpid(), signal.NAME)
        await asyncio.sleep(60)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_program_learns_where_an_interrupted_measurement_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    path = write(tmp_path / "project", own__py=INTERRUPTED.replace("NAME", name))
    assert main(["eval", str(path), "agent=own.py:agent", "--json"]) == code
    (folder,) = (tmp_path / "runs").iterdir()
    found = json.loads(capsys.readouterr().out)
    assert found == {"status": "interrupted", "dataset": "val", "run_dir": os.fspath(folder)}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["val_dataset=[]"], 2, "val_dataset"),
        (["val_dataset=null"], 2, "has no val_dataset"),
        (["--run", "nothing"], 3, "there is no run 'nothing'"),
        (["--run", "last"], 3, "kind 'agents'"),
        (["--dataset", "test"], 2, "--dataset test"),
        (["--repeat", "0"], 2, "--repeat: '0'"),
    ],
)
def test_what_cannot_be_measured_is_told(
    tmp_path: Path, arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(write(tmp_path / "project")), *arguments]) == code
    assert told in capsys.readouterr().err
