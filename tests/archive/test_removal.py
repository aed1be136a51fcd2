"""Removing runs."""

import os
from pathlib import Path

import pytest

from sharpen.errors import ConfigError, RunError, UnknownIdError
from sharpen.runs import RunFolder
from sharpen.store import SQLiteStore
from tests.archive.internals import RunCatalog, RunEntry, remove_run
from tests.errors import raises
from tests.runs.internals import served

from .run_scenes import another_writer, dev_run, simulator_run, tuned_run, write_json, write_lines


def test_a_run_is_removed_with_everything_in_it(runs: Path) -> None:
    remove_run(RunEntry.of(dev_run(runs / "one")))
    assert list(runs.iterdir()) == []


def test_a_running_run_stays_as_it_is(runs: Path) -> None:
    folder = RunFolder.create(run_dir=runs / "one")
    folder.write_config({"components": {}})
    entry = RunEntry.of(folder.path)
    with raises(RunError, "one"):
        remove_run(entry)
    folder.release()
    before = RunEntry.of(folder.path)
    again = RunFolder.open(folder.path)  # begun after somebody looked
    with pytest.raises(RunError):
        remove_run(before)
    again.release()
    remove_run(before)
    assert not folder.path.exists()


def test_a_run_whose_metrics_grow_stays(runs: Path) -> None:
    entry = RunEntry.of(simulator_run(runs / "sim", status=None))
    with pytest.raises(RunError):
        remove_run(entry)
    write_lines(runs / "sim" / "metrics.jsonl", [{"step": 1, "time": 100.0, "reward": 1.0}])
    remove_run(entry)
    assert not (runs / "sim").exists()


def test_what_is_no_run_any_more_is_refused(runs: Path) -> None:
    entry = RunEntry.of(simulator_run(runs / "sim"))
    (runs / "sim" / "metrics.jsonl").unlink()
    (runs / "sim" / "thesis.txt").write_text("years of work")
    with pytest.raises(UnknownIdError):
        remove_run(entry)
    assert (runs / "sim" / "thesis.txt").exists()


def test_a_folder_that_may_hold_other_things_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = simulator_run(tmp_path / "project")
    with pytest.raises(ConfigError):
        remove_run(RunEntry.of(project))
    run = tuned_run(tmp_path / "tuned")
    (run / ".git").mkdir()
    with pytest.raises(ConfigError):
        remove_run(RunEntry.of(run))
    (run / ".git").rmdir()
    monkeypatch.chdir(run)
    with pytest.raises(ConfigError):
        remove_run(RunEntry.of(run))
    monkeypatch.chdir(tmp_path)
    remove_run(RunEntry.of(run))
    assert project.exists()
    assert not run.exists()


def test_a_store_file_takes_nothing_else_with_it(tmp_path: Path) -> None:
    run = dev_run(tmp_path / "run")
    alone = tmp_path / "folder" / "store.db"
    alone.parent.mkdir()
    (run / "store.db").rename(alone)
    (alone.parent / "notes.txt").write_text("mine")
    os.utime(alone, (100, 100))
    with pytest.raises(ConfigError):
        remove_run(RunEntry.of(alone))
    assert alone.exists()


def test_a_store_that_another_process_has_open_stays_however_idle_it_is(runs: Path) -> None:
    path = runs / "shared" / "store.db"
    with another_writer(path):
        for file in path.parent.iterdir():
            os.utime(file, (100, 100))
        entry = RunEntry.of(path.parent)
        assert entry.state == "ended"
        with pytest.raises(RunError):
            remove_run(entry)
        assert path.exists()
    os.utime(path, (100, 100))
    remove_run(entry)
    assert not path.parent.exists()


async def test_a_store_that_is_open_here_stays(runs: Path) -> None:
    (runs / "shared").mkdir(parents=True)
    store = SQLiteStore(runs / "shared" / "store.db")
    for file in (runs / "shared").iterdir():
        os.utime(file, (100, 100))
    with pytest.raises(RunError):
        remove_run(RunEntry.of(runs / "shared"))
    await store.close()


def test_a_link_is_refused_and_what_it_leads_to_stays(runs: Path, tmp_path: Path) -> None:
    run = tuned_run(tmp_path / "tuned")
    runs.mkdir()
    (runs / "link").symlink_to(run)
    with pytest.raises(UnknownIdError):
        remove_run(RunEntry.of(runs / "link"))
    assert (run / "model.safetensors").exists()


def test_what_a_killed_removal_left_is_no_run_and_goes_with_the_next(runs: Path) -> None:
    nobody = 2**22 + 1  # above the highest id of a process
    write_json(runs / f".old.removed-{nobody}" / "config.json", {"components": {}})
    write_json(runs / f".busy.removed-{os.getpid()}" / "config.json", {"components": {}})
    write_json(runs / "one" / "config.json", {"components": {}})
    assert [entry.name for entry in RunCatalog(runs).entries()] == ["one"]
    remove_run(RunCatalog(runs).find("one"))
    assert [path.name for path in runs.iterdir()] == [f".busy.removed-{os.getpid()}"]


def test_a_run_whose_store_is_served_stays_until_the_server_has_gone(runs: Path) -> None:
    entry = RunEntry.of(dev_run(runs / "one"))
    with served(entry.path), served(entry.path):
        with pytest.raises(RunError):
            remove_run(entry)
        assert (entry.path / "config.json").exists()
    remove_run(entry)
    assert not entry.path.exists()
