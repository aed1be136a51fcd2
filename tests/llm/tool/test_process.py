"""A process is known by its number and its start together."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.llm.internals import ProcessMark, tool_jobs as module

from .calls import wait_until


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def mark_of(pid: int) -> ProcessMark:
    mark = ProcessMark.of(pid)
    assert mark is not None
    return mark


def test_this_process_lives_and_keeps_its_mark() -> None:
    assert mark_of(os.getpid()).is_alive()
    assert mark_of(os.getpid()) == mark_of(os.getpid())


def test_a_process_that_has_ended_is_dead_before_anybody_asks_for_its_exit_code(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    mark = mark_of(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    wait_until(lambda: not mark.is_alive())
    assert ProcessMark.of(sleeper.pid) is None


def test_another_process_with_the_same_number_is_neither_alive_nor_killed(sleeper: "subprocess.Popen[bytes]") -> None:
    stranger = ProcessMark(sleeper.pid, "another start")
    assert not stranger.is_alive()
    stranger.signal(signal.SIGKILL)
    stranger.kill_group()
    assert sleeper.poll() is None


def test_a_signal_reaches_its_process(sleeper: "subprocess.Popen[bytes]") -> None:
    mark_of(sleeper.pid).kill_group()
    assert sleeper.wait(60) == -signal.SIGKILL


def test_systems_without_proc_tell_the_same(sleeper: "subprocess.Popen[bytes]") -> None:
    first = module._start_elsewhere(sleeper.pid)
    assert first
    assert module._start_elsewhere(sleeper.pid) == first
    sleeper.kill()
    wait_until(lambda: module._start_elsewhere(sleeper.pid) is None)
