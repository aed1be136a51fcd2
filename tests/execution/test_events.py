"""The flags that tell the parts of a run to stop."""

import multiprocessing
import threading

import pytest

from sharpen.execution import ExecutionEvent, MultiprocessingEvent, ThreadingEvent


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
