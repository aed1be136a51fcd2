"""Attempts: how their status moves the rollout, and how they are completed."""

import pytest

from sharpen.errors import InvalidInputError, UnknownIdError
from tests.errors import raises

from .scenes import RETRY_ALL, claim_new, finish_new, make_span, reward_span, run_new, status_of

LOST = ("failed", "timeout", "unresponsive")


# -- changing attempts -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["preparing", "running", "succeeded"])
async def test_preparing_running_and_succeeded_carry_the_rollout_with_them(store, status):
    claimed = await claim_new(store)
    attempt = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    assert attempt.status == status
    assert await status_of(store, claimed) == (status, status)


@pytest.mark.parametrize("status", LOST)
async def test_a_lost_attempt_is_tried_again_while_attempts_are_left(store, status):
    claimed = await run_new(store, max_attempts=2, retry_condition=[status])
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    assert await status_of(store, claimed) == ("requeuing", status)

    again = await store.dequeue_rollout()
    assert (again.rollout_id, again.attempt.sequence_id) == (claimed.rollout_id, 2)
    assert await store.dequeue_rollout() is None
    await store.update_attempt(claimed.rollout_id, again.attempt.attempt_id, status=status)
    assert await status_of(store, claimed) == ("failed", status)
    assert await store.dequeue_rollout() is None


@pytest.mark.parametrize("status", LOST)
async def test_a_lost_attempt_outside_the_retry_condition_fails_the_rollout(store, status):
    others = [other for other in LOST if other != status]
    claimed = await run_new(store, max_attempts=5, retry_condition=others)
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    assert await status_of(store, claimed) == ("failed", status)
    assert await store.dequeue_rollout() is None


@pytest.mark.parametrize("status", ["succeeded", *LOST])
async def test_every_ended_attempt_has_an_end_time(store, clock, status):
    claimed = await run_new(store, max_attempts=2, retry_condition=RETRY_ALL)
    clock.advance(7)
    attempt = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    assert attempt.end_time == clock.now
    assert await store.get_latest_attempt(claimed.rollout_id) == attempt


async def test_the_latest_attempt_has_a_name_of_its_own(store):
    claimed = await run_new(store)
    await store.start_attempt(claimed.rollout_id)
    attempt = await store.update_attempt(claimed.rollout_id, "latest", status="running")
    assert (attempt.sequence_id, attempt.status) == (2, "running")
    assert (await status_of(store, claimed))[0] == "running"


@pytest.mark.parametrize("status", ["succeeded", *LOST])
async def test_an_attempt_that_is_not_the_latest_moves_nothing(store, status):
    old = await run_new(store, max_attempts=5, retry_condition=RETRY_ALL)
    new = await store.start_attempt(old.rollout_id)
    await store.update_attempt(old.rollout_id, old.attempt.attempt_id, status=status)
    assert await status_of(store, old) == ("preparing", "preparing")
    assert await store.get_latest_attempt(old.rollout_id) == new.attempt
    assert await store.dequeue_rollout() is None


@pytest.mark.parametrize("first", ["failed", "timeout", "succeeded"])
@pytest.mark.parametrize("late", ["preparing", "running", "succeeded", "failed", "unresponsive", "timeout"])
async def test_a_late_status_of_an_ended_attempt_changes_nothing(store, clock, first, late):
    claimed = await run_new(store)
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=first)
    before = await store.get_rollout_by_id(claimed.rollout_id)
    clock.advance(5)
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=late)
    assert await store.get_rollout_by_id(claimed.rollout_id) == before


async def test_a_late_success_does_not_take_a_requeued_rollout_out_of_the_queue(store):
    claimed = await run_new(store, max_attempts=2, retry_condition=["failed"])
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert await status_of(store, claimed) == ("requeuing", "failed")
    assert (await store.dequeue_rollout()).attempt.sequence_id == 2


async def test_notes_worker_and_heartbeat_of_an_attempt_are_kept(store):
    claimed = await run_new(store)
    attempt = await store.update_attempt(
        claimed.rollout_id, claimed.attempt.attempt_id, worker_id="w-9", last_heartbeat_time=12.5, metadata={"k": [1]}
    )
    assert (attempt.worker_id, attempt.last_heartbeat_time, attempt.metadata) == ("w-9", 12.5, {"k": [1]})
    assert attempt.status == "running"
    assert await store.get_latest_attempt(claimed.rollout_id) == attempt
    cleared = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, metadata=None)
    assert (cleared.metadata, cleared.worker_id) == (None, "w-9")


