"""Long work beside a loop."""

import asyncio
import sys
import threading
import time

import pytest

from tests.archive.internals import SWITCH_SECONDS, run_in_background


async def test_the_loop_goes_on_while_work_is_done_and_the_turns_are_as_before_afterwards() -> None:
    usual = sys.getswitchinterval()
    is_over = threading.Event()

    def work(factor: int, *, number: int) -> tuple[int, float]:
        while not is_over.is_set():
            time.sleep(0.001)
        return factor * number, sys.getswitchinterval()

    doing = asyncio.ensure_future(run_in_background(work, 6, number=7))
    await asyncio.sleep(0)
    is_over.set()  # only a loop that goes on gets here
    answer, turn_seconds = await doing
    assert answer == 42
    assert turn_seconds == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == usual


async def test_an_error_is_the_callers_and_the_turns_are_as_before() -> None:
    usual = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError):
        await asyncio.gather(*(run_in_background(divmod, 1, 0) for _ in range(5)))
    await run_in_background(int)
    assert sys.getswitchinterval() == usual


async def test_quick_work_need_not_wait_for_long_work() -> None:
    is_over = threading.Event()
    long = asyncio.ensure_future(run_in_background(is_over.wait, 30))
    assert await asyncio.wait_for(run_in_background(int, "5"), 20) == 5
    is_over.set()
    assert await long
