"""Waiting: for work, for rollouts to finish, and along the cursor of completions."""

import asyncio
import threading

import pytest

from sharpen.errors import UnknownIdError
from sharpen.types import EnqueueRolloutRequest
from tests.errors import raises

from .scenes import claim_new, finish_new, make_span, run_new, waiting, within_patience

LONG = 300


# -- for work ----------------------------------------------------------------------------------------


async def test_a_claim_that_waits_is_woken_by_an_enqueue(store):
    claim = await waiting(store, store.dequeue_rollout(worker_id="w-1", wait_seconds=LONG))
    rollout = await store.enqueue_rollout("task")
    claimed = await within_patience(claim)
    assert (claimed.rollout_id, claimed.attempt.worker_id) == (rollout.rollout_id, "w-1")


async def test_a_claim_that_waits_is_woken_by_a_requeue(store):
    running = await run_new(store, max_attempts=2, retry_condition=["failed"])
    claim = await waiting(store, store.dequeue_rollout(wait_seconds=LONG))
    await store.complete_attempt(running.rollout_id, running.attempt.attempt_id, status="failed")
    assert (await within_patience(claim)).attempt.sequence_id == 2


async def test_a_claim_that_waits_is_woken_by_an_expired_lease(world):
    store = world.store
    await run_new(store, unresponsive_seconds=10, max_attempts=2, retry_condition=["unresponsive"])
    claim = await waiting(store, store.dequeue_rollout(wait_seconds=LONG))
    world.pass_time(11)
    assert (await within_patience(claim)).attempt.sequence_id == 2


async def test_a_claim_of_many_that_waits_gets_what_comes_first(store):
    claim = await waiting(store, store.dequeue_many_rollouts(limit=5, wait_seconds=LONG))
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(3)])
    assert [claimed.input for claimed in await within_patience(claim)] == [0, 1, 2]


async def test_a_claim_does_not_wait_where_there_is_work(store):
    await store.enqueue_rollout("task")
    assert await within_patience(store.dequeue_rollout(wait_seconds=LONG)) is not None
    await store.enqueue_rollout("task")
    assert len(await within_patience(store.dequeue_many_rollouts(limit=5, wait_seconds=LONG))) == 1


async def test_a_claim_gives_up_after_its_wait(store):
    assert await within_patience(store.dequeue_rollout(wait_seconds=0.05)) is None
    assert await within_patience(store.dequeue_many_rollouts(limit=2, wait_seconds=0.05)) == []


async def test_each_of_many_waiting_claims_is_served_once(store):
    claims = [asyncio.ensure_future(store.dequeue_rollout(wait_seconds=LONG)) for _ in range(8)]
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(8)])
    claimed = await within_patience(asyncio.gather(*claims))
    assert sorted(claim.input for claim in claimed) == list(range(8))


async def test_a_claim_that_gave_up_takes_no_work_with_it(store):
    claim = await waiting(store, store.dequeue_rollout(wait_seconds=LONG))
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    other = await waiting(store, store.dequeue_rollout(wait_seconds=LONG))
    rollout = await store.enqueue_rollout("task")
    assert (await within_patience(other)).rollout_id == rollout.rollout_id


# -- for rollouts ------------------------------------------------------------------------------------


async def test_waiting_gives_all_when_all_are_finished(store):
    claims = [await finish_new(store, reward=n) for n in range(3)]
    finished = await within_patience(store.wait_for_rollouts(rollout_ids=[c.rollout_id for c in claims]))
    assert {(r.rollout_id, r.reward) for r in finished} == {(c.rollout_id, n) for n, c in enumerate(claims)}


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_waiting_gives_those_finished_at_the_deadline(store, timeout):
    done = await finish_new(store)
    failed = await finish_new(store, status="failed")
    open_one = await run_new(store)
    ids = [open_one.rollout_id, done.rollout_id, failed.rollout_id]
    finished = await within_patience(store.wait_for_rollouts(rollout_ids=ids, timeout=timeout))
    assert {r.rollout_id for r in finished} == {done.rollout_id, failed.rollout_id}


async def test_waiting_is_woken_by_the_last_completion(store):
    first, second = await claim_new(store), await claim_new(store)
    ids = [first.rollout_id, second.rollout_id]
    wait = await waiting(store, store.wait_for_rollouts(rollout_ids=ids))
    await store.complete_attempt(first.rollout_id, first.attempt.attempt_id)
    await store.statistics()
    assert not wait.done()
    await store.complete_attempt(second.rollout_id, second.attempt.attempt_id, status="failed")
    assert {r.status for r in await within_patience(wait)} == {"succeeded", "failed"}


async def test_waiting_is_woken_by_a_cancellation(store):
    rollout = await store.enqueue_rollout("task")
    wait = await waiting(store, store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=LONG))
    await store.cancel_rollouts([rollout.rollout_id])
    assert [r.status for r in await within_patience(wait)] == ["cancelled"]


async def test_waiting_is_woken_by_a_status_set_by_hand(store):
    rollout = await store.enqueue_rollout("task")
    wait = await waiting(store, store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=LONG))
    await store.update_rollout(rollout.rollout_id, status="succeeded")
    assert [r.status for r in await within_patience(wait)] == ["succeeded"]


