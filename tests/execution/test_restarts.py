"""When a runner starts again, and when the run gives up."""

import pytest

from sharpen.errors import RunError, RunnerStartError
from tests.errors import raises
from tests.execution.internals import Failure, Restarts, RunnerExit


def end(kind="died", *, finished=0, is_ready=True, traceback="") -> RunnerExit:
    failure = Failure("Error", "", traceback) if traceback else None
    return RunnerExit(kind, finished, "worker" if is_ready else None, True, "killed by SIGKILL", failure)


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_finished_rollout():
    restarts = Restarts(0)
    assert [restarts.after(end()) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert restarts.after(end(finished=1)) == 0.1


def test_a_saturated_runner_is_replaced_without_a_pause_and_counts_as_no_failure():
    restarts = Restarts(0)
    assert [restarts.after(end("saturated", finished=2)) for _ in range(20)] == [0.0] * 20
    assert restarts.finished == 40


@pytest.mark.parametrize("failure", [end("failed", traceback="Traceback: no model"), end(is_ready=False)])
def test_the_fifth_failed_start_in_a_row_is_an_error(failure):
    restarts = Restarts(3)
    for _ in range(4):
        restarts.after(failure)
    with raises(RunnerStartError, 3, 5) as caught:
        restarts.after(failure)
    assert failure.traceback in str(caught.value)


def test_a_failure_in_the_middle_of_an_attempt_is_a_death_and_no_failed_start():
    restarts, failure = Restarts(0), end("failed", traceback="Traceback: interrupted")
    for _ in range(10):
        restarts.after(failure, lost=1)
    with raises(RunError, 11, "Traceback: interrupted") as caught:
        restarts.after(failure, lost=1)
    assert not isinstance(caught.value, RunnerStartError)


def test_a_finished_rollout_ends_the_row():
    restarts = Restarts(0)
    for _ in range(20):
        for _ in range(4):
            restarts.after(end("failed"))
        restarts.after(end("failed", finished=1))
    assert restarts.finished == 20


def test_the_eleventh_death_in_a_row_is_an_error_with_the_last_reasons():
    restarts = Restarts(0)
    for _ in range(10):
        restarts.after(end())
    with raises(RunError, 11, "SIGKILL"):
        restarts.after(end())
