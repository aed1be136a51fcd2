"""Work goes on when the one who waits is broken off, and ends early where it asks."""

import ctypes
import threading

import pytest

from tests.execution.processes import eventually
from tests.llm.internals import NotWanted, Turns


class BrokenOff(BaseException):
    """Raised in a thread from outside."""


def break_off(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(BrokenOff))
    eventually(lambda: not thread.is_alive(), "the end of the one who waits")


def waiting_for(turns: Turns, work: object) -> threading.Thread:
    def wait() -> None:
        with pytest.raises(BrokenOff):
            turns.take(work)  # type: ignore[arg-type]

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_results_and_errors_come_back() -> None:
    turns = Turns()
    assert turns.take(lambda: turns.take(lambda: 3) + 1) == 4
    with pytest.raises(ZeroDivisionError):
        turns.take(lambda: 1 / 0)
    assert turns.take(lambda: "next") == "next"


def test_what_is_under_way_is_finished_before_the_next() -> None:
    turns, begun, go_on, done = Turns(), threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        go_on.wait(60)
        done.append("first")

    thread = waiting_for(turns, work)
    begun.wait(60)
    break_off(thread)
    assert not done
    go_on.set()
    turns.take(lambda: done.append("second"))
    assert done == ["first", "second"]


def test_work_that_nobody_waits_for_ends_where_it_asks() -> None:
    turns, begun, ended = Turns(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            while True:
                turns.check()
        except NotWanted:
            ended.set()
            raise

    thread = waiting_for(turns, work)
    begun.wait(60)
    break_off(thread)
    assert ended.wait(60)
    turns.take(turns.check)  # whoever comes next is wanted
