"""Time: leases that run out, attempts that come back, and the watchdog that sees to it."""

import pytest

from sharpen.types import RolloutConfig

from .scenes import RETRY_ALL, claim_new, drain, make_span, reward_span, run_new, status_of, within_patience

RETRIED = {"unresponsive_seconds": 10, "max_attempts": 2, "retry_condition": ["unresponsive"]}
LAST = {"unresponsive_seconds": 10}


async def attempt_of(store, claimed):
    return next(
        attempt
        for attempt in await store.query_attempts(claimed.rollout_id)
        if attempt.attempt_id == claimed.attempt.attempt_id
    )


# -- time-outs ---------------------------------------------------------------------------------------


async def test_a_timeout_ends_the_attempt_and_fails_the_rollout(world):
    claimed = await run_new(world.store, timeout_seconds=10)
    world.pass_time(9)
    assert await status_of(world.store, claimed) == ("running", "running")
    world.pass_time(2)
    assert await status_of(world.store, claimed) == ("failed", "timeout")
    assert (await world.store.get_latest_attempt(claimed.rollout_id)).end_time == world.clock.now
    assert (await world.store.get_rollout_by_id(claimed.rollout_id)).end_time == world.clock.now


async def test_a_timeout_is_tried_again_where_the_configuration_says_so(world):
    claimed = await run_new(world.store, timeout_seconds=10, max_attempts=2, retry_condition=["timeout"])
    world.pass_time(11)
    assert await status_of(world.store, claimed) == ("requeuing", "timeout")
    world.pass_time(50)
    again = await world.store.dequeue_rollout()
    assert again.attempt.sequence_id == 2
    world.pass_time(9)
    assert await status_of(world.store, claimed) == ("preparing", "preparing")
    world.pass_time(2)
    assert await status_of(world.store, claimed) == ("failed", "timeout")


async def test_spans_and_heartbeats_do_not_put_off_a_timeout(world):
    claimed = await run_new(world.store, worker_id="w-1", timeout_seconds=10, unresponsive_seconds=8)
    world.pass_time(6)
    await world.store.add_span(make_span(claimed))
    await world.store.update_worker("w-1")
    world.pass_time(5)
    assert await status_of(world.store, claimed) == ("failed", "timeout")


@pytest.mark.parametrize("retry", [[], ["timeout"]])
async def test_a_timed_out_attempt_does_not_come_back(world, retry):
    claimed = await run_new(world.store, timeout_seconds=10, max_attempts=2, retry_condition=retry)
    world.pass_time(11)
    before = await status_of(world.store, claimed)
    await world.store.add_span(make_span(claimed))
    await world.store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=[make_span(claimed)])
    assert await status_of(world.store, claimed) == before
    assert (await world.store.query_spans(claimed.rollout_id)).total == 3
    assert len(await drain(world.store)) == len(retry)


async def test_waiting_in_the_queue_is_not_limited(world):
    rollout = await world.store.enqueue_rollout(
        "task", config=RolloutConfig(timeout_seconds=10, unresponsive_seconds=10)
    )
    world.pass_time(1000)
    assert (await status_of(world.store, rollout))[0] == "queuing"
    assert (await world.store.dequeue_rollout()).status == "preparing"


async def test_an_attempt_without_limits_never_expires(world):
    claimed = await run_new(world.store, max_attempts=3, retry_condition=RETRY_ALL)
    world.pass_time(1e9)
    assert await status_of(world.store, claimed) == ("running", "running")


async def test_a_configuration_changed_while_running_is_obeyed(world):
    claimed = await run_new(world.store)
    await world.store.update_rollout(claimed.rollout_id, config=RolloutConfig(timeout_seconds=10))
    world.pass_time(11)
    assert await status_of(world.store, claimed) == ("failed", "timeout")