async def test_a_changed_attempt_does_not_touch_what_was_not_given(store):
    claimed = await claim_new(store, worker_id="w-1")
    attempt = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, metadata={"k": 1})
    assert (attempt.status, attempt.worker_id) == ("preparing", "w-1")
    assert await status_of(store, claimed) == ("preparing", "preparing")


@pytest.mark.parametrize(
    "wrong",
    [{"worker_id": ""}, {"metadata": ["k"]}, {"status": "lost"}, {"last_heartbeat_time": float("nan")}],
    ids=str,
)
async def test_one_value_that_is_not_allowed_changes_nothing_of_an_attempt(store, wrong):
    claimed = await run_new(store, worker_id="w-1")
    before = await store.get_rollout_by_id(claimed.rollout_id)
    good = {"status": "succeeded", "worker_id": "w-2", "last_heartbeat_time": 1.0, "metadata": {"k": 1}}
    with raises(ValueError, next(iter(wrong))):
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **{**good, **wrong})
    assert await store.get_rollout_by_id(claimed.rollout_id) == before


async def test_unknown_attempts_are_refused(store):
    claimed = await claim_new(store)
    other = await claim_new(store)
    waiting = await store.enqueue_rollout("task")
    wrong = [
        ("ro-unknown", claimed.attempt.attempt_id),
        (claimed.rollout_id, "at-unknown"),
        (claimed.rollout_id, other.attempt.attempt_id),
        (waiting.rollout_id, "latest"),
    ]
    for rollout_id, attempt_id in wrong:
        with pytest.raises(UnknownIdError):
            await store.update_attempt(rollout_id, attempt_id, status="running")
        with pytest.raises(UnknownIdError):
            await store.complete_attempt(rollout_id, attempt_id)


async def test_attempts_are_listed_in_order_and_in_pages(store, clock):
    rollout = await store.enqueue_rollout("task")
    for _ in range(4):
        await store.start_attempt(rollout.rollout_id)
        clock.advance(1)
    everything = await store.query_attempts(rollout.rollout_id)
    assert [attempt.sequence_id for attempt in everything] == [1, 2, 3, 4]
    page = await store.query_attempts(rollout.rollout_id, sort_order="desc", limit=2, offset=1)
    assert [attempt.sequence_id for attempt in page] == [3, 2]
    assert (page.limit, page.offset, page.total) == (2, 1, 4)
    by_time = await store.query_attempts(rollout.rollout_id, sort_by="start_time", sort_order="desc", limit=1)
    assert by_time[0].sequence_id == 4


# -- completing attempts -----------------------------------------------------------------------------


async def test_a_completion_is_the_whole_outcome_in_one_call(store, clock):
    claimed = await claim_new(store)
    clock.advance(5)
    spans = [make_span(claimed, name="chat"), make_span(claimed, name="tool")]
    attempt = await store.complete_attempt(
        claimed.rollout_id, claimed.attempt.attempt_id, spans=spans, status="succeeded", reward=0.75
    )
    assert (attempt.status, attempt.end_time) == ("succeeded", clock.now)
    rollout = await store.get_rollout_by_id(claimed.rollout_id)
    assert (rollout.status, rollout.end_time, rollout.reward) == ("succeeded", clock.now, 0.75)
    assert rollout.attempt == attempt
    assert [span.name for span in await store.query_spans(claimed.rollout_id)] == ["chat", "tool"]


async def test_a_completion_succeeds_where_nothing_else_is_said(store):
    claimed = await finish_new(store)
    rollout = await store.get_rollout_by_id(claimed.rollout_id)
    assert (rollout.status, rollout.reward) == ("succeeded", None)


async def test_a_completion_may_carry_notes(store):
    claimed = await claim_new(store)
    attempt = await store.complete_attempt(
        claimed.rollout_id, claimed.attempt.attempt_id, status="failed", metadata={"error": "ValueError: no"}
    )
    assert attempt.metadata == {"error": "ValueError: no"}


