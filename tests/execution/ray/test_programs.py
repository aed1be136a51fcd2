"""Whole programs on a cluster, ended from outside; and what is left of them and of their secrets."""

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from sharpen.store import SQLiteStore

from .. import processes
from ..processes import Program, eventually, notes, wait_for_note
from .conftest import living_actors

pytestmark = pytest.mark.ray
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(processes, "PROGRAMS", PROGRAMS)
    started = []

    folder = tempfile.mkdtemp(prefix="ray-")

    def begin(*arguments):
        started.append(Program(*arguments, RAY_TMPDIR=folder))
        return started[-1]

    yield begin
    for each in started:
        each.clean_up()
    shutil.rmtree(folder, ignore_errors=True)


async def statuses(path):
    store = SQLiteStore(path)
    try:
        return [rollout.status for rollout in await store.query_rollouts()]
    finally:
        await store.close()


@pytest.mark.parametrize("place", ["driver", "actor"])
def test_ctrl_c_ends_a_run_in_order_and_leaves_no_actor(cluster, start, tmp_path, place):
    run = start("long_run.py", tmp_path, cluster.address, place)
    wait_for_note(tmp_path, "enqueued")
    wait_for_note(tmp_path, "sleeping")
    assert living_actors("RunnerActor")
    run.send(signal.SIGINT)
    assert run.wait() == 0, run.errors
    assert run.output.splitlines()[-2:] == ["interrupted", "closed"]
    eventually(lambda: not living_actors(), "no actor is left", 20)
    assert len(notes(tmp_path, "cancelled")) == 1
    assert (tmp_path / "algorithm-cancelled").exists()
    assert sorted(asyncio.run(statuses(tmp_path / "store.db"))) == ["queuing", "requeuing"]


def test_a_killed_program_leaves_no_actor(cluster, start, tmp_path):
    run = start("long_run.py", tmp_path, cluster.address, "driver")
    wait_for_note(tmp_path, "sleeping")
    run.send(signal.SIGKILL)
    eventually(lambda: not living_actors(), "no actor is left", 30)


def test_a_cluster_of_this_machine_alone_is_started_and_ended_and_no_token_is_in_any_log(start, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run = start("long_run.py", tmp_path, "local", "driver")
    wait_for_note(tmp_path, "sleeping")
    tokens = (tmp_path / "tokens").read_text().split()
    assert len(tokens) == 2
    run.send(signal.SIGINT)
    assert run.wait() == 0, run.errors
    assert "127.0.0.1" in (tmp_path / "url").read_text()
    session = Path((tmp_path / "session").read_text())
    texts = [path.read_text(errors="replace") for path in session.joinpath("logs").rglob("*") if path.is_file()]
    assert len(texts) > 5
    for token in tokens:
        assert not any(token in text for text in [run.output, run.errors, *texts])
        assert not _is_on_a_command_line(token)
    eventually(run.is_gone, "no process is left", 20)


def _is_on_a_command_line(token: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False
