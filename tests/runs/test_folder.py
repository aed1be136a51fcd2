"""A folder for every run: never shared, whole after a crash, worked on by one process at a time."""

import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharpen.errors import ConfigError
from sharpen.files import read_json, write_json
from sharpen.logging import also_to_file
from sharpen.runs import RunFolder, runs_root
from sharpen.trainer import Trainer
from tests.errors import raises


def made(root: Path, name: str = "run", at: float = 0.0) -> RunFolder:
    folder = RunFolder.create(name, root=root, clock=lambda: at)
    folder.write_config({"name": name})
    return folder


def test_the_name_holds_date_time_and_name(tmp_path: Path) -> None:
    moment = time.mktime((2026, 11, 15, 6, 7, 8, 0, 0, -1))
    assert RunFolder.create("try", root=tmp_path, clock=lambda: moment).path == tmp_path / "20261115-060708-try"


def test_runs_lie_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "deep" / "er"))
    assert RunFolder.create().path.parent == tmp_path / "deep" / "er"


def test_runs_lie_in_the_working_directory_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARPEN_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert runs_root() == Path("runs")
    assert RunFolder.create().path.parent == tmp_path / "runs"


def test_tests_keep_their_runs_out_of_the_clone(repository: Path) -> None:
    assert not runs_root().absolute().is_relative_to(repository)


def test_runs_of_the_same_second_never_share_a_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        folders = list(pool.map(lambda _: made(tmp_path, at=0.0), range(16)))
    assert len({folder.path for folder in folders}) == 16
    assert {folder.path.name.removeprefix(folders[0].path.name[:15]) for folder in folders} >= {
        "-run",
        "-run-2",
        "-run-16",
    }


def test_run_dir_is_taken_as_it_is(tmp_path: Path) -> None:
    assert RunFolder.create(run_dir=tmp_path / "mine").path == tmp_path / "mine"


