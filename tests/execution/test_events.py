"""The flags that tell the parts of a run to stop."""

import asyncio
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharpen.execution import ExecutionEvent, MultiprocessingEvent, ThreadingEvent
from tests.execution.internals import run_to_end


@pytest.mark.parametrize("kind", [ThreadingEvent, MultiprocessingEvent])
def test_an_event_is_set_waited_for_and_cleared(kind):
    event = kind()
    assert isinstance(event, ExecutionEvent)
    assert not event.is_set()
    assert not event.wait(0)
    threading.Timer(0.01, event.set).start()
    assert event.wait(60)
    assert event.wait()
    event.clear()
    assert not event.is_set()


def _set(event: MultiprocessingEvent) -> None:
    event.set()


def test_an_event_for_processes_is_seen_by_both():
    event = MultiprocessingEvent()
    process = multiprocessing.get_context("fork").Process(target=_set, args=(event,))
    process.start()
    assert event.wait(60)
    process.join()


@pytest.mark.parametrize("is_own", [False, True], ids=["asyncio's executor", "the user's executor"])
def test_the_end_of_a_loop_does_not_wait_for_a_thread_that_hangs(is_own):
    released = threading.Event()

    async def work():
        if is_own:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        hanging = asyncio.ensure_future(asyncio.to_thread(released.wait))
        await asyncio.sleep(0.01)
        assert not hanging.done()

    run_to_end(work())  # which would not return before the thread does
    released.set()