async def test_a_clock_that_jumps_back_ends_nothing(world):
    claimed = await run_new(world.store, timeout_seconds=10, unresponsive_seconds=5)
    world.pass_time(-10_000)
    assert await status_of(world.store, claimed) == ("running", "running")
    await world.store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    assert await status_of(world.store, claimed) == ("succeeded", "succeeded")


# -- leases ------------------------------------------------------------------------------------------


async def test_spans_renew_the_lease(world):
    claimed = await run_new(world.store, **RETRIED)
    for _ in range(5):
        world.pass_time(6)
        await world.store.add_span(make_span(claimed))
    assert await status_of(world.store, claimed) == ("running", "running")


async def test_a_repeated_span_renews_the_lease_too(world):
    claimed = await claim_new(world.store, **RETRIED)
    span = make_span(claimed)
    for _ in range(4):
        await world.store.add_span(span)
        world.pass_time(6)
    assert await status_of(world.store, claimed) == ("running", "running")


@pytest.mark.parametrize("begin", [claim_new, run_new], ids=["preparing", "running"])
async def test_a_lease_that_runs_out_suspends_the_attempt_and_requeues_the_rollout(world, begin):
    claimed = await begin(world.store, **RETRIED)
    world.pass_time(11)
    assert await status_of(world.store, claimed) == ("requeuing", "unresponsive")
    assert (await world.store.get_latest_attempt(claimed.rollout_id)).end_time == world.clock.now
    again = await world.store.dequeue_rollout()
    assert (again.rollout_id, again.attempt.sequence_id) == (claimed.rollout_id, 2)
    assert await world.store.dequeue_rollout() is None


async def test_a_requeued_rollout_waits_for_its_next_claim_without_limit(world):
    claimed = await run_new(world.store, **RETRIED)
    world.pass_time(11)
    world.pass_time(1000)
    assert await status_of(world.store, claimed) == ("requeuing", "unresponsive")
    assert await drain(world.store) == [claimed.rollout_id]


@pytest.mark.parametrize(
    "config",
    [LAST, {**LAST, "max_attempts": 5, "retry_condition": ["failed", "timeout"]}],
    ids=["no attempts left", "not in the retry condition"],
)
async def test_a_last_attempt_that_is_unresponsive_has_one_more_lease_to_come_back(world, config):
    claimed = await run_new(world.store, **config)
    world.pass_time(11)
    assert await status_of(world.store, claimed) == ("running", "unresponsive")
    assert (await world.store.get_latest_attempt(claimed.rollout_id)).end_time == world.clock.now
    assert await world.store.dequeue_rollout() is None
    world.pass_time(9)
    assert await status_of(world.store, claimed) == ("running", "unresponsive")
    world.pass_time(2)
    assert await status_of(world.store, claimed) == ("failed", "unresponsive")
    finished = (await world.store.finished_rollouts()).items
    assert [r.rollout_id for r in finished] == [claimed.rollout_id]


async def test_an_attempt_called_unresponsive_is_suspended_like_one_whose_lease_ran_out(world):
    claimed = await run_new(world.store, **LAST)
    await world.store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="unresponsive")
    assert await status_of(world.store, claimed) == ("running", "unresponsive")
    world.pass_time(11)
    assert await status_of(world.store, claimed) == ("failed", "unresponsive")


async def test_an_attempt_called_unresponsive_without_a_lease_fails_at_once(store):
    claimed = await run_new(store)
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="unresponsive")
    assert await status_of(store, claimed) == ("failed", "unresponsive")


async def test_an_attempt_called_unresponsive_without_a_lease_is_tried_again_if_it_may(store):
    claimed = await run_new(store, max_attempts=2, retry_condition=["unresponsive"])
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="unresponsive")
    assert await status_of(store, claimed) == ("requeuing", "unresponsive")
    await store.add_span(make_span(claimed))
    assert await status_of(store, claimed) == ("running", "running")
    assert await store.dequeue_rollout() is None


