"""The queue: enqueueing, binding to resources, claiming, starting past it."""

import asyncio

import pytest

from sharpen.errors import FinishedError, UnknownIdError
from sharpen.types import AttemptedRollout, EnqueueRolloutRequest, PromptTemplate, Rollout, RolloutConfig
from tests.errors import raises

from .scenes import claim_new, drain, finish_new, make_span, run_new, status_of, within_patience

PROMPT = {"prompt": PromptTemplate("Hello {name}")}


# -- enqueueing --------------------------------------------------------------------------------------


async def test_an_enqueued_rollout_waits_with_all_that_was_given(store, clock):
    config = RolloutConfig(timeout_seconds=9, max_attempts=2, retry_condition=["failed"])
    rollout = await store.enqueue_rollout({"q": 1}, mode="val", config=config, metadata={"epoch": 3})
    assert rollout.status == "queuing"
    assert (rollout.input, rollout.mode, rollout.config, rollout.metadata) == ({"q": 1}, "val", config, {"epoch": 3})
    assert (rollout.start_time, rollout.end_time, rollout.reward) == (clock.now, None, None)
    assert await store.get_rollout_by_id(rollout.rollout_id) == rollout


async def test_ids_of_the_store_tell_what_they_name(store):
    update = await store.add_resources(PROMPT)
    claimed = await claim_new(store)
    assert claimed.rollout_id.startswith("ro-")
    assert claimed.attempt.attempt_id.startswith("at-")
    assert update.resources_id.startswith("rs-")
    for text in (claimed.rollout_id, claimed.attempt.attempt_id, update.resources_id):
        int(text.split("-")[1], 16)


async def test_a_rollout_takes_the_id_of_the_caller(store):
    rollout = await store.enqueue_rollout("task", rollout_id="ro-mine")
    assert rollout.rollout_id == "ro-mine"


async def test_enqueueing_the_same_id_twice_is_one_rollout(store):
    first = await store.enqueue_rollout("task", mode="train", rollout_id="ro-mine")
    second = await store.enqueue_rollout("another task", mode="val", rollout_id="ro-mine")
    assert second == first
    assert (await store.query_rollouts()).total == 1
    assert await drain(store) == ["ro-mine"]


async def test_enqueueing_the_same_id_again_does_not_requeue_a_claimed_rollout(store):
    await store.enqueue_rollout("task", rollout_id="ro-mine")
    await store.dequeue_rollout()
    await store.enqueue_rollout("task", rollout_id="ro-mine")
    assert await store.dequeue_rollout() is None


async def test_enqueueing_the_same_id_again_does_not_revive_a_finished_rollout(store):
    claimed = await finish_new(store, reward=1.0)
    again = await store.enqueue_rollout("task", rollout_id=claimed.rollout_id)
    assert again.rollout_id == claimed.rollout_id
    assert await store.dequeue_rollout() is None
    assert (await status_of(store, claimed))[0] == "succeeded"


async def test_many_rollouts_are_enqueued_in_order_with_one_call(store):
    requests = [EnqueueRolloutRequest({"n": n}, mode="train", metadata={"n": n}) for n in range(20)]
    rollouts = await store.enqueue_many_rollouts(requests)
    assert [rollout.input["n"] for rollout in rollouts] == list(range(20))
    assert all(type(rollout) is Rollout and rollout.status == "queuing" for rollout in rollouts)
    assert await drain(store) == [rollout.rollout_id for rollout in rollouts]


async def test_an_id_repeated_within_one_call_is_one_rollout(store):
    requests = [EnqueueRolloutRequest(n, rollout_id=f"ro-{n % 2}") for n in range(4)]
    rollouts = await store.enqueue_many_rollouts(requests)
    assert [rollout.rollout_id for rollout in rollouts] == ["ro-0", "ro-1", "ro-0", "ro-1"]
    assert [rollout.input for rollout in rollouts] == [0, 1, 0, 1]
    assert await drain(store) == ["ro-0", "ro-1"]


async def test_enqueueing_nothing_is_nothing(store):
    assert await store.enqueue_many_rollouts([]) == []


async def test_one_bad_request_among_many_enqueues_none(store):
    requests = [EnqueueRolloutRequest("good"), EnqueueRolloutRequest("bad", resources_id="rs-unknown")]
    with raises(UnknownIdError, "rs-unknown"):
        await store.enqueue_many_rollouts(requests)
    assert (await store.query_rollouts()).total == 0
    assert await store.dequeue_rollout() is None


# -- binding to resources ----------------------------------------------------------------------------


async def test_a_rollout_without_any_resources_is_bound_to_none(store):
    rollout = await store.enqueue_rollout("task")
    assert (rollout.resources_id, rollout.resources_version) == (None, None)


