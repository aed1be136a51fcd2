"""What only the memory store promises: any object as a task, a bound on spans, threads, a watchdog of its own."""

import gc
import threading
import time

import pytest

from sharpen.errors import InvalidInputError, SpansEvictedError
from sharpen.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer
from sharpen.types import RolloutConfig
from tests.errors import raises

from .scenes import PATIENCE_SECONDS, claim_new, finish_new, make_span, within_patience
from .threads import in_threads, named_threads
from .worlds import Clock

WATCHDOG = "sharpen-watchdog"


@pytest.fixture
async def store():
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


async def finish_with_spans(store, *, count=4, size_bytes=1000):
    """A finished rollout whose spans weigh about `count * size_bytes`."""
    claimed = await claim_new(store)
    spans = [make_span(claimed, attributes={"text": "x" * size_bytes}) for _ in range(count)]
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=spans)
    return claimed


# -- tasks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [object(), lambda: 1, {1: {2, 3}}, b"bytes", threading.Lock(), float("nan")],
    ids=lambda task: type(task).__name__,
)
async def test_any_object_may_be_a_task_and_comes_back_itself(store, task):
    rollout = await store.enqueue_rollout(task, metadata={"key": task})
    claimed = await store.dequeue_rollout()
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert all(each.input is task for each in (rollout, claimed, found))
    assert found.metadata["key"] is task


# -- the bound on spans ------------------------------------------------------------------------------


async def test_spans_of_the_oldest_finished_rollouts_are_dropped_past_the_bound():
    store = InMemoryLightningStore(max_span_bytes=15_000)
    finished = [await finish_with_spans(store) for _ in range(6)]
    with raises(SpansEvictedError, "max_span_bytes=15000", "SQLiteStore") as error:
        await store.query_spans(finished[0].rollout_id)
    assert finished[0].rollout_id in str(error.value)
    assert isinstance(error.value, LookupError)
    assert len(await store.query_spans(finished[-1].rollout_id)) == 4
    kept = [await is_kept(store, each) for each in finished]
    assert kept == sorted(kept)
    statistics = await store.statistics()
    assert 0 < statistics["size_bytes"] <= 15_000
    assert statistics["total_spans"] == 4 * sum(kept)
    await store.close()


async def is_kept(store, rollout):
    try:
        return len(await store.query_spans(rollout.rollout_id)) > 0
    except SpansEvictedError:
        return False


async def test_dropped_spans_change_nothing_else_of_their_rollout():
    clock = Clock()
    store = InMemoryLightningStore(max_span_bytes=0, clock=clock)
    claimed = await claim_new(store)
    spans = [make_span(claimed)]
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=spans, reward=0.5)
    found = await store.get_rollout_by_id(claimed.rollout_id)
    assert (found.status, found.reward, found.attempt.status) == ("succeeded", 0.5, "succeeded")
    await store.add_span(make_span(claimed))
    with pytest.raises(SpansEvictedError):
        await store.query_spans(claimed.rollout_id, "latest")
    clock.advance(1)
    assert await store.prune(0) == 1
    statistics = await store.statistics()
    assert (statistics["total_rollouts"], statistics["total_spans"], statistics["size_bytes"]) == (0, 0, 0)
    await store.close()


async def test_spans_of_unfinished_rollouts_are_never_dropped():
    store = InMemoryLightningStore(max_span_bytes=1000)
    claimed = await claim_new(store)
    await store.add_many_spans([make_span(claimed, attributes={"text": "x" * 1000}) for _ in range(5)])
    await finish_with_spans(store)
    assert len(await store.query_spans(claimed.rollout_id)) == 5
    await store.close()


async def test_without_a_bound_nothing_is_dropped(store):
    finished = [await finish_with_spans(store, size_bytes=20_000) for _ in range(10)]
    assert [len(await store.query_spans(each.rollout_id)) for each in finished] == [4] * 10


async def test_dropped_spans_are_the_same_error_over_http(tmp_path):
    server = LightningStoreServer(InMemoryLightningStore(max_span_bytes=0))
    await server.start()
    client = LightningStoreClient(server.endpoint, spool_folder=tmp_path)
    claimed = await finish_with_spans(client)
    with raises(SpansEvictedError, "max_span_bytes"):
        await client.query_spans(claimed.rollout_id)
    await client.close()
    await server.close()


def test_a_negative_bound_is_refused():
    with raises(InvalidInputError, "max_span_bytes", -1):
        InMemoryLightningStore(max_span_bytes=-1)


# -- threads -----------------------------------------------------------------------------------------


def test_many_threads_may_use_one_store():
    store = InMemoryLightningStore(thread_safe=True)
    assert store.capabilities["thread_safe"]

    async def work(number):
        done = []
        for step in range(40):
            await store.enqueue_rollout((number, step))
            claimed = await store.dequeue_rollout(worker_id=f"w-{number}", wait_seconds=PATIENCE_SECONDS)
            await store.add_span(make_span(claimed))
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=1.0)
            done.append(claimed.input)
        return done

    done = [task for tasks in in_threads(8, work) for task in tasks]
    assert sorted(done) == [(number, step) for number in range(8) for step in range(40)]

    async def check(_):
        statistics = await store.statistics()
        assert statistics["rollouts_by_status"]["succeeded"] == statistics["total_spans"] == 320
        assert (statistics["queue_length"], statistics["open_attempts"]) == (0, 0)
        await store.close()

    in_threads(1, check)


# -- time --------------------------------------------------------------------------------------------


async def test_the_watchdog_retries_and_gives_up_by_itself(store):
    config = RolloutConfig(unresponsive_seconds=0.2, max_attempts=2, retry_condition=["unresponsive"])
    rollout = await store.enqueue_rollout("task", config=config)
    began = time.monotonic()
    first = await store.dequeue_rollout()
    second = await within_patience(store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
    assert time.monotonic() - began >= 0.2
    assert (second.rollout_id, second.attempt.sequence_id) == (rollout.rollout_id, 2)
    (failed,) = await within_patience(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
    # One lease until it is unresponsive, one more to come back.
    assert time.monotonic() - began >= 0.6
    assert failed.status == "failed"
    statuses = [attempt.status for attempt in await store.query_attempts(rollout.rollout_id)]
    assert statuses == ["unresponsive", "unresponsive"]
    assert first.attempt.attempt_id != second.attempt.attempt_id


async def test_the_watchdog_ends_what_takes_too_long(store):
    claimed = await claim_new(store, timeout_seconds=0.2)
    (failed,) = await within_patience(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
    assert failed.status == "failed"
    assert (await store.get_latest_attempt(claimed.rollout_id)).status == "timeout"


# -- ends --------------------------------------------------------------------------------------------


async def test_a_store_that_is_forgotten_unclosed_ends_its_thread():
    before = named_threads(WATCHDOG)
    store = InMemoryLightningStore()
    await claim_new(store, timeout_seconds=3600)
    (thread,) = named_threads(WATCHDOG) - before
    del store
    gc.collect()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


async def test_a_closed_store_has_no_thread():
    before = named_threads(WATCHDOG)
    store = InMemoryLightningStore()
    await claim_new(store, timeout_seconds=3600)
    await store.close()
    await store.close()
    assert named_threads(WATCHDOG) <= before


async def test_a_store_without_deadlines_needs_no_thread(store):
    before = named_threads(WATCHDOG)
    await finish_new(store)
    assert named_threads(WATCHDOG) <= before