# -- coming back -------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [RETRIED, LAST], ids=["requeued", "last attempt"])
async def test_a_span_brings_a_suspended_attempt_back(world, config):
    claimed = await run_new(world.store, **config)
    world.pass_time(11)
    stored = await world.store.add_many_spans([make_span(claimed)])
    assert stored.unwanted == ()
    assert await status_of(world.store, claimed) == ("running", "running")
    assert (await world.store.get_latest_attempt(claimed.rollout_id)).end_time is None
    assert await world.store.dequeue_rollout() is None


@pytest.mark.parametrize("config", [RETRIED, LAST], ids=["requeued", "last attempt"])
async def test_an_attempt_that_came_back_has_a_full_lease_again(world, config):
    claimed = await run_new(world.store, **config)
    world.pass_time(11)
    await world.store.add_span(make_span(claimed))
    world.pass_time(9)
    assert await status_of(world.store, claimed) == ("running", "running")
    world.pass_time(2)
    assert (await status_of(world.store, claimed))[1] == "unresponsive"


@pytest.mark.parametrize("config", [RETRIED, LAST], ids=["requeued", "last attempt"])
async def test_a_completion_brings_a_suspended_attempt_back(world, config):
    claimed = await run_new(world.store, **config)
    world.pass_time(11)
    world.clock.advance(1)
    attempt = await world.store.complete_attempt(
        claimed.rollout_id, claimed.attempt.attempt_id, spans=[reward_span(claimed, 0.5)]
    )
    assert (attempt.status, attempt.end_time) == ("succeeded", world.clock.now)
    rollout = await world.store.get_rollout_by_id(claimed.rollout_id)
    assert (rollout.status, rollout.reward, rollout.end_time) == ("succeeded", 0.5, world.clock.now)
    assert await world.store.dequeue_rollout() is None


async def test_a_reward_from_before_the_suspension_counts_when_the_attempt_comes_back(world):
    claimed = await run_new(world.store, **RETRIED)
    await world.store.add_span(reward_span(claimed, 0.5))
    world.pass_time(11)
    await world.store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    assert (await world.store.get_rollout_by_id(claimed.rollout_id)).reward == 0.5


async def test_a_failure_of_a_suspended_attempt_obeys_the_retry_rule(world):
    store = world.store
    final = await run_new(store, **RETRIED)
    retried = await run_new(store, **{**RETRIED, "retry_condition": ["unresponsive", "failed"]})
    world.pass_time(11)
    for claimed in (final, retried):
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    assert await status_of(store, final) == ("failed", "failed")
    assert await status_of(store, retried) == ("requeuing", "failed")
    assert await drain(store) == [retried.rollout_id]


async def test_a_status_of_running_brings_a_suspended_attempt_back(world):
    claimed = await run_new(world.store, **RETRIED)
    world.pass_time(11)
    attempt = await world.store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="running")
    assert (attempt.status, attempt.end_time) == ("running", None)
    assert (await status_of(world.store, claimed))[0] == "running"
    assert await world.store.dequeue_rollout() is None


@pytest.mark.parametrize("config", [RETRIED, LAST], ids=["requeued", "last attempt"])
async def test_a_heartbeat_alone_does_not_bring_a_suspended_attempt_back(world, config):
    claimed = await run_new(world.store, worker_id="w-1", **config)
    world.pass_time(11)
    before = await status_of(world.store, claimed)
    await world.store.update_worker("w-1")
    assert await status_of(world.store, claimed) == before
    world.pass_time(11)
    assert (await status_of(world.store, claimed))[1] == "unresponsive"


