"""The thread of gepa ends with the search, whatever gepa makes of errors."""

import asyncio
import threading

import pytest

from sharpen.errors import ConfigError, RunError
from tests.algorithm.internals import SearchThread
from tests.errors import raises


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def never() -> None:
    await asyncio.Event().wait()


async def refuse() -> None:
    raise ConfigError("no such prompt")


def forgiving(thread: SearchThread, ask: object, calls: list[str]) -> None:
    """A loop that swallows every Exception, as gepa's does."""
    while len(calls) < 100:
        try:
            calls.append("called")
            thread.wait_for(ask)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - what gepa does
            calls.append("swallowed")


async def test_the_thread_gets_what_the_loop_gives() -> None:
    thread, found = SearchThread(), list[int]()
    await thread.run(lambda: found.append(thread.wait_for(answer)))
    assert found == [42]


async def test_an_error_on_the_loop_ends_the_thread_and_is_raised() -> None:
    thread, calls = SearchThread(), list[str]()
    with raises(ConfigError, "no such prompt"):
        await thread.run(lambda: forgiving(thread, refuse, calls))
    assert calls == ["called"]


async def test_cancelling_the_search_ends_a_thread_that_waits() -> None:
    thread, calls = SearchThread(), list[str]()
    search = asyncio.ensure_future(thread.run(lambda: forgiving(thread, never, calls)))
    while not calls:
        await asyncio.sleep(0.001)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert calls == ["called"]
    while any(each.name == "sharpen-gepa" for each in threading.enumerate()):  # it has told of its end just before
        await asyncio.sleep(0.001)


async def test_an_error_of_gepa_is_told_as_one() -> None:
    thread = SearchThread()
    with raises(RunError, "ZeroDivisionError"):
        await thread.run(lambda: 1 / 0)


async def test_ending_it_from_within_is_no_error() -> None:
    thread = SearchThread()
    await thread.run(lambda: thread.end())
    assert thread.is_over


async def test_a_search_that_is_cancelled_as_a_call_begins_leaves_nothing_running() -> None:
    searches: list[asyncio.Task[None]] = []

    async def ask() -> None:
        searches[-1].cancel()
        await asyncio.sleep(60)

    for _ in range(20):
        thread = SearchThread()
        searches.append(asyncio.create_task(thread.run(lambda thread=thread: thread.wait_for(ask))))  # type: ignore[misc]
        await asyncio.gather(searches[-1], return_exceptions=True)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