@pytest.mark.parametrize("status", ["failed", "timeout"])
async def test_a_completion_without_success_obeys_the_retry_rule(store, status):
    claimed = await run_new(store, max_attempts=2, retry_condition=[status])
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    assert await status_of(store, claimed) == ("requeuing", status)
    again = await store.dequeue_rollout()
    await store.complete_attempt(again.rollout_id, again.attempt.attempt_id, status=status)
    assert await status_of(store, claimed) == ("failed", status)


async def test_a_failed_rollout_keeps_its_reward(store):
    claimed = await finish_new(store, status="failed", reward=0.25)
    rollout = await store.get_rollout_by_id(claimed.rollout_id)
    assert (rollout.status, rollout.reward) == ("failed", 0.25)


async def test_completing_twice_is_one_completion(store, clock):
    claimed = await claim_new(store)
    spans = [make_span(claimed), reward_span(claimed, 0.5)]
    outcome = {"spans": spans, "status": "succeeded"}
    first = await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **outcome)
    before = await store.get_rollout_by_id(claimed.rollout_id)
    clock.advance(5)
    again = await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **outcome)
    assert again == first
    assert await store.get_rollout_by_id(claimed.rollout_id) == before
    assert (await store.query_spans(claimed.rollout_id)).total == 2
    assert [r.rollout_id for r in (await store.finished_rollouts()).items] == [claimed.rollout_id]


async def test_a_second_completion_with_another_outcome_changes_nothing(store):
    claimed = await finish_new(store, status="succeeded", reward=1.0)
    before = await store.get_rollout_by_id(claimed.rollout_id)
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed", reward=0.0)
    assert await store.get_rollout_by_id(claimed.rollout_id) == before


async def test_the_last_reward_span_is_the_final_reward(store):
    claimed = await claim_new(store)
    spans = [reward_span(claimed, 0.2), make_span(claimed), reward_span(claimed, 0.8), make_span(claimed)]
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=spans)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 0.8


async def test_last_means_by_sequence_id_not_by_arrival(store):
    claimed = await claim_new(store)
    spans = [reward_span(claimed, 0.9, sequence_id=9), reward_span(claimed, 0.1, sequence_id=3)]
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=spans)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 0.9


async def test_last_means_by_sequence_id_also_over_several_calls(store):
    claimed = await claim_new(store)
    await store.add_span(reward_span(claimed, 0.9, sequence_id=9))
    await store.add_span(reward_span(claimed, 0.1, sequence_id=3))
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 0.9


async def test_a_reward_that_came_before_the_completion_counts(store):
    claimed = await claim_new(store)
    await store.add_span(reward_span(claimed, 0.4))
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=[make_span(claimed)])
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 0.4


async def test_a_reward_counts_too_where_the_attempt_ends_by_its_status(store):
    claimed = await claim_new(store)
    await store.add_span(reward_span(claimed, 0.4))
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 0.4


async def test_an_explicit_reward_wins_over_reward_spans(store):
    claimed = await claim_new(store)
    await store.complete_attempt(
        claimed.rollout_id, claimed.attempt.attempt_id, spans=[reward_span(claimed, 0.2)], reward=0.0
    )
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 0.0


async def test_the_reward_is_that_of_the_attempt_that_counts(store):
    first = await claim_new(store, max_attempts=2, retry_condition=["failed"])
    await store.complete_attempt(first.rollout_id, first.attempt.attempt_id, status="failed", reward=0.1)
    second = await store.dequeue_rollout()
    await store.complete_attempt(second.rollout_id, second.attempt.attempt_id)
    await store.complete_attempt(first.rollout_id, first.attempt.attempt_id, spans=[reward_span(first, 0.9)])
    assert (await store.get_rollout_by_id(first.rollout_id)).reward is None


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
async def test_a_reward_that_is_no_finite_number_is_refused_and_nothing_is_stored(store, reward):
    claimed = await run_new(store)
    with raises(InvalidInputError, "reward"):
        await store.complete_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, spans=[make_span(claimed)], reward=reward
        )
    assert await status_of(store, claimed) == ("running", "running")
    assert (await store.query_spans(claimed.rollout_id)).total == 1


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "high", None, True, [1.0]], ids=repr)
async def test_a_reward_span_without_a_finite_number_is_refused_and_nothing_is_stored(store, reward):
    claimed = await claim_new(store)
    spans = [make_span(claimed), reward_span(claimed, reward)]
    with raises(InvalidInputError, "reward"):
        await store.add_many_spans(spans)
    with raises(InvalidInputError, "reward"):
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=spans)
    assert await status_of(store, claimed) == ("preparing", "preparing")
    assert (await store.query_spans(claimed.rollout_id)).total == 0
    assert await store.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id) == 1