async def test_an_attempt_does_not_come_back_once_its_rollout_was_claimed_again(world):
    store = world.store
    old = await run_new(store, **RETRIED)
    world.pass_time(11)
    new = await store.dequeue_rollout()
    stored = await store.add_many_spans([make_span(old)])
    assert stored.unwanted == (old.attempt.attempt_id,)
    await store.complete_attempt(old.rollout_id, old.attempt.attempt_id, spans=[reward_span(old, 1.0)])
    assert await status_of(store, old) == ("preparing", "preparing")
    assert (await store.get_latest_attempt(old.rollout_id)).attempt_id == new.attempt.attempt_id
    assert (await store.query_spans(old.rollout_id, old.attempt.attempt_id)).total == 3
    await store.complete_attempt(new.rollout_id, new.attempt.attempt_id, reward=0.5)
    assert (await store.get_rollout_by_id(old.rollout_id)).reward == 0.5


@pytest.mark.parametrize("late", ["span", "completion"])
async def test_an_attempt_does_not_come_back_once_its_rollout_has_failed(world, late):
    store = world.store
    claimed = await run_new(store, **LAST)
    world.pass_time(11)
    world.pass_time(11)
    before = await store.get_rollout_by_id(claimed.rollout_id)
    if late == "span":
        assert (await store.add_many_spans([make_span(claimed)])).unwanted == (claimed.attempt.attempt_id,)
    else:
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=1.0)
    after = await store.get_rollout_by_id(claimed.rollout_id)
    assert (after.status, after.end_time, after.reward) == (before.status, before.end_time, before.reward)
    assert after.status == "failed"


async def test_an_attempt_does_not_come_back_once_its_rollout_was_cancelled(world):
    claimed = await run_new(world.store, **RETRIED)
    world.pass_time(11)
    await world.store.cancel_rollouts([claimed.rollout_id])
    await world.store.add_span(make_span(claimed))
    await world.store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    assert (await status_of(world.store, claimed))[0] == "cancelled"
    assert await world.store.dequeue_rollout() is None


async def test_an_attempt_that_came_back_can_be_lost_again(world):
    claimed = await run_new(world.store, **RETRIED)
    for _ in range(3):
        world.pass_time(11)
        assert await status_of(world.store, claimed) == ("requeuing", "unresponsive")
        await world.store.add_span(make_span(claimed))
        assert await status_of(world.store, claimed) == ("running", "running")
    world.pass_time(11)
    assert await drain(world.store) == [claimed.rollout_id]


async def test_an_old_attempt_that_expires_moves_nothing(world):
    old = await run_new(world.store, timeout_seconds=20, max_attempts=5, retry_condition=RETRY_ALL)
    world.pass_time(15)
    await world.store.start_attempt(old.rollout_id)
    world.pass_time(10)
    assert await status_of(world.store, old) == ("preparing", "preparing")
    assert await world.store.dequeue_rollout() is None


# -- the watchdog ------------------------------------------------------------------------------------


async def test_the_watchdog_applies_a_timeout_by_itself(live_store):
    claimed = await claim_new(live_store, timeout_seconds=0.05)
    (rollout,) = await within_patience(live_store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
    assert rollout.status == "failed"
    assert (await live_store.get_latest_attempt(claimed.rollout_id)).status == "timeout"


async def test_the_watchdog_applies_a_lease_by_itself(live_store):
    claimed = await claim_new(live_store, unresponsive_seconds=0.05, max_attempts=2, retry_condition=["unresponsive"])
    again = await within_patience(live_store.dequeue_rollout(wait_seconds=60))
    assert (again.rollout_id, again.attempt.sequence_id) == (claimed.rollout_id, 2)
    (rollout,) = await within_patience(live_store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
    assert rollout.status == "failed"
    assert (await attempt_of(live_store, again)).status == "unresponsive"


async def test_the_watchdog_wakes_for_the_nearest_deadline_first(live_store):
    await claim_new(live_store, timeout_seconds=600)
    near = await claim_new(live_store, timeout_seconds=0.05)
    finished = await within_patience(live_store.finished_rollouts(wait_seconds=60))
    assert [r.rollout_id for r in finished.items] == [near.rollout_id]
