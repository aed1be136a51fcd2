"""`LightningStoreThreaded`: waiting in one thread's loop and completing in another works, for any store."""

import asyncio
import threading

import pytest

from sharpen.errors import UnknownIdError
from sharpen.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
    LightningStoreThreaded,
    SQLiteStore,
)
from sharpen.types import Rollout
from tests.errors import raises

from .processes import eventually
from .scenes import PATIENCE_SECONDS, claim_new, make_span, within_patience
from .threads import in_threads, named_threads


@pytest.fixture(params=["memory", "sqlite"])
async def inner(request, tmp_path):
    """A store that is not thread-safe, and one that is."""
    return InMemoryLightningStore(thread_safe=False) if request.param == "memory" else SQLiteStore(tmp_path / "s.db")


@pytest.fixture
async def store(inner):
    threaded = LightningStoreThreaded(inner)
    yield threaded
    await threaded.close()


async def in_other_loop(call):
    """Run a call in a thread with its own loop: `call()` makes the coroutine there."""

    async def run():
        return await call()

    return await within_patience(asyncio.to_thread(lambda: asyncio.run(run())))


async def test_a_wait_for_rollouts_is_woken_by_a_completion_in_another_thread(store):
    claimed = await claim_new(store)
    wait = asyncio.ensure_future(
        in_other_loop(lambda: store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=PATIENCE_SECONDS))
    )
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=1.0)
    (finished,) = await wait
    assert (finished.status, finished.reward) == ("succeeded", 1.0)


async def test_a_claim_is_woken_by_an_enqueue_in_another_thread(store):
    claim = asyncio.ensure_future(store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
    rollout = await in_other_loop(lambda: store.enqueue_rollout("task"))
    assert (await within_patience(claim)).rollout_id == rollout.rollout_id


async def test_a_cursor_is_woken_by_a_completion_in_another_thread(store):
    claimed = await claim_new(store)
    wait = asyncio.ensure_future(store.finished_rollouts(wait_seconds=PATIENCE_SECONDS))
    attempt_id = claimed.attempt.attempt_id
    await in_other_loop(lambda: store.complete_attempt(claimed.rollout_id, attempt_id))
    assert [each.rollout_id for each in (await within_patience(wait)).items] == [claimed.rollout_id]


def test_a_store_that_is_not_thread_safe_survives_eight_threads():
    inner = InMemoryLightningStore(thread_safe=False)
    store = LightningStoreThreaded(inner)
    assert not inner.capabilities["thread_safe"]
    assert store.capabilities["thread_safe"]

    async def work(number):
        done = []
        for step in range(40):
            await store.enqueue_rollout((number, step))
            claimed = await store.dequeue_rollout(worker_id=f"w-{number}", wait_seconds=PATIENCE_SECONDS)
            await store.add_many_spans([make_span(claimed), make_span(claimed)])
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
            done.append(claimed.input)
        return done

    done = [task for tasks in in_threads(8, work) for task in tasks]
    assert sorted(done) == [(number, step) for number in range(8) for step in range(40)]

    async def check(_):
        statistics = await store.statistics()
        assert statistics["rollouts_by_status"]["succeeded"] == 320
        assert statistics["total_spans"] == 640
        await store.close()

    in_threads(1, check)


async def test_an_error_keeps_its_class_across_threads(store):
    with raises(UnknownIdError, "ro-nope"):
        await in_other_loop(lambda: store.start_attempt("ro-nope"))


async def test_a_wait_that_is_given_up_in_its_thread_takes_no_work(store):
    claim = asyncio.ensure_future(store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
    await store.statistics()
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    await store.enqueue_rollout("task")
    assert await store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS) is not None


async def test_closing_ends_the_loop_and_closes_the_store(inner):
    before = named_threads("sharpen-store-loop")
    threaded = LightningStoreThreaded(inner)
    (thread,) = named_threads("sharpen-store-loop") - before
    await claim_new(threaded, timeout_seconds=3600)
    await threaded.close()
    await threaded.close()
    assert not thread.is_alive()
    with pytest.raises(RuntimeError):
        await threaded.statistics()


async def test_a_store_may_be_closed_from_another_thread(inner):
    threaded = LightningStoreThreaded(inner)
    await threaded.enqueue_rollout("task")
    await in_other_loop(threaded.close)
    with pytest.raises(RuntimeError):
        await in_other_loop(threaded.statistics)


async def test_closing_ends_the_waits_of_other_threads(inner):
    threaded = LightningStoreThreaded(inner)
    claimed = await claim_new(threaded)
    wait = asyncio.ensure_future(in_other_loop(lambda: threaded.wait_for_rollouts(rollout_ids=[claimed.rollout_id])))
    await eventually(lambda: len(inner._finish_waiting))
    await threaded.close()
    with pytest.raises(RuntimeError):
        await wait


class OfAUser(LightningStore):
    """A store that somebody wrote by the contract, and that is safe in one thread only."""

    def __init__(self):
        self.calls, self.threads = [], set()

    def note(self, name):
        self.calls.append(name)
        self.threads.add(threading.get_ident())

    async def enqueue_rollout(self, input, mode=None, resources_id=None, config=None, metadata=None, rollout_id=None):
        self.note("enqueue_rollout")
        return Rollout("ro-1", input, 0.0)

    async def query_rollouts(self, **wanted):
        self.note("query_rollouts")
        return [Rollout("ro-1", "task", 0.0)]

    async def add_otel_span(self, rollout_id, attempt_id, readable_span, sequence_id=None):
        self.note("add_otel_span")


@pytest.mark.parametrize("wrap", [LightningStoreThreaded, LightningStoreServer])
async def test_each_call_reaches_the_method_of_its_name(wrap):
    inner = OfAUser()
    store = wrap(inner)
    assert (await store.enqueue_rollout("task")).rollout_id == "ro-1"
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == ["ro-1"]
    await store.add_otel_span("ro-1", "at-1", None)
    await store.close()
    assert inner.calls == ["enqueue_rollout", "query_rollouts", "add_otel_span"]
    assert (threading.get_ident() in inner.threads) == (wrap is LightningStoreServer)
    assert len(inner.threads) == 1


async def test_a_plain_list_of_rollouts_can_be_served():
    server = LightningStoreServer(OfAUser())
    await server.start()
    client = LightningStoreClient(server.endpoint)
    page = await client.query_rollouts()
    assert ([rollout.rollout_id for rollout in page], page.total) == (["ro-1"], 1)
    await client.close()
    await server.close()


class Interrupted(OfAUser):
    """Two calls at once would meet in the middle of this one."""

    inside = 0

    async def enqueue_rollout(self, input, **rest):
        assert not self.inside
        self.inside += 1
        await asyncio.sleep(0.01)
        self.inside -= 1
        return Rollout("ro-1", input, 0.0)


async def test_calls_run_one_after_another():
    store = LightningStoreThreaded(Interrupted())
    done = await asyncio.gather(*(store.enqueue_rollout(number) for number in range(5)))
    assert [rollout.input for rollout in done] == [0, 1, 2, 3, 4]
    await store.close()