async def test_a_rollout_is_bound_to_the_latest_resources_of_its_moment(store):
    first = await store.add_resources(PROMPT)
    early = await store.enqueue_rollout("task")
    await store.update_resources(first.resources_id, {"prompt": PromptTemplate("Hi")})
    late = await store.enqueue_rollout("task")
    second = await store.add_resources(PROMPT)
    last = await store.enqueue_rollout("task")

    bound = [(r.resources_id, r.resources_version) for r in (early, late, last)]
    assert bound == [(first.resources_id, 1), (first.resources_id, 2), (second.resources_id, 1)]
    claimed = await store.dequeue_rollout()
    assert (claimed.resources_id, claimed.resources_version) == (first.resources_id, 1)


async def test_a_rollout_is_bound_to_the_newest_version_of_the_resources_it_names(store):
    old = await store.add_resources(PROMPT, resources_id="rs-old")
    await store.update_resources("rs-old", PROMPT)
    await store.add_resources(PROMPT, resources_id="rs-new")
    rollout = await store.enqueue_rollout("task", resources_id=old.resources_id)
    assert (rollout.resources_id, rollout.resources_version) == ("rs-old", 2)


async def test_unknown_resources_are_refused_and_nothing_is_enqueued(store):
    with raises(ValueError, "rs-unknown") as caught:
        await store.enqueue_rollout("task", resources_id="rs-unknown")
    assert isinstance(caught.value, UnknownIdError)
    with pytest.raises(UnknownIdError):
        await store.start_rollout("task", resources_id="rs-unknown")
    assert (await store.query_rollouts()).total == 0


# -- claiming ----------------------------------------------------------------------------------------


async def test_rollouts_are_claimed_first_in_first_out(store):
    ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(5)]
    assert await drain(store) == ids


async def test_the_order_of_the_queue_does_not_depend_on_ids_or_times(store, clock):
    await store.enqueue_rollout(1, rollout_id="ro-z")
    clock.advance(-100)
    await store.enqueue_rollout(2, rollout_id="ro-a")
    clock.advance(200)
    await store.enqueue_rollout(3, rollout_id="ro-m")
    assert await drain(store) == ["ro-z", "ro-a", "ro-m"]


async def test_a_claim_makes_a_first_attempt_and_both_are_preparing(store, clock):
    rollout = await store.enqueue_rollout({"q": 1})
    clock.advance(3)
    claimed = await store.dequeue_rollout(worker_id="w-1")
    assert isinstance(claimed, AttemptedRollout)
    assert (claimed.rollout_id, claimed.input, claimed.status) == (rollout.rollout_id, {"q": 1}, "preparing")
    attempt = claimed.attempt
    assert (attempt.rollout_id, attempt.sequence_id, attempt.status) == (rollout.rollout_id, 1, "preparing")
    assert (attempt.worker_id, attempt.start_time, attempt.end_time) == ("w-1", clock.now, None)
    assert await store.get_rollout_by_id(rollout.rollout_id) == claimed


async def test_an_empty_queue_gives_nothing(store):
    assert await store.dequeue_rollout() is None
    assert await store.dequeue_many_rollouts(limit=5) == []


async def test_a_claim_with_the_same_request_id_gives_the_same_attempt(store):
    await store.enqueue_rollout(1)
    await store.enqueue_rollout(2)
    first = await store.dequeue_rollout(worker_id="w-1", request_id="req-1")
    again = await store.dequeue_rollout(worker_id="w-1", request_id="req-1")
    other = await store.dequeue_rollout(worker_id="w-1", request_id="req-2")
    assert again == first
    assert (first.input, other.input) == (1, 2)
    assert (await store.query_attempts(first.rollout_id)).total == 1


async def test_many_are_claimed_in_order_up_to_the_limit(store):
    for n in range(5):
        await store.enqueue_rollout(n)
    first = await store.dequeue_many_rollouts(limit=3, worker_id="w-1")
    rest = await store.dequeue_many_rollouts(limit=3)
    assert [claimed.input for claimed in first] == [0, 1, 2]
    assert [claimed.input for claimed in rest] == [3, 4]
    assert {claimed.attempt.worker_id for claimed in first} == {"w-1"}
    assert len({claimed.attempt.attempt_id for claimed in first + rest}) == 5


async def test_one_is_claimed_where_no_limit_is_given(store):
    for n in range(2):
        await store.enqueue_rollout(n)
    assert len(await store.dequeue_many_rollouts()) == 1


async def test_claiming_many_with_the_same_request_id_gives_the_same_attempts(store):
    for n in range(4):
        await store.enqueue_rollout(n)
    first = await store.dequeue_many_rollouts(limit=3, request_id="req-1")
    again = await store.dequeue_many_rollouts(limit=3, request_id="req-1")
    assert again == first
    assert len(await drain(store)) == 1


