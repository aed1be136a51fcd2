"""Waiting costs nothing: those who wait sleep until there is something for them."""

import asyncio
import time

import pytest

from sharpen.errors import StoreError
from sharpen.store import InMemoryLightningStore, SQLiteStore
from sharpen.types import EnqueueRolloutRequest
from tests.store.internals import BroadcastWaiters

from .processes import eventually
from .scenes import claim_new, within_patience


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    opened = InMemoryLightningStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")
    yield opened
    await opened.close()


async def cpu_seconds(*waits):
    """How much this process worked while the calls waited."""
    before = time.process_time()
    await within_patience(asyncio.gather(*waits))
    return time.process_time() - before


async def test_claims_that_come_too_late_for_the_work_sleep_on(store):
    """One claim takes all that the others were woken for."""
    waits = [asyncio.ensure_future(store.dequeue_many_rollouts(limit=10, wait_seconds=1.5)) for _ in range(5)]
    await eventually(lambda: len(store._workers_waiting) == 5)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(5)])
    assert await cpu_seconds(*waits) < 0.75
    assert sorted(len(wait.result()) for wait in waits) == [0, 0, 0, 0, 5]


async def test_a_wake_up_that_is_not_used_goes_to_the_next_in_line(store):
    """Whoever is woken and gives up at the same moment takes nobody's work."""
    for _ in range(20):
        first, second = [asyncio.ensure_future(store.dequeue_rollout(wait_seconds=60)) for _ in range(2)]
        await eventually(lambda: len(store._workers_waiting) == 2)
        await store.enqueue_rollout("task")
        first.cancel()
        claimed = await within_patience(asyncio.gather(first, return_exceptions=True))
        if isinstance(claimed[0], asyncio.CancelledError):
            assert await within_patience(second) is not None
        else:
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        assert (await store.statistics())["queue_length"] == 0


async def test_waiting_for_what_does_not_come_costs_nothing(store):
    claimed = await claim_new(store)
    waits = [
        *(store.dequeue_rollout(wait_seconds=1.0) for _ in range(20)),
        *(store.finished_rollouts(wait_seconds=1.0) for _ in range(20)),
        *(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=1.0) for _ in range(20)),
    ]
    assert await cpu_seconds(*waits) < 0.5


async def test_closing_a_store_ends_the_waits_of_its_own_process(store):
    rollout = await store.start_rollout("task")
    waits = [
        asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])),
        asyncio.ensure_future(store.dequeue_rollout(wait_seconds=600)),
        asyncio.ensure_future(store.finished_rollouts(wait_seconds=600)),
    ]
    await eventually(lambda: len(store._workers_waiting) + len(store._finish_waiting) == 3)
    await store.close()
    for outcome in await within_patience(asyncio.gather(*waits, return_exceptions=True)):
        assert isinstance(outcome, StoreError)


async def test_what_finished_while_a_wait_was_set_up_is_not_waited_for():
    crowd = BroadcastWaiters()
    crowd.finished(["early"])
    waiter = crowd.join_all(["early", "late"])
    crowd.narrow(waiter, ["late"])
    assert not await waiter.wait(0)
    crowd.finished(["late"])
    assert await waiter.wait(5)
    crowd.leave(waiter)
    assert len(crowd) == 0


async def test_a_wait_for_nothing_any_more_is_over():
    crowd = BroadcastWaiters()
    waiter = crowd.join_all(["early"])
    crowd.narrow(waiter, [])
    assert await waiter.wait(5)


async def test_a_wait_for_many_ends_while_they_finish_all_the_time(tmp_path):
    store = SQLiteStore(tmp_path / "store.db")
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(1500)])

    async def finish_all():
        while claimed := await store.dequeue_many_rollouts(limit=5, worker_id="w"):
            for each in claimed:
                await store.complete_attempt(each.rollout_id, each.attempt.attempt_id)

    finishing = asyncio.create_task(asyncio.to_thread(asyncio.run, finish_all()))
    done = await asyncio.wait_for(store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in queued]), 60)
    await finishing
    assert len(done) == 1500
    await store.close()
