"""Agents that fail while their runner is being stopped: it may be the stop that they fail for."""

import asyncio
import threading

import pytest

from sharpen import InMemoryLightningStore, rollout
from sharpen.runner import Runner
from sharpen.tracer import DummyTracer

from .scenes import at_work, finished


@pytest.fixture
def store():
    return InMemoryLightningStore()


class Stop(threading.Event):
    """An event whose setting may be on its way."""

    is_coming = False

    def stop_requested(self):
        return self.is_coming


async def failing_agent():
    """An agent that raises when it may, what it waits for, and what says that it has begun."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task):
        begun.set()
        await go_on.wait()
        raise ConnectionError("nobody answers")

    return agent, begun, go_on


async def test_an_agent_that_raises_after_the_word_to_stop_is_handed_back(store):
    agent, begun, go_on = await failing_agent()
    queued = await store.enqueue_rollout("x")
    async with at_work(Runner(tracer=DummyTracer()), agent, store) as event:
        await begun.wait()
        event.set()
        go_on.set()
    assert (await store.get_rollout_by_id(queued.rollout_id)).status == "requeuing"
    claimed = await store.dequeue_rollout(worker_id="other")
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (queued.rollout_id, 2)


async def test_an_agent_that_raises_before_the_word_to_stop_has_failed(store):
    agent, begun, go_on = await failing_agent()
    queued = await store.enqueue_rollout("x")
    async with at_work(Runner(tracer=DummyTracer()), agent, store):
        await begun.wait()
        go_on.set()
        assert [each.status for each in await finished(store, [queued])] == ["failed"]
    assert (await store.get_rollout_by_id(queued.rollout_id)).status == "failed"


@pytest.mark.parametrize(("is_coming", "status"), [(True, "requeuing"), (False, "failed")])
async def test_a_stop_that_is_on_its_way_counts(store, is_coming, status):
    agent, _, go_on = await failing_agent()
    queued = await store.enqueue_rollout("x")
    runner, event = Runner(tracer=DummyTracer(), max_rollouts=1), Stop()
    event.is_coming = is_coming
    go_on.set()
    with runner.run_context(agent=agent, store=store):
        await runner.iter(event=event)
    assert (await store.get_rollout_by_id(queued.rollout_id)).status == status


async def test_an_agent_that_answers_its_cancellation_with_an_error_is_handed_back(store):
    begun = asyncio.Event()

    @rollout
    async def agent(task):
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionError("the call was cut") from None

    queued = await store.enqueue_rollout("x")
    runner = Runner(tracer=DummyTracer())
    with runner.run_context(agent=agent, store=store):
        work = asyncio.create_task(runner.iter())
        await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert (await store.get_rollout_by_id(queued.rollout_id)).status == "requeuing"


async def test_an_agent_that_ends_well_after_the_word_to_stop_has_succeeded(store):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task):
        begun.set()
        await go_on.wait()
        return 1.0

    queued = await store.enqueue_rollout("x")
    async with at_work(Runner(tracer=DummyTracer()), agent, store) as event:
        await begun.wait()
        event.set()
        go_on.set()
    assert (await store.get_rollout_by_id(queued.rollout_id)).status == "succeeded"