async def test_claiming_many_again_gives_them_in_the_same_order(store):
    old = await run_new(store)
    await store.enqueue_rollout("new")
    await store.update_rollout(old.rollout_id, status="requeuing")
    first = await store.dequeue_many_rollouts(limit=2, request_id="req-1")
    assert await store.dequeue_many_rollouts(limit=2, request_id="req-1") == first


async def test_a_claim_can_be_repeated_after_another_worker_took_over(store):
    await store.enqueue_rollout("task")
    await store.enqueue_rollout("another task")
    first = await store.dequeue_rollout(request_id="req-1")
    await store.start_attempt(first.rollout_id, worker_id="w-2")
    again = await store.dequeue_rollout(request_id="req-1")
    assert (again.rollout_id, again.attempt) == (first.rollout_id, first.attempt)
    assert len(await drain(store)) == 1


async def test_a_claim_can_be_repeated_after_it_was_completed(store):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(3)])
    first = await store.dequeue_many_rollouts(limit=2, request_id="req-1")
    await store.complete_attempt(first[0].rollout_id, first[0].attempt.attempt_id)
    again = await store.dequeue_many_rollouts(limit=2, request_id="req-1")
    assert [claimed.attempt.attempt_id for claimed in again] == [claimed.attempt.attempt_id for claimed in first]
    assert len(await drain(store)) == 1


async def test_no_rollout_is_claimed_twice_by_workers_who_race(store):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(30)])
    claims = await within_patience(asyncio.gather(*(store.dequeue_rollout(worker_id=f"w-{n}") for n in range(40))))
    claimed = [claim.input for claim in claims if claim]
    assert sorted(claimed) == list(range(30))


# -- starting past the queue -------------------------------------------------------------------------


async def test_a_started_rollout_is_preparing_with_attempt_one_and_never_queued(store):
    await store.add_resources(PROMPT, resources_id="rs-1")
    started = await store.start_rollout("task", mode="test", metadata={"k": 1}, worker_id="w-1")
    assert isinstance(started, AttemptedRollout)
    assert (started.status, started.mode, started.metadata) == ("preparing", "test", {"k": 1})
    assert (started.resources_id, started.resources_version) == ("rs-1", 1)
    assert (started.attempt.sequence_id, started.attempt.status) == (1, "preparing")
    assert started.attempt.worker_id == "w-1"
    assert await store.dequeue_rollout() is None


async def test_starting_the_same_id_twice_is_one_rollout_with_one_attempt(store):
    first = await store.start_rollout("task", rollout_id="ro-mine", worker_id="w-1")
    again = await store.start_rollout("task", rollout_id="ro-mine", worker_id="w-1")
    assert again == first
    assert (await store.query_attempts("ro-mine")).total == 1


# -- attempts on request -----------------------------------------------------------------------------


async def test_an_attempt_on_request_takes_a_waiting_rollout_out_of_the_queue(store):
    rollout = await store.enqueue_rollout("task")
    started = await store.start_attempt(rollout.rollout_id, worker_id="w-1")
    assert (started.status, started.attempt.sequence_id, started.attempt.worker_id) == ("preparing", 1, "w-1")
    assert await store.dequeue_rollout() is None


async def test_an_attempt_on_request_becomes_the_one_that_counts(store):
    old = await run_new(store)
    new = await store.start_attempt(old.rollout_id)
    assert (new.status, new.attempt.sequence_id, new.attempt.status) == ("preparing", 2, "preparing")
    assert await store.get_latest_attempt(old.rollout_id) == new.attempt
    await store.complete_attempt(old.rollout_id, old.attempt.attempt_id, status="failed")
    assert await status_of(store, old) == ("preparing", "preparing")
    await store.complete_attempt(old.rollout_id, new.attempt.attempt_id)
    assert await status_of(store, old) == ("succeeded", "succeeded")


async def test_an_attempt_on_request_is_repeatable_by_its_request_id(store):
    rollout = await store.enqueue_rollout("task")
    first = await store.start_attempt(rollout.rollout_id, request_id="req-1")
    again = await store.start_attempt(rollout.rollout_id, request_id="req-1")
    other = await store.start_attempt(rollout.rollout_id, request_id="req-2")
    assert again == first
    assert other.attempt.sequence_id == 2


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_a_finished_rollout_takes_no_new_attempt(store, status):
    claimed = await run_new(store)
    await store.update_rollout(claimed.rollout_id, status=status)
    with raises(ValueError, claimed.rollout_id) as caught:
        await store.start_attempt(claimed.rollout_id)
    assert isinstance(caught.value, FinishedError)
    assert (await store.query_attempts(claimed.rollout_id)).total == 1


async def test_an_attempt_of_an_unknown_rollout_is_refused(store):
    with raises(UnknownIdError, "ro-unknown"):
        await store.start_attempt("ro-unknown")


async def test_a_span_of_a_claimed_rollout_carries_it_to_running(store):
    claimed = await claim_new(store)
    await store.add_span(make_span(claimed))
    assert await status_of(store, claimed) == ("running", "running")
