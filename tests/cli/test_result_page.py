"""What a run says at its end when its rollouts came to nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharpen.cli import main
from tests.cli.projects import own_imports, write

SILENT = """
    from sharpen import rollout


    @rollout
    def silent(task):
        return None


    @rollout
    def mixed(task):
        if task["n"] < 5:
            raise ValueError("n is too small")
        if task["n"] == 5:
            raise KeyError("n")
        return 1.0
"""
Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    with own_imports():
        yield tmp_path / "runs"


@pytest.fixture
def config(tmp_path: Path) -> str:
    return str(write(tmp_path / "project", odd__py=SILENT))


@pytest.mark.parametrize("command", ["train", "eval"])
def test_that_every_rollout_failed_is_said_first_with_the_reason_and_one_to_look_at(
    command: str, config: str, own_runs: Path, capsys: Said
) -> None:
    main([command, config, "agent=agent.py:failing", "rollout_config={max_attempts: 1}"])
    lines = capsys.readouterr().out.splitlines()
    (folder,) = own_runs.iterdir()
    start = 1 if command == "train" else 0
    count = 5 if command == "train" else 3
    assert f"all {count} rollouts failed" in lines[start]
    assert lines[start].endswith(": RuntimeError: it was not to be")
    _, _, _, rollout_id, *rest = lines[start + 1].split()
    assert rest == ["--run", folder.name]
    assert main(["rollouts", "show", rollout_id, "--run", folder.name]) == 0
    assert "it was not to be" in capsys.readouterr().out


def test_the_most_common_reason_is_told_of_many_failures(config: str, capsys: Said) -> None:
    tasks = "train_dataset=[{n: 1}, {n: 2}, {n: 5}, {n: 6}]"
    main(["train", config, "agent=odd.py:mixed", tasks, "val_dataset=null", "rollout_config={max_attempts: 1}"])
    told = capsys.readouterr().out
    assert "3 of 4 rollouts failed" in told.splitlines()[1]
    assert told.splitlines()[1].endswith(": ValueError: n is too small")
    assert "--status failed" in told
    main(["train", config, "agent=odd.py:mixed", tasks, "val_dataset=null", "--json"])
    assert json.loads(capsys.readouterr().out)["failures"]["reason"] == "ValueError: n is too small"


def test_rollouts_without_rewards_are_told(config: str, capsys: Said) -> None:
    main(["train", config, "agent=odd.py:silent"])
    assert "no rollout has a reward" in capsys.readouterr().out.splitlines()[1]


def test_a_good_run_has_no_such_words(config: str, capsys: Said) -> None:
    main(["train", config])
    told = capsys.readouterr().out
    assert "rollouts failed" not in told
    assert "no rollout" not in told
