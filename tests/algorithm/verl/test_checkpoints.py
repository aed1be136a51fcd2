"""The checkpoints of a run on disk."""

from pathlib import Path

import pytest

from sharpen.errors import ConfigError
from tests.algorithm.internals import StepFolders, read_state, resumable_state
from tests.errors import raises


def put(folder: Path) -> None:
    (folder / "weights").write_text("w")


def test_what_is_called_a_step_is_whole(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)
    with pytest.raises(RuntimeError):
        folders.write(1, {"step": 1}, _broken, has_model=False)
    assert list(tmp_path.iterdir()) == []
    folders.write(1, {"step": 1}, put, has_model=False)
    with pytest.raises(RuntimeError):
        folders.write(1, {"step": 1}, _broken, has_model=True)
    assert folders.steps() == [1]
    assert read_state(folders.path(1)) == {"step": 1, "has_model": False}
    assert (folders.path(1) / "weights").read_text() == "w"


def _broken(folder: Path) -> None:
    (folder / "half").write_text("")
    raise RuntimeError("disk full")


def put_all(folder: Path) -> None:
    for name in ("policy", "critic", "model"):
        (folder / name).mkdir()
        (folder / name / "weights").write_text("w" * 1000)


def test_by_default_the_last_stays_whole_and_the_best_as_a_model(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)
    for step in range(1, 6):
        folders.write(step, {"step": step}, put_all, has_model=True)
        folders.tidy(step, best=min(step, 3))
    assert folders.steps() == [3, 5]
    assert sorted(path.name for path in folders.path(3).iterdir()) == ["model", "state.json"]
    assert (folders.path(5) / "policy").exists()
    assert resumable_state(folders.path(5))["step"] == 5
    with raises(ConfigError, "step_3/model"):
        resumable_state(folders.path(3))
    assert "step_3 (model 1.0 kB); step_5 (model 1.0 kB, to resume from " in folders.describe()


def test_models_of_an_earlier_run_in_the_folder_stay(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)
    for step in range(1, 6):
        folders.write(step, {"step": step}, put_all, has_model=step != 1)
    folders.tidy(5, best=3, after=2)
    assert folders.steps() == [2, 3, 5]
    assert resumable_state(folders.path(2))["step"] == 2


def test_a_kill_while_the_rest_of_a_best_checkpoint_is_removed_is_repaired(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)
    folders.write(1, {"step": 1, "is_model_only": True}, put_all, has_model=True)  # said, and not yet done
    folders.mend()
    assert sorted(path.name for path in folders.path(1).iterdir()) == ["model", "state.json"]


def test_all_models_stay_where_that_is_asked_for(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path, keep=-1)
    for step in range(1, 7):
        folders.write(step, {}, put, has_model=step % 2 == 0)
        folders.tidy(step)
    assert folders.steps() == [2, 4, 6]
    folders.write(7, {}, put, has_model=False)
    folders.tidy(7)
    assert folders.steps() == [2, 4, 6, 7]
    assert folders.latest_model() == tmp_path / "step_6" / "model"


def test_a_number_of_models_to_keep_counts_the_newest(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path, keep=2)
    for step in range(1, 5):
        folders.write(step, {}, put, has_model=True)
        folders.tidy(step)
    assert folders.steps() == [3, 4]


def test_states_for_resuming_take_a_small_share_of_the_time(tmp_path: Path) -> None:
    now = [0.0]
    folders = StepFolders(tmp_path, clock=lambda: now[0])
    assert folders.is_due()

    def slow(folder: Path) -> None:
        now[0] += 2.0

    folders.write(1, {}, slow, has_model=False)
    assert not folders.is_due()
    now[0] += 39.0
    assert not folders.is_due()
    now[0] += 2.0
    assert folders.is_due()


def test_a_folder_without_a_checkpoint_says_what_is_beside_it(tmp_path: Path) -> None:
    StepFolders(tmp_path).write(3, {}, put, has_model=False)
    with raises(ConfigError, 3):
        read_state(tmp_path / "step_9")


def test_what_a_killed_process_left_is_mended(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)
    for step in (1, 2):
        folders.write(step, {"step": step}, put, has_model=False)
    (tmp_path / "step_1").rename(tmp_path / ".step_1.old")  # killed before the new one had its name
    for name in (".step_2.old", ".step_3.new", ".step_4.gone"):
        (tmp_path / name).mkdir()
    folders.mend()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1", "step_2"]


def test_later_steps_of_another_run_are_set_aside(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)
    for step in (1, 2, 3):
        folders.write(step, {}, put, has_model=True)
    assert folders.set_aside(later_than=3) is None
    assert folders.set_aside(later_than=1) == tmp_path / "earlier_1"
    assert folders.steps() == [1]
    assert StepFolders(tmp_path / "earlier_1").steps() == [2, 3]
    assert folders.set_aside(later_than=0) == tmp_path / "earlier_2"
