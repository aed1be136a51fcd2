"""Checkpoint folders: which are found, kept, removed and set aside."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from tests.errors import raises
from tests.llm.internals import (
    STATE_FILE,
    check_apart,
    checkpoints,
    find_checkpoint,
    keep_newest,
    remove_half_written,
    set_aside,
    write_checkpoint,
)


def write(folder: Path, *steps: int) -> list[Path]:
    return [
        write_checkpoint(folder, step, {"step": step}, write_model=lambda path: (path / "config.json").touch())
        for step in steps
    ]


def names(folder: Path) -> list[str]:
    return [path.name for path in checkpoints(folder)]


@pytest.mark.parametrize("resume", [1, 0.5, ["out"], b"out"])
def test_what_is_no_path_is_refused(tmp_path: Path, resume: Any) -> None:
    with pytest.raises(ConfigError):
        find_checkpoint(tmp_path, resume)


def test_none_is_no_wish_to_resume(tmp_path: Path) -> None:
    write(tmp_path, 2)
    assert find_checkpoint(tmp_path, None) is None


def test_a_checkpoint_that_is_removed_is_never_there_by_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, **options: Any) -> None:
        (path / "config.json").unlink()
        raise KeyboardInterrupt

    write(tmp_path, 2, 4)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            keep_newest(tmp_path, 1)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    remove_half_written(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


def test_going_on_from_an_older_one_sets_the_newer_ones_aside(tmp_path: Path) -> None:
    older, *_ = write(tmp_path, 2, 4, 6)
    set_aside(tmp_path, resumed=older)
    assert (names(tmp_path), names(tmp_path / "earlier")) == (["checkpoint-2"], ["checkpoint-4", "checkpoint-6"])


def test_going_on_from_another_folder_sets_all_aside(tmp_path: Path) -> None:
    write(tmp_path / "out", 2, 4)
    (other,) = write(tmp_path / "other", 9)
    set_aside(tmp_path / "out", resumed=other)
    assert (names(tmp_path / "out"), names(tmp_path / "out" / "earlier")) == ([], ["checkpoint-2", "checkpoint-4"])


def test_going_on_from_one_that_was_set_aside_keeps_it(tmp_path: Path) -> None:
    write(tmp_path, 2, 4)
    set_aside(tmp_path, resumed=None)
    write(tmp_path, 4)
    set_aside(tmp_path, resumed=tmp_path / "earlier" / "checkpoint-4")
    assert (tmp_path / "earlier" / "checkpoint-4" / STATE_FILE).is_file()
    assert (names(tmp_path), names(tmp_path / "earlier-2")) == ([], ["checkpoint-4"])


@pytest.mark.parametrize("place", ["checkpoint-2", "earlier/checkpoint-2", "earlier-2/checkpoint-2"])
def test_a_model_among_the_checkpoints_is_refused(tmp_path: Path, place: str) -> None:
    with raises(ConfigError, "output_dir"):
        check_apart(tmp_path, tmp_path / place)


@pytest.mark.parametrize("place", ["base", "checkpoint-best", "../model"])
def test_a_model_elsewhere_is_none_of_them(tmp_path: Path, place: str) -> None:
    check_apart(tmp_path / "out", (tmp_path / "out" / place).resolve())
