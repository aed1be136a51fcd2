"""Which run is the last one, and what is said when it goes on with other values."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharpen.cli import main
from tests.cli.projects import CONFIG, own_imports, write

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    with own_imports():
        yield tmp_path / "runs"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two configurations in one folder."""
    first = write(tmp_path / "project")
    second = first.with_name("other.yaml")
    second.write_text(CONFIG)
    return str(first), str(second)


def test_the_last_run_is_of_the_same_file(files: tuple[str, str], own_runs: Path, capsys: Said) -> None:
    for file, name in zip(files, ("one", "two"), strict=True):
        assert main(["train", file, "--name", name]) == 0
    capsys.readouterr()
    assert main(["train", files[0], "--resume", "last"]) == 0
    told = capsys.readouterr()
    assert "-one: succeeded" in told.out
    assert " -> " not in told.err
    assert len(list(own_runs.iterdir())) == 2


def test_a_run_of_another_file_is_not_taken_silently(files: tuple[str, str], own_runs: Path, capsys: Said) -> None:
    assert main(["train", files[1], "--name", "two"]) == 0
    capsys.readouterr()
    assert main(["train", files[0], "--resume", "last"]) == 3
    assert "'config.yaml'" in capsys.readouterr().err
    assert main(["train", files[0], "--resume", "two"]) == 0  # named, so meant
    said = capsys.readouterr().err
    assert repr(files[0]) in said
    assert repr(files[1]) in said


def test_values_that_changed_are_said(files: tuple[str, str], own_runs: Path, capsys: Said) -> None:
    assert main(["train", files[0], "algorithm.n_epochs=2"]) == 0
    (folder,) = own_runs.iterdir()
    capsys.readouterr()
    assert main(["train", files[0], "strategy.n_runners=2", "--resume", "last"]) == 0
    said = capsys.readouterr().err
    assert folder.name in said
    assert "algorithm.n_epochs: 2 -> (not set)" in said
    assert "strategy.n_runners: 1 -> 2" in said
    assert main(["train", str(folder / "train.yaml"), "--resume", "last"]) == 0  # what the run kept is its own file
    said = capsys.readouterr().err
    assert repr(files[0]) not in said
    assert " -> " not in said


def test_a_run_that_goes_on_keeps_its_name(files: tuple[str, str], own_runs: Path, capsys: Said) -> None:
    assert main(["train", files[0], "--resume", "last", "--name", "zz"]) == 2
    said = capsys.readouterr().err
    assert "--name" in said
    assert "--resume" in said


def test_a_supervisor_goes_on_with_what_is_unfinished_and_begins_anew_after_an_end(
    files: tuple[str, str], own_runs: Path, capsys: Said
) -> None:
    for count in (1, 2):  # the first has succeeded when the second begins
        assert main(["train", files[0], "--resume", "unfinished"]) == 0
        assert len(list(own_runs.iterdir())) == count
    newest = max(own_runs.iterdir())
    (newest / "result.json").unlink()  # as if it had been killed
    assert main(["train", files[0], "--resume", "unfinished"]) == 0
    assert "resuming" in capsys.readouterr().err
    assert len(list(own_runs.iterdir())) == 2
    assert (newest / "result.json").is_file()