@pytest.mark.parametrize("status", ["running", "preparing", "unresponsive", "cancelled"])
async def test_a_completion_needs_a_status_that_ends(store, status):
    claimed = await run_new(store)
    with raises(ValueError, "status"):
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    assert await status_of(store, claimed) == ("running", "running")


async def test_a_completion_with_a_span_of_an_unknown_attempt_stores_nothing(store):
    claimed = await run_new(store)
    stray = make_span(claimed, span_id="stray")
    wrong = type(stray)(claimed.rollout_id, "at-unknown", 0, "t", "s")
    with raises(ValueError, "at-unknown"):
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=[stray, wrong])
    assert await status_of(store, claimed) == ("running", "running")
    assert (await store.query_spans(claimed.rollout_id)).total == 1


@pytest.mark.parametrize("how", ["unresponsive", "failed"])
async def test_an_attempt_that_was_handed_back_costs_no_try(world, how):
    lease = {"unresponsive_seconds": 10, "max_attempts": 2, "retry_condition": ["unresponsive", "failed"]}
    claimed = await claim_new(world.store, worker_id="w-1", **lease)
    for _ in range(3):  # Ctrl-C and resume, or restarts of a runner, one after another
        await world.store.add_span(make_span(claimed))
        await world.store.update_rollout(claimed.rollout_id, status="requeuing")
        claimed = await world.store.dequeue_rollout(worker_id="w-1")
    for is_last in (False, True):
        if how == "failed":
            await world.store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
        else:
            world.pass_time(11)
            world.pass_time(11)
        again = await world.store.dequeue_rollout(worker_id="w-1")
        assert (again is None) == is_last
        claimed = again or claimed
    assert (await world.store.get_rollout_by_id(claimed.rollout_id)).status == "failed"
    handed_back = [
        bool((each.metadata or {}).get("sharpen.handed_back"))
        for each in await world.store.query_attempts(claimed.rollout_id)
    ]
    assert handed_back == [True] * 3 + [False] * 2


async def test_the_metadata_of_an_attempt_that_is_handed_back_is_kept(store):
    claimed = await run_new(store)
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, metadata={"gpu": 3})
    await store.update_rollout(claimed.rollout_id, status="requeuing")
    assert (await store.get_latest_attempt(claimed.rollout_id)).metadata == {"gpu": 3, "sharpen.handed_back": True}


@pytest.mark.parametrize("late", [None, {"gpu": 3}])
async def test_a_late_report_does_not_change_that_an_attempt_was_handed_back(store, late):
    claimed = await run_new(store, max_attempts=2, retry_condition=["failed"])
    await store.update_rollout(claimed.rollout_id, status="requeuing")
    reported = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, metadata=late)
    assert reported.metadata == {**(late or {}), "sharpen.handed_back": True}
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed", metadata={"n": 1})
    again = await store.dequeue_rollout()
    await store.complete_attempt(again.rollout_id, again.attempt.attempt_id, status="failed")
    assert await store.dequeue_rollout() is not None  # the first attempt cost no try


async def test_an_agent_cannot_claim_that_its_attempt_was_handed_back(store):
    claimed = await run_new(store, max_attempts=2, retry_condition=["failed"])
    for _ in range(2):
        forged = {"sharpen.handed_back": True, "handed_back": True, "gpu": 3}
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        await store.update_attempt(*ids, metadata=forged)
        ended = await store.complete_attempt(*ids, status="failed", metadata=forged)
        assert ended.metadata == {"handed_back": True, "gpu": 3}
        claimed = await store.dequeue_rollout() or claimed
    assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "failed"