async def test_waiting_is_woken_by_a_timeout(world):
    claimed = await run_new(world.store, timeout_seconds=10)
    wait = await waiting(world.store, world.store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=LONG))
    world.pass_time(11)
    assert [r.status for r in await within_patience(wait)] == ["failed"]


async def test_waiting_for_an_unknown_rollout_is_refused_at_once(store):
    rollout = await store.enqueue_rollout("task")
    with raises(ValueError, "ro-unknown") as caught:
        await within_patience(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id, "ro-unknown"], timeout=LONG))
    assert isinstance(caught.value, UnknownIdError)


async def test_waiting_for_nothing_ends_at_once(store):
    assert await within_patience(store.wait_for_rollouts(rollout_ids=[])) == []


async def test_waiting_works_for_any_number_of_ids(store):
    requests = [EnqueueRolloutRequest(n, rollout_id=f"ro-{n:032x}") for n in range(3000)]
    ids = [r.rollout_id for r in await store.enqueue_many_rollouts(requests)]
    wait = await waiting(store, store.wait_for_rollouts(rollout_ids=ids, timeout=LONG))
    await store.cancel_rollouts(ids)
    assert {r.rollout_id for r in await within_patience(wait)} == set(ids)


async def test_an_id_given_twice_is_waited_for_once(store):
    claimed = await finish_new(store)
    finished = await within_patience(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id] * 2))
    assert {r.rollout_id for r in finished} == {claimed.rollout_id}


async def test_a_requeued_rollout_is_still_waited_for(store):
    claimed = await run_new(store, max_attempts=2, retry_condition=["failed"])
    wait = await waiting(store, store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=LONG))
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    again = await store.dequeue_rollout()
    await store.add_span(make_span(again))
    assert not wait.done()
    await store.complete_attempt(again.rollout_id, again.attempt.attempt_id)
    assert [r.status for r in await within_patience(wait)] == ["succeeded"]


async def test_waiting_in_one_thread_and_completing_in_another_works(store):
    assert store.capabilities["thread_safe"]
    claimed = await claim_new(store)
    wait = await waiting(store, store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=LONG))
    claim = await waiting(store, store.dequeue_rollout(wait_seconds=LONG))

    async def work():
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
        await store.enqueue_rollout("task")

    worker = threading.Thread(target=lambda: asyncio.run(work()))
    worker.start()
    assert [r.status for r in await within_patience(wait)] == ["succeeded"]
    assert (await within_patience(claim)).input == "task"
    worker.join()


# -- along the cursor --------------------------------------------------------------------------------


async def test_the_cursor_gives_completions_in_their_order(store):
    first, second, third = [await claim_new(store, n) for n in range(3)]
    await store.complete_attempt(third.rollout_id, third.attempt.attempt_id)
    await store.cancel_rollouts([first.rollout_id])
    await store.complete_attempt(second.rollout_id, second.attempt.attempt_id, status="failed")
    finished = await store.finished_rollouts()
    assert [(r.input, r.status) for r in finished.items] == [(2, "succeeded"), (0, "cancelled"), (1, "failed")]


async def test_the_cursor_goes_on_where_it_stopped(store):
    claims = [await finish_new(store, n) for n in range(5)]
    first = await store.finished_rollouts(limit=2)
    second = await store.finished_rollouts(after=first.cursor, limit=2)
    third = await store.finished_rollouts(after=second.cursor, limit=2)
    assert [r.input for page in (first, second, third) for r in page.items] == [0, 1, 2, 3, 4]
    assert len(third.items) == 1
    end = await store.finished_rollouts(after=third.cursor)
    assert (end.items, end.cursor) == ([], third.cursor)
    assert len(claims) == 5


async def test_the_cursor_of_an_empty_store_stays_at_the_beginning(store):
    nothing = await store.finished_rollouts()
    assert (nothing.items, nothing.cursor) == ([], 0)
    await finish_new(store)
    assert len((await store.finished_rollouts(after=nothing.cursor)).items) == 1


async def test_the_order_of_completions_does_not_depend_on_the_clock(store, clock):
    first = await finish_new(store)
    clock.advance(-100)
    second = await finish_new(store)
    assert [r.rollout_id for r in (await store.finished_rollouts()).items] == [first.rollout_id, second.rollout_id]


async def test_a_cursor_that_waits_is_woken_by_a_completion(store):
    await finish_new(store)
    cursor = (await store.finished_rollouts()).cursor
    claimed = await claim_new(store)
    wait = await waiting(store, store.finished_rollouts(after=cursor, wait_seconds=LONG))
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=0.5)
    (rollout,) = (await within_patience(wait)).items
    assert (rollout.rollout_id, rollout.status, rollout.reward) == (claimed.rollout_id, "succeeded", 0.5)


async def test_a_cursor_gives_up_after_its_wait(store):
    assert (await within_patience(store.finished_rollouts(wait_seconds=0.05))).items == []


async def test_a_cursor_does_not_wait_where_there_are_completions(store):
    await finish_new(store)
    assert len((await within_patience(store.finished_rollouts(wait_seconds=LONG))).items) == 1


async def test_a_requeued_rollout_is_no_completion(store):
    claimed = await run_new(store, max_attempts=2, retry_condition=["failed"])
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    assert (await store.finished_rollouts()).items == []
