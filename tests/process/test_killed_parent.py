"""A parent that is killed leaves nobody behind."""

import signal
from pathlib import Path

import pytest

from tests.execution.processes import Program, eventually, is_running

PARENTS = Path(__file__).parent / "programs" / "parents.py"


@pytest.fixture
def kill_parent(tmp_path):
    """Kill a parent when its children are there, and wait until none of them is left."""

    def kill(case):
        program = Program(PARENTS, tmp_path, case)
        try:
            pids = [int(each) for each in program._process.stdout.readline().split()]
            assert pids, program.errors
            assert all(map(is_running, pids))
            program.send(signal.SIGKILL)
            eventually(lambda: not any(map(is_running, pids)), "everybody ends", 30)
        finally:
            program.clean_up()

    return kill


def test_a_child_that_cannot_notice_it_is_ended_by_the_watcher(kill_parent):
    kill_parent("lock held")


def test_a_later_stage_is_ended_when_the_stages_before_it_are_gone(kill_parent, tmp_path):
    kill_parent("stages")
    assert (tmp_path / "note").read_text() == "False"


@pytest.mark.parametrize("case", ["watcher killed", "forked"])
def test_a_child_notices_by_itself_also_without_a_watcher_or_with_a_fork_left(kill_parent, tmp_path, case):
    kill_parent(case)
    assert (tmp_path / "gone").exists()


def test_a_command_is_ended_with_what_has_left_its_group(kill_parent):
    kill_parent("command")