def test_a_run_dir_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError):
        RunFolder.create(run_dir=tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        RunFolder.create(run_dir=tmp_path / "file")
    with pytest.raises(ConfigError):
        RunFolder.create(root=tmp_path / "file")


@pytest.mark.parametrize("name", ["a/b", "", "..", "two words", "x" * 101])
def test_a_name_that_makes_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        RunFolder.create(name, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_everything_that_is_written_can_be_read_again(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.write_config({"seed": 3})
    folder.write_result({"status": "succeeded"})
    folder.save_checkpoint({"step": 4})
    folder.release()
    again = RunFolder.open(folder.path)
    assert again.read_config() == {"seed": 3}
    assert again.read_result() == {"status": "succeeded", "start": 1}
    assert again.load_checkpoint() == {"step": 4}


def test_a_new_run_has_no_result_and_no_checkpoint(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert folder.read_result() is None
    assert folder.load_checkpoint() is None
    assert folder.last_metrics() == {}


def test_the_newest_metrics_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    folder = made(tmp_path)
    for step in range(3):
        folder.append_metrics({"step": step})
    with open(folder.metrics_path, "ab") as file:
        file.write(b'{"step": 3, "rew')
    assert folder.last_metrics() == {"step": 2}
    folder.append_metrics({"step": 4})
    assert folder.last_metrics() == {"step": 4}


def test_a_folder_in_use_cannot_be_opened_a_second_time(tmp_path: Path) -> None:
    folder = made(tmp_path)
    with pytest.raises(ConfigError):
        RunFolder.open(folder.path)
    folder.release()
    RunFolder.open(folder.path).release()


HOLD = """
import sys, time
from sharpen.runs import RunFolder
folder = RunFolder.open(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.release()
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(ConfigError):
            RunFolder.open(folder.path)
        os.kill(child.pid, signal.SIGKILL)
    RunFolder.open(folder.path).release()


def test_a_child_of_the_run_does_not_keep_its_lock(tmp_path: Path) -> None:
    folder = made(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        folder.release()
        RunFolder.open(folder.path).release()
        child.communicate(b"\n")


def test_the_last_run_is_the_newest(tmp_path: Path) -> None:
    for name in ("zebra", "ant", "bee"):
        made(tmp_path, name, at=0.0).release()
        time.sleep(0.01)  # the clock of a file system may tick slowly
    assert RunFolder.last(tmp_path).path.name.endswith("-bee")


def test_a_folder_that_is_no_run_is_not_the_last(tmp_path: Path) -> None:
    made(tmp_path, "real").release()
    (tmp_path / "99999999-notes").mkdir()
    assert RunFolder.last(tmp_path).path.name.endswith("-real")


def test_a_run_that_failed_before_its_first_rollout_is_not_the_last(tmp_path: Path) -> None:
    good = made(tmp_path, "good", at=0.0)
    good.write_result({"status": "failed", "metrics": {"rollouts": 3}})
    good.release()
    time.sleep(0.01)  # the clock of a file system may tick slowly
    wrong = made(tmp_path, "wrong", at=1.0)
    wrong.write_result({"status": "failed", "metrics": {"rollouts": 0}})
    wrong.release()
    assert RunFolder.last(tmp_path).path == good.path


def test_nothing_to_resume_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        RunFolder.last(tmp_path)
    with pytest.raises(ConfigError):
        RunFolder.open(tmp_path / "nowhere")
    with raises(ConfigError, "config.json"):
        RunFolder.open(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.checkpoint_path.write_text('{"step": ')
    with raises(ConfigError, "algorithm.json"):
        folder.load_checkpoint()
    folder.checkpoint_path.write_text("[1]")
    with pytest.raises(ConfigError):
        folder.load_checkpoint()


def test_a_value_that_is_no_json_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"step": 1})
    with pytest.raises(TypeError):
        write_json(path, {"step": object()})
    assert read_json(path) == {"step": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


WRITE = """
import sys
from pathlib import Path
from sharpen.files import write_json
for step in range(10**6):
    write_json(Path(sys.argv[1]), {"step": step, "filling": "x" * 20_000})
    if step == 0:
        print("begun", flush=True)
"""


@pytest.mark.parametrize("after_seconds", [0.02, 0.05, 0.11])
def test_a_process_killed_while_writing_leaves_a_whole_file(tmp_path: Path, after_seconds: float) -> None:
    path = tmp_path / "state.json"
    with subprocess.Popen([sys.executable, "-c", WRITE, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        time.sleep(after_seconds)  # a random point in the middle
        child.kill()
    assert len(read_json(path)["filling"]) == 20_000


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_that_was_given_is_for_its_owner_alone(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        (tmp_path / "mine").mkdir(mode=0o755)
    old = os.umask(0o022)
    try:
        folder = RunFolder.create(run_dir=tmp_path / "mine")
        folder.write_config({"started": None})
        folder.write_result({"status": "succeeded"})
        folder.append_metrics({"rollouts": 1})
        folder.save_checkpoint({"step": 4})
        with also_to_file(folder.log_path):
            logging.getLogger("sharpen.runs").warning("a line")
    finally:
        os.umask(old)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"config.json", "result.json", "metrics.jsonl", "run.log", "algorithm.json"}
    assert {path.stat().st_mode & 0o077 for path in files} == {0}


def test_a_run_that_was_killed_before_it_began_can_be_started_again_in_its_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    program = (
        "import os, signal, sys\n"
        "from sharpen.runs import RunFolder\n"
        "from sharpen.trainer import Trainer\n"
        "RunFolder.write_config = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Trainer(strategy='shm', run_dir=sys.argv[1]).dev(lambda task: 1.0, [1])\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(run)], check=False, timeout=120, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert (run / "store.db").exists()
    with raises(ConfigError, "run_dir="):
        RunFolder.open(run)
    result = Trainer(strategy="shm", run_dir=run).dev(lambda task: 1.0, [1])
    assert (result.status, result.run_dir, result.metrics["rollouts"]) == ("succeeded", run, 1)
    with pytest.raises(ConfigError):
        RunFolder.create(run_dir=run)


def test_a_folder_that_another_start_has_just_made_is_in_use(tmp_path: Path) -> None:
    first = RunFolder.create(run_dir=tmp_path / "run")
    with pytest.raises(ConfigError):
        RunFolder.create(run_dir=tmp_path / "run")
    first.release()
