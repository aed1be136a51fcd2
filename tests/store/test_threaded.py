"""`LightningStoreThreaded`: waiting in one thread's loop and completing in another works, for any store."""

import asyncio

import pytest

from sharpen.errors import UnknownIdError
from sharpen.store import InMemoryLightningStore, LightningStoreThreaded, SQLiteStore

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
    with pytest.raises(UnknownIdError, match="ro-nope"):
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
    with pytest.raises(RuntimeError, match="closed"):
        await threaded.statistics()


async def test_a_store_may_be_closed_from_another_thread(inner):
    threaded = LightningStoreThreaded(inner)
    await threaded.enqueue_rollout("task")
    await in_other_loop(threaded.close)
    with pytest.raises(RuntimeError, match="closed"):
        await in_other_loop(threaded.statistics)


async def test_closing_ends_the_waits_of_other_threads(inner):
    threaded = LightningStoreThreaded(inner)
    claimed = await claim_new(threaded)
    wait = asyncio.ensure_future(in_other_loop(lambda: threaded.wait_for_rollouts(rollout_ids=[claimed.rollout_id])))
    await eventually(lambda: len(inner._finish_waiting))
    await threaded.close()
    with pytest.raises(RuntimeError, match="closed"):
        await wait
