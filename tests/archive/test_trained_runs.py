"""Runs of `sharpen train` that no trainer of agents made: what is told of them, and the best of each."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharpen.cli import main
from sharpen.runs import RunFolder
from tests.archive.internals import RunEntry

from ..cli.config.test_fine_tuning import CONFIG as TUNING
from ..cli.config.test_simulator import CONFIG as SIMULATOR
from ..cli.projects import own_imports, write
from .run_scenes import write_lines

Text = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    with own_imports():
        yield tmp_path / "runs"


def shown(capsys: Text, *arguments: str) -> str:
    capsys.readouterr()
    assert main(["runs", *arguments]) == 0
    return capsys.readouterr().out


def test_a_run_of_a_simulator_is_told_compared_and_gives_its_best_policy(
    tmp_path: Path, runs: Path, capsys: Text
) -> None:
    from sharpen.rl import Trainer

    path = str(write(tmp_path / "project", SIMULATOR))
    for name in ("one", "two"):
        assert main(["train", path, "--name", name, "val_every_n_iters=1", "max_iters=2"]) == 0
    (first,) = runs.glob("*-one")
    entry = RunEntry.of(first)
    assert (entry.kind, entry.state, entry.algorithm, entry.agent) == ("simulator", "succeeded", "PPO", "Countdown")
    assert (entry.has_episodes, entry.reward_name, entry.reward) == (True, "val/reward", 3.0)
    told = shown(capsys, "show", "one")
    for words in ("simulator  Countdown", "train initial states  4", "episodes.jsonl"):
        assert words in told
    assert "no recorded settings differ" in shown(capsys, "compare", "one", "two")
    assert len(json.loads(shown(capsys, "--kind", "simulator", "--json"))) == 2
    shown(capsys, "best", "one", "--out", str(tmp_path / "out"))
    assert Trainer.get_policy_state_dict(tmp_path / "out" / "policy.pth")
    (part,) = json.loads((tmp_path / "out" / "best.json").read_text())["parts"]
    assert (part["metric"], part["value"]) == ("val/reward", 3.0)


@pytest.mark.parametrize("kind", ["simulator", "fine-tuning"])
def test_such_a_run_holds_its_lock_while_it_works(runs: Path, kind: str) -> None:
    folder = RunFolder.create(run_dir=runs / "run")
    folder.write_config({"kind": kind, "started": "2026-11-15T10:00:00+0000", "components": {}})
    assert (RunEntry.of(runs / "run").kind, RunEntry.of(runs / "run").state) == (kind, "running")
    folder.release()
    assert RunEntry.of(runs / "run").state == "killed"
    folder.write_result({"status": "failed", "error": "ValueError: no", "seconds": 2.0})
    entry = RunEntry.of(runs / "run")
    assert (entry.state, entry.seconds, entry.error_line) == ("failed", 2.0, "ValueError: no")


@pytest.mark.slow
def test_a_run_of_fine_tuning_is_told_and_gives_its_best_checkpoint(tmp_path: Path, runs: Path, capsys: Text) -> None:
    from ..llm.tiny_models import write_tiny_model

    path = str(write(tmp_path / "project", TUNING))
    write_tiny_model(tmp_path / "project" / "tiny")
    assert main(["train", path, "--name", "tuned", "learning_rate=0.1"]) == 0
    (folder,) = runs.iterdir()
    entry = RunEntry.of(folder)
    assert (entry.kind, entry.state, entry.algorithm, entry.model) == ("fine-tuning", "succeeded", "SFT", "tiny")
    told = shown(capsys, "show", "tuned")
    for words in ("train rows", "learning_rate", f"{folder / 'model'}\n"):
        assert words in told
    shown(capsys, "best", "tuned", "--out", str(tmp_path / "out"))
    (part,) = json.loads((tmp_path / "out" / "best.json").read_text())["parts"]
    assert (part["from"], part["metric"]) == (str(folder / "model"), "val/reward")
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    better = [{**line, "val/reward": 1.0} if line["step"] == 2 and "val/reward" in line else line for line in lines]
    write_lines(folder / "metrics.jsonl", better)
    shown(capsys, "best", "tuned", "--out", str(tmp_path / "earlier"))
    (part,) = json.loads((tmp_path / "earlier" / "best.json").read_text())["parts"]
    assert part["from"] == str(folder / "model" / "checkpoint-2")
