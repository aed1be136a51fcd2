"""Runners whose agent holds the interpreter lock: nothing inside the process can act any more."""

import asyncio
import ctypes
import functools
import re
import signal
import threading
import time

import pytest

from sharpen.execution import ClientServerExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import SQLiteStore
from sharpen.types import RolloutConfig
from tests.execution.internals import runners

from .bundles import Enqueue
from .processes import eventually, is_running, notes, program, wait_for_note

pytestmark = pytest.mark.usefixtures("no_spares")


def rule(**settings):
    return RolloutConfig(**{"max_attempts": 2, "retry_condition": ["unresponsive"], **settings})


def hold_the_lock_for_ever():
    re.match(r"(a+)+$", "a" * 60 + "b")


def hold_the_lock(seconds):
    """A call into C that keeps the lock."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def agent(task, rollout):
    if task == "hang" or (task == "hang once" and rollout.attempt.sequence_id == 1):
        hold_the_lock_for_ever()
    if task == "debug":
        threading.settrace(lambda *_: None)
        time.sleep(1.5)  # until the next sign
    if isinstance(task, float):
        hold_the_lock(task)
    return 1.0


async def run_agents(store, worker_id, event):
    own = Runner()
    with own.run_context(agent=agent, store=store, worker_id=worker_id):
        await own.iter(event=event)


@pytest.fixture
def store(store_path):
    opened = SQLiteStore(store_path)
    yield opened
    asyncio.run(opened.close())


@pytest.fixture
def hung_after(monkeypatch):
    return lambda seconds: monkeypatch.setattr(runners, "HUNG_SECONDS", seconds)


def execute(algorithm, store, runner=run_agents):
    ClientServerExecutionStrategy().execute(algorithm, runner, store)


def attempts(store, algorithm, number=0):
    return asyncio.run(store.query_attempts(algorithm.rollouts[number].rollout_id))


def test_a_hung_runner_is_killed_and_replaced_and_its_rollout_is_retried(store, hung_after):
    hung_after(2.5)
    algorithm = Enqueue("hang once", "after", config=rule(unresponsive_seconds=0.5))
    execute(algorithm, store)
    assert algorithm.statuses == ["succeeded"] * 2
    assert [each.status for each in attempts(store, algorithm)] == ["unresponsive", "succeeded"]


def test_a_time_limit_ends_the_rollout_of_a_hung_runner_and_the_run_goes_on(store, hung_after):
    hung_after(2.5)
    algorithm = Enqueue("hang", "after", config=RolloutConfig(timeout_seconds=0.5))
    execute(algorithm, store)
    assert algorithm.statuses == ["failed", "succeeded"]
    assert [each.status for each in attempts(store, algorithm)] == ["timeout"]


def test_the_attempt_of_a_hung_runner_says_why_it_was_lost(store, hung_after):
    hung_after(2.5)
    algorithm = Enqueue("hang", config=rule(max_attempts=1))
    execute(algorithm, store)
    (attempt,) = attempts(store, algorithm)
    assert (attempt.status, attempt.metadata["error_type"]) == ("unresponsive", "RunnerDied")
    assert "2.5 s" in attempt.metadata["error"]


def test_a_long_lease_gives_an_agent_three_times_as_long(store, hung_after):
    hung_after(1.25)
    algorithm = Enqueue(2.5, config=rule(unresponsive_seconds=60))
    execute(algorithm, store)
    assert [each.status for each in attempts(store, algorithm)] == ["succeeded"]


class HoldsTheLockOnce:
    """A runner whose first process holds the lock before its first rollout, or after it."""

    def __init__(self, folder, hold, *, at_start):
        self._starts, self._hold, self._at_start = folder / "starts", hold, at_start

    async def __call__(self, store, worker_id, event):
        with self._starts.open("a") as file:
            file.write("start\n")
        is_first = self.starts == 1
        if is_first and self._at_start:
            self._hold()
        own = Runner(max_rollouts=1 if is_first else None)
        with own.run_context(agent=agent, store=store, worker_id=worker_id):
            await own.iter(event=event)
        if is_first:
            self._hold()

    @property
    def starts(self):
        return len(self._starts.read_text().splitlines())


@pytest.mark.parametrize("at_start", [True, False])
def test_a_runner_that_hangs_in_its_set_up_or_its_teardown_is_replaced(
    store, hung_after, monkeypatch, tmp_path, at_start
):
    hung_after(2.0)
    monkeypatch.setattr(runners, "START_FACTOR", 1)
    algorithm, runner = (
        Enqueue("one", "two", config=rule()),
        HoldsTheLockOnce(tmp_path, hold_the_lock_for_ever, at_start=at_start),
    )
    execute(algorithm, store, runner)
    assert (algorithm.statuses, runner.starts) == (["succeeded"] * 2, 2)


def test_set_up_that_holds_the_lock_is_given_longer_than_an_agent(store, hung_after, tmp_path):
    hung_after(1.25)
    runner = HoldsTheLockOnce(tmp_path, functools.partial(hold_the_lock, 2.5), at_start=True)
    execute(Enqueue("one", config=rule()), store, runner)
    assert runner.starts == 1


def test_a_runner_in_a_python_debugger_is_left_alone(store, hung_after):
    hung_after(1.25)
    algorithm = Enqueue("debug", 3.0, config=rule())
    execute(algorithm, store)
    assert [each.status for each in attempts(store, algorithm, 1)] == ["succeeded"]


def test_a_supervisor_that_was_paused_kills_nobody(tmp_path):
    with program("one_task.py", tmp_path, "1.5", '{"sleep": 4}') as run:
        wait_for_note(tmp_path, "working")
        run.send(signal.SIGSTOP)
        time.sleep(2.5)
        run.send(signal.SIGCONT)
        assert run.wait() == 0, run.errors
        assert run.output.splitlines() == ["succeeded"]
    assert len(notes(tmp_path, "working")) == 1


def test_a_hung_runner_does_not_outlive_a_killed_parent(tmp_path):
    with program("one_task.py", tmp_path, "60", '"hang"') as run:
        (pid,) = wait_for_note(tmp_path, "working")
        time.sleep(0.5)  # the agent is in its expression by now
        run.send(signal.SIGKILL)
        eventually(lambda: not is_running(int(pid)), "the runner ends", 30)
        eventually(run.is_gone, "nobody is left", 30)
