"""Spans leave in batches, off the agent's path, and all are stored before the attempt counts as finished."""

import asyncio
import time

import pytest

from sharpen import InMemoryLightningStore, LightningStoreThreaded, emit_message, rollout
from sharpen.errors import StoreWriteError
from sharpen.runner import Runner
from sharpen.tracer import DummyTracer, OtelTracer

from .scenes import PATIENCE_SECONDS, at_work, finished, run_tasks


class SlowStore(InMemoryLightningStore):
    """Every write of spans takes its time."""

    async def add_many_spans(self, spans):
        await asyncio.sleep(0.3)
        return await super().add_many_spans(spans)

    async def complete_attempt(self, *args, **kwargs):
        await asyncio.sleep(0.3)
        return await super().complete_attempt(*args, **kwargs)


async def test_a_slow_store_slows_nothing_but_the_end_of_the_attempt():
    store = SlowStore()
    spent = []

    @rollout
    def agent(task):
        began = time.monotonic()
        for n in range(200):
            emit_message(str(n))
        spent.append(time.monotonic() - began)
        return 1.0

    (done,) = await run_tasks(agent, ["x"], store=store, runner=Runner(tracer=OtelTracer()))
    assert spent[0] < 200 * 0.3 / 10
    assert len(await store.query_spans(done.rollout_id)) >= 201


async def test_spans_of_a_long_attempt_are_there_while_it_runs():
    store = InMemoryLightningStore()
    seen = asyncio.Event()

    @rollout
    async def agent(task):
        emit_message("early")
        await asyncio.wait_for(seen.wait(), PATIENCE_SECONDS)
        emit_message("late")
        return 1.0

    queued = await store.enqueue_rollout("x")
    async with at_work(Runner(tracer=DummyTracer()), agent, store):
        while not await store.query_spans(queued.rollout_id):
            await asyncio.sleep(0.02)
        assert (await store.get_rollout_by_id(queued.rollout_id)).status == "running"
        seen.set()
        await finished(store, [queued])
    spans = await store.query_spans(queued.rollout_id)
    assert [span.attributes.get("sharpen.message.body") for span in spans][:2] == ["early", "late"]
    assert len({span.span_id for span in spans}) == len(spans)


class FullDisk(InMemoryLightningStore):
    """Cannot write at first."""

    refusals = 3

    async def complete_attempt(self, *args, **kwargs):
        if self.refusals:
            self.refusals -= 1
            raise StoreWriteError("the disk is full")
        return await super().complete_attempt(*args, **kwargs)


async def test_an_outcome_is_kept_until_the_store_can_write_again():
    store = FullDisk()
    (done,) = await run_tasks(lambda task: 1.0, ["x"], store=store)
    assert (done.status, done.reward, store.refusals) == ("succeeded", 1.0, 0)


class Flaky(InMemoryLightningStore):
    """A store of one's own, with errors of its own."""

    def __init__(self):
        super().__init__()
        self.failures = {"update_worker": 2, "complete_attempt": 2, "dequeue_many_rollouts": 1}

    def fail(self, name):
        if self.failures[name]:
            self.failures[name] -= 1
            raise ConnectionError(f"{name} did not get through")

    async def update_worker(self, *args, **kwargs):
        self.fail("update_worker")
        return await super().update_worker(*args, **kwargs)

    async def complete_attempt(self, *args, **kwargs):
        self.fail("complete_attempt")
        return await super().complete_attempt(*args, **kwargs)

    async def dequeue_many_rollouts(self, **kwargs):
        self.fail("dequeue_many_rollouts")
        return await super().dequeue_many_rollouts(**kwargs)


async def test_errors_of_a_store_of_ones_own_end_neither_heartbeats_nor_outcomes():
    store = Flaky()
    runner = Runner(tracer=DummyTracer(), heartbeat_interval=0.05)
    queued = await store.enqueue_rollout("x")
    async with at_work(runner, lambda task: 1.0, store):
        (done,) = await finished(store, [queued])
        while await store.get_worker_by_id(runner.worker_name) is None:
            await asyncio.sleep(0.02)
    assert done.status == "succeeded"
    assert set(store.failures.values()) == {0}


class LosesAClaim(InMemoryLightningStore):
    """The first claim is made, but its answer does not arrive."""

    lost = 0

    async def dequeue_many_rollouts(self, **kwargs):
        claimed = await super().dequeue_many_rollouts(**kwargs)
        if claimed and not self.lost:
            self.lost = len(claimed)
            raise ConnectionError("the answer was lost")
        return claimed


async def test_a_claim_whose_answer_was_lost_is_run_again():
    store = LosesAClaim()
    runner = Runner(tracer=DummyTracer(), heartbeat_interval=0.1)
    lease = {"unresponsive_seconds": 1.0, "max_attempts": 2, "retry_condition": ["unresponsive"]}
    done = await run_tasks(lambda task: 1.0, ["x", "y"], runner=runner, store=store, **lease)
    assert store.lost == 1
    assert [each.status for each in done] == ["succeeded"] * 2


class HeartbeatOf01(InMemoryLightningStore):
    """A store of one's own with the heartbeat of 0.1."""

    async def update_worker(self, worker_id, heartbeat_stats=None):
        return await super().update_worker(worker_id, heartbeat_stats)


@pytest.mark.parametrize("wrap", [lambda store: store, LightningStoreThreaded])
async def test_a_store_whose_heartbeat_takes_no_attempt_ids_is_sent_none(wrap):
    inner = HeartbeatOf01()
    store = wrap(inner)
    runner = Runner(tracer=DummyTracer(), heartbeat_interval=0.05)
    async with at_work(runner, lambda task: 1.0, store):
        while await inner.get_worker_by_id(runner.worker_name) is None:
            await asyncio.sleep(0.02)
    if store is not inner:
        await store.close()
    assert (await inner.get_worker_by_id(runner.worker_name)).heartbeat_stats["slots"] == 1
