"""Long work beside a loop."""

import asyncio
import sys
import threading
import time

import pytest

from tests.archive.internals import TURN_SECONDS, aside


async def test_the_loop_goes_on_while_work_is_done_and_the_turns_are_as_before_afterwards() -> None:
    usual = sys.getswitchinterval()
    is_over = threading.Event()

    def work(factor: int, *, number: int) -> tuple[int, float]:
        while not is_over.is_set():
            time.sleep(0.001)
        return factor * number, sys.getswitchinterval()

    doing = asyncio.ensure_future(aside(work, 6, number=7))
    await asyncio.sleep(0)
    is_over.set()  # only a loop that goes on gets here
    answer, turn_seconds = await doing
    assert answer == 42
    assert turn_seconds == pytest.approx(TURN_SECONDS)
    assert sys.getswitchinterval() == usual


async def test_an_error_is_the_callers_and_the_turns_are_as_before() -> None:
    usual = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError):
        await asyncio.gather(*(aside(divmod, 1, 0) for _ in range(5)))
    await aside(int)
    assert sys.getswitchinterval() == usual


async def test_quick_work_need_not_wait_for_long_work() -> None:
    is_over = threading.Event()
    long = asyncio.ensure_future(aside(is_over.wait, 30))
    assert await asyncio.wait_for(aside(int, "5"), 20) == 5
    is_over.set()
    assert await long
