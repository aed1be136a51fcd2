"""What ends a call early: its agent hangs up, or time runs out."""

import asyncio
import gc
from typing import Any

import pytest

from tests.errors import raises
from tests.llm_proxy.internals import HungUp, TimedOut, Watch


class Connection:
    """The receiving side of an agent."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.asked = 0

    async def receive(self) -> Any:
        self.asked += 1
        await self.closed.wait()
        return {"type": "http.disconnect"}


async def test_a_short_call_is_not_listened_for() -> None:
    connection = Connection()
    with Watch(connection.receive):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert connection.asked == 0


async def test_a_hang_up_ends_the_work_where_it_waits() -> None:
    connection, cleaned = Connection(), []
    asyncio.get_running_loop().call_later(0.05, connection.closed.set)

    async def work() -> None:
        with Watch(connection.receive):
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(0)
                cleaned.append(True)

    with pytest.raises(HungUp):
        await work()
    task = asyncio.current_task()
    assert cleaned
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # is not cancelled any more


async def test_a_hang_up_before_anybody_listened_is_noticed() -> None:
    connection = Connection()
    connection.closed.set()
    with pytest.raises(HungUp), Watch(connection.receive):
        await asyncio.sleep(30)


async def test_the_whole_is_limited() -> None:
    async def work() -> None:
        with Watch(Connection().receive) as watch:
            watch.limit(0.03, "it took too long")
            watch.expect(30, "nothing came")
            await asyncio.sleep(30)

    with raises(TimedOut, "took too long"):
        await work()


async def test_what_is_expected_next_is_limited_and_moves_on() -> None:
    async def work() -> None:
        with Watch(Connection().receive) as watch:
            watch.limit(30, "it took too long")
            for number in range(6):
                watch.expect(0.1, f"piece {number}")
                await asyncio.sleep(0.03 if number < 5 else 30)

    with raises(TimedOut, 5):
        await work()


async def test_a_limit_that_is_lifted_ends_nothing() -> None:
    with Watch(Connection().receive) as watch:
        watch.expect(0.03, "soon")
        watch.expect(None, "")
        await asyncio.sleep(0.06)


async def test_a_later_limit_is_kept_when_the_first_look_is_over() -> None:
    async def work() -> None:
        with Watch(Connection().receive) as watch:
            await asyncio.sleep(0.05)
            watch.expect(0.02, "late")
            await asyncio.sleep(30)

    with raises(TimedOut, "late"):
        await work()


async def test_cancelling_from_outside_stays_what_it_is() -> None:
    async def work() -> None:
        with Watch(Connection().receive):
            await asyncio.sleep(30)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_errors_of_the_work_pass() -> None:
    with pytest.raises(KeyError), Watch(Connection().receive):
        raise KeyError("own")


async def test_a_call_that_was_listened_for_leaves_nothing_to_the_collector() -> None:
    connection = Connection()
    before = _watches()
    gc.disable()
    try:
        with Watch(connection.receive):
            while not connection.asked:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert _watches() == before
    finally:
        gc.enable()


def _watches() -> int:
    return sum(type(each) is Watch for each in gc.get_objects())


async def test_a_limit_can_be_stretched_but_not_shortened() -> None:
    async def work() -> None:
        with Watch(Connection().receive) as watch:
            watch.limit(0.03, "the gateway's")
            watch.allow(0.2, "the entry's")
            watch.allow(0.01, "no effect")
            assert not watch.is_late
            await asyncio.sleep(0.1)
            try:
                await asyncio.sleep(30)
            finally:
                assert watch.is_late

    with pytest.raises(TimedOut):
        await work()


async def test_when_all_has_come_only_a_hang_up_ends_the_work() -> None:
    connection = Connection()

    async def work() -> None:
        with Watch(connection.receive) as watch:
            watch.limit(0.03, "the whole")
            watch.expect(0.02, "the next")
            watch.lift()
            await asyncio.sleep(0.15)
            connection.closed.set()
            await asyncio.sleep(30)

    with pytest.raises(HungUp):
        await work()
