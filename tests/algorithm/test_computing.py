"""Computations beside the event loop."""

import asyncio
import threading
import time

import pytest

from tests.algorithm.internals import BrokenOff, compute, finish


def spin(begun: threading.Event, ends: list[str]) -> None:
    begun.set()
    try:
        while True:
            time.sleep(0.001)
    except BrokenOff:
        ends.append("broken off")
        raise


async def test_a_computation_gives_its_result_or_its_error() -> None:
    assert await compute(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await compute(divmod, 7, 0)


async def test_a_cancelled_computation_is_broken_off_before_anybody_goes_on() -> None:
    begun, ends = threading.Event(), list[str]()
    task = asyncio.create_task(compute(spin, begun, ends))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["broken off"]


async def test_what_must_not_be_broken_off_is_finished_first() -> None:
    begun, go, ends = threading.Event(), threading.Event(), list[str]()

    def write() -> None:
        begun.set()
        go.wait()
        ends.append("written")

    task = asyncio.create_task(finish(write))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["written"]
