"""A sync algorithm has a thread to itself, and can be stopped there."""

import asyncio
import contextvars
import logging
import threading
import time

import pytest

from tests.algorithm.internals import ThreadInterrupted, algorithm_threads, run_in_own_thread
from tests.errors import raises

from .workers import until


def nobody() -> None:
    """Nothing to wake."""


async def test_what_it_returns_and_raises_comes_back() -> None:
    assert await run_in_own_thread(lambda: 3, wake=nobody) == 3
    with pytest.raises(ZeroDivisionError):
        await run_in_own_thread(lambda: 1 / 0, wake=nobody)


async def test_no_loop_runs_there() -> None:
    assert await run_in_own_thread(lambda: asyncio.run(asyncio.sleep(0, "slept")), wake=nobody) == "slept"


async def test_the_context_comes_along() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    assert await run_in_own_thread(variable.get, wake=nobody) == "set"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration])
async def test_what_would_end_a_loop_is_an_error(kind: type[BaseException]) -> None:
    def work() -> None:
        raise kind("enough")

    with raises(ThreadInterrupted, "enough"):
        await run_in_own_thread(work, wake=nobody)


async def test_a_cancelled_wait_interrupts_the_work() -> None:
    begun, ended = threading.Event(), list[str]()

    def work() -> None:
        try:
            begun.set()
            while True:
                time.sleep(0.001)
        except KeyboardInterrupt:
            ended.append("interrupted")

    task = asyncio.create_task(run_in_own_thread(work, wake=nobody))
    await until(_is_set(begun))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["interrupted"]


async def test_a_thread_that_will_not_stop_is_left_behind_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="sharpen")
    monkeypatch.setattr(algorithm_threads, "ALGORITHM_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(algorithm_threads, "AGAIN_SECONDS", 0.05)
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)

    task = asyncio.create_task(run_in_own_thread(work, wake=nobody))
    await until(_is_set(begun))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    assert any("the algorithm" in message and "0.2 s" in message for message in caplog.messages)


def _is_set(event: threading.Event):  # type: ignore[no-untyped-def]
    async def is_set() -> bool:
        return event.is_set()

    return is_set
