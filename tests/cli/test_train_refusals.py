"""What `sharpen train` refuses before anything is started."""

from pathlib import Path

import pytest

from sharpen.cli import main
from tests.cli.projects import own_imports, write


@pytest.mark.parametrize("command", [["train"], ["train", "--dry-run"], ["algorithm"]])
@pytest.mark.parametrize("data", ["", "train_dataset: [{n: 1}]\n"])
def test_a_configuration_without_an_algorithm_does_not_wait_for_ever(
    tmp_path: Path, data: str, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    path = write(tmp_path, f"agent: agent.py:plain\n{data}")
    with own_imports():
        assert main([command[0], str(path), *command[1:]]) == 2
    said = capsys.readouterr().err
    assert "config.yaml has no algorithm" in said
    assert "algorithm: Baseline" in said
    assert "--dev" in said
    assert not (tmp_path / "runs").exists()
