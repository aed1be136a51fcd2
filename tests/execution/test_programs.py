"""Whole programs: scripts that run as they are, and what is left of a run that is ended from outside."""

import asyncio
import json
import os
import signal
import time

import pytest

from sharpen.store import SQLiteStore

from ..store.servers import redis_server
from .processes import eventually, is_running, notes, program, wait_for_note

SLEEP = json.dumps({"sleep": 600})
BLOCK = json.dumps({"block": 600})


async def statuses(path):
    store = SQLiteStore(path)
    try:
        return [rollout.status for rollout in await store.query_rollouts()]
    finally:
        await store.close()


def test_a_script_without_a_guard_runs_once_and_its_agent_travels(tmp_path):
    with program("script.py", tmp_path) as script:
        assert script.wait() == 0, script.errors
        assert script.output.splitlines() == ["the script runs", "rewards 0.0 2.0 4.0 6.0", "rewards 0.0 2.0 4.0 6.0"]
        assert script.is_gone()


@pytest.mark.parametrize(
    ("sign", "code", "words"), [(signal.SIGINT, 0, ["interrupted", "closed"]), (signal.SIGTERM, 143, ["closed"])]
)
@pytest.mark.parametrize("strategy", ["cs", "algorithm", "runner"])
def test_a_signal_ends_a_run_in_order_with_everything_recorded(tmp_path, strategy, sign, code, words):
    with program("long_run.py", tmp_path, strategy, SLEEP) as run:
        wait_for_note(tmp_path, "enqueued")
        wait_for_note(tmp_path, "sleeping")
        run.send(sign)
        assert run.wait() == code, run.errors
        assert run.output.splitlines() == words
        assert run.is_gone()
    assert len(notes(tmp_path, "cancelled")) == 1
    assert (tmp_path / "algorithm-cancelled").exists()
    assert sorted(asyncio.run(statuses(tmp_path / "store.db"))) == ["queuing", "requeuing"]
    assert sorted(path.name for path in tmp_path.glob("store.db*")) == ["store.db"]


def test_a_second_signal_ends_a_run_at_once(tmp_path):
    with program("long_run.py", tmp_path, "cs", BLOCK, "deaf") as run:
        wait_for_note(tmp_path, "enqueued")
        wait_for_note(tmp_path, "blocking")
        run.send(signal.SIGINT)
        eventually((tmp_path / "algorithm-cancelled").exists)
        began = time.monotonic()
        run.send(signal.SIGINT)
        assert run.wait() == 0, run.errors
        assert time.monotonic() - began < 10
        assert run.output.splitlines() == ["interrupted", "closed"]
        assert run.is_gone()


def test_an_algorithm_that_holds_up_its_loop_is_broken_into_after_its_grace(tmp_path):
    with program("long_run.py", tmp_path, "cs", SLEEP, "blocking") as run:
        wait_for_note(tmp_path, "enqueued")
        wait_for_note(tmp_path, "sleeping")
        run.send(signal.SIGINT)
        assert run.wait() == 0, run.errors
        assert run.output.splitlines() == ["interrupted", "closed"]
        assert run.is_gone()


@pytest.mark.slow
@pytest.mark.parametrize("task", [SLEEP, BLOCK, json.dumps("start")])
def test_a_killed_parent_leaves_no_process(tmp_path, task):
    with program("long_run.py", tmp_path, "cs", task) as run:
        wait_for_note(tmp_path, "enqueued")
        wait_for_note(tmp_path, "sleeping" if task == SLEEP else "blocking" if task == BLOCK else "started")
        eventually(lambda: len(run.family()) >= 5, "runner, store and their spares")
        run.send(signal.SIGKILL)
        eventually(run.is_gone, "nobody is left", 30)
    if task == SLEEP:
        assert len(notes(tmp_path, "cancelled")) == 1
        assert sorted(asyncio.run(statuses(tmp_path / "store.db"))) == ["queuing", "requeuing"]


def test_work_that_ends_after_the_parent_was_killed_is_spooled(tmp_path):
    spool = tmp_path / "spool"
    with program("one_task.py", tmp_path, "60", '{"sleep": 2.5}', "memory", SHARPEN_SPOOL=str(spool)) as run:
        wait_for_note(tmp_path, "working")
        run.send(signal.SIGKILL)
        eventually(run.is_gone, "nobody is left", 30)
    (file,) = spool.glob("*.spool")
    *_, last = map(json.loads, file.read_text().splitlines())
    assert json.loads(last["body"])["status"] == "succeeded"


@pytest.mark.servers
@pytest.mark.parametrize("seconds", [1.0, 2.5])
def test_work_that_ends_after_the_parent_was_killed_is_not_run_again_by_the_next_run(tmp_path, seconds):
    with redis_server() as redis:
        arguments = (tmp_path, "60", json.dumps({"sleep": seconds}), redis.url())
        with program("one_task.py", *arguments, SHARPEN_SPOOL=str(tmp_path)) as run:
            wait_for_note(tmp_path, "working")
            run.send(signal.SIGKILL)
            eventually(run.is_gone, "nobody is left", 30)
        with program("one_task.py", *arguments, SHARPEN_SPOOL=str(tmp_path)) as run:
            assert run.wait() == 0, run.errors
            assert run.output.splitlines() == ["succeeded"]
    assert len(notes(tmp_path, "working")) == 1


def test_a_signal_in_the_terminal_reaches_only_the_parent(tmp_path):
    with program("long_run.py", tmp_path, "cs", SLEEP) as run:
        (pid,) = wait_for_note(tmp_path, "sleeping")
        assert os.getsid(int(pid)) == int(pid)
        assert os.getsid(int(pid)) != os.getsid(run.pid)
        run.send(signal.SIGINT)
        assert run.wait() == 0
        assert not is_running(int(pid))


@pytest.mark.parametrize("strategy", ["cs", "shm"])
@pytest.mark.parametrize("count", [1, 2])
def test_an_agent_that_blocks_the_main_thread_is_broken_into_and_its_rollout_handed_back(tmp_path, strategy, count):
    with program("main_thread.py", tmp_path, strategy) as run:
        wait_for_note(tmp_path, "blocking")
        run.send(signal.SIGINT)
        if count == 2:
            eventually(lambda: "SIGINT" in run.errors)
            run.send(signal.SIGINT)
        assert run.wait() == 0, run.errors
        *words, status = run.output.splitlines()
        assert words == ["the agent was broken into", "interrupted"]
        # Broken off at once, the runner may have no time to hand it back: then it was lost, and has no second attempt.
        assert status in ("requeuing", "failed")[:count]
        assert "Traceback" not in run.errors
        assert run.is_gone()
