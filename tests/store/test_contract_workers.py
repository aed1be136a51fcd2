"""Workers: heartbeats, and what their answers say."""

import pytest

from sharpen.errors import InvalidInputError
from sharpen.types import Worker
from tests.errors import raises

from .scenes import claim_new, make_span, run_new, status_of

LEASE = {"unresponsive_seconds": 10, "max_attempts": 3, "retry_condition": ["unresponsive"]}


async def test_a_heartbeat_makes_a_worker_known(store, clock):
    answer = await store.update_worker("w-1", {"cpu": 0.5})
    assert (answer.worker_id, answer.heartbeat_stats, answer.last_heartbeat_time) == ("w-1", {"cpu": 0.5}, clock.now)
    assert answer.unwanted_attempts == []
    worker = await store.get_worker_by_id("w-1")
    assert type(worker) is Worker
    assert (worker.heartbeat_stats, worker.last_heartbeat_time) == ({"cpu": 0.5}, clock.now)


async def test_a_heartbeat_needs_no_statistics(store, clock):
    await store.update_worker("w-1", {"cpu": 0.5})
    clock.advance(5)
    await store.update_worker("w-1")
    assert (await store.get_worker_by_id("w-1")).last_heartbeat_time == clock.now


async def test_a_claim_makes_a_worker_busy_and_a_completion_idle(store, clock):
    claimed = await claim_new(store, worker_id="w-1")
    busy = await store.get_worker_by_id("w-1")
    assert (busy.status, busy.last_dequeue_time, busy.last_busy_time) == ("busy", clock.now, clock.now)
    assert (busy.current_rollout_id, busy.current_attempt_id) == (claimed.rollout_id, claimed.attempt.attempt_id)
    clock.advance(5)
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    idle = await store.get_worker_by_id("w-1")
    assert (idle.status, idle.last_idle_time) == ("idle", clock.now)
    assert (idle.current_rollout_id, idle.current_attempt_id) == (None, None)


async def test_a_worker_with_several_attempts_is_busy_until_the_last_has_ended(store):
    first, second = [await run_new(store, worker_id="w-1") for _ in range(2)]
    await store.complete_attempt(second.rollout_id, second.attempt.attempt_id)
    worker = await store.get_worker_by_id("w-1")
    assert (worker.status, worker.current_rollout_id) == ("busy", first.rollout_id)
    await store.cancel_rollouts([first.rollout_id])
    worker = await store.get_worker_by_id("w-1")
    assert (worker.status, worker.current_rollout_id) == ("idle", None)


async def test_a_heartbeat_keeps_the_running_attempts_of_its_worker_alive(world):
    mine = [await run_new(world.store, worker_id="w-1", **LEASE) for _ in range(2)]
    foreign = await run_new(world.store, worker_id="w-2", **LEASE)
    for _ in range(5):
        world.pass_time(6)
        await world.store.update_worker("w-1")
    assert [await status_of(world.store, claimed) for claimed in mine] == [("running", "running")] * 2
    assert await status_of(world.store, foreign) == ("requeuing", "unresponsive")
    assert (await world.store.get_latest_attempt(mine[0].rollout_id)).last_heartbeat_time == world.clock.now


async def test_a_heartbeat_that_names_attempts_renews_no_others(world):
    named = await run_new(world.store, worker_id="w-1", **LEASE)
    lost = await claim_new(world.store, worker_id="w-1", **LEASE)
    for _ in range(2):
        world.pass_time(6)
        await world.store.update_worker("w-1", {"cpu": 1}, attempt_ids=[named.attempt.attempt_id, "at-of-another"])
    assert await status_of(world.store, named) == ("running", "running")
    assert await status_of(world.store, lost) == ("requeuing", "unresponsive")
    world.pass_time(6)
    await world.store.update_worker("w-1", attempt_ids=[])
    world.pass_time(5)
    assert await status_of(world.store, named) == ("requeuing", "unresponsive")


async def test_an_attempt_without_a_lease_runs_out_only_while_heartbeats_leave_it_out(world):
    retried = {"max_attempts": 2, "retry_condition": ["unresponsive"]}
    named, lost = [await claim_new(world.store, worker_id="w-1", **retried) for _ in range(2)]
    await world.store.update_worker("w-1", attempt_ids=[])  # sent before the worker knew of either claim
    for _ in range(7):
        world.pass_time(10)
        await world.store.update_worker("w-1", attempt_ids=[named.attempt.attempt_id])
    assert await status_of(world.store, named) == ("preparing", "preparing")
    assert await status_of(world.store, lost) == ("requeuing", "unresponsive")


async def test_a_lost_claim_with_a_time_out_does_not_wait_for_it(world):
    rule = {"timeout_seconds": 3600, "max_attempts": 2, "retry_condition": ["unresponsive"]}
    named, lost, dropped = [await claim_new(world.store, worker_id="w-1", **rule) for _ in range(3)]
    await world.store.add_span(make_span(dropped))
    for _ in range(8):
        await world.store.update_worker("w-1", attempt_ids=[named.attempt.attempt_id])
        world.pass_time(10)
    assert await status_of(world.store, named) == ("preparing", "preparing")
    for each in (lost, dropped):
        assert await status_of(world.store, each) == ("requeuing", "unresponsive")


async def test_a_time_out_that_is_nearer_than_the_end_of_a_lost_claim_stands(world):
    lost = await claim_new(world.store, worker_id="w-1", timeout_seconds=20)
    await world.store.update_worker("w-1", attempt_ids=[])
    world.pass_time(21)
    assert await status_of(world.store, lost) == ("failed", "timeout")


async def test_a_lost_claim_costs_no_try_and_needs_no_rule_for_retries(world):
    lost = await claim_new(world.store, worker_id="w-1")
    for _ in range(3):
        await world.store.update_worker("w-1", attempt_ids=[])
        world.pass_time(61)
        assert await status_of(world.store, lost) == ("requeuing", "unresponsive")
        assert (await world.store.dequeue_rollout(worker_id="w-1")).rollout_id == lost.rollout_id
    await world.store.update_worker("w-1", attempt_ids=[])
    world.pass_time(61)  # not without end: a task that kills its worker at once looks the same
    assert await status_of(world.store, lost) == ("failed", "unresponsive")


async def test_ids_of_attempts_are_a_list(store):
    with raises(InvalidInputError, "attempt_ids"):
        await store.update_worker("w-1", attempt_ids="at-1")


async def test_a_heartbeat_keeps_an_attempt_without_spans_alive(world):
    claimed = await claim_new(world.store, worker_id="w-1", **LEASE)
    for _ in range(3):
        world.pass_time(6)
        await world.store.update_worker("w-1")
    assert await status_of(world.store, claimed) == ("preparing", "preparing")


async def test_a_wanted_attempt_is_not_named(store):
    await run_new(store, worker_id="w-1")
    assert (await store.update_worker("w-1")).unwanted_attempts == []


async def test_a_cancelled_attempt_is_named_until_its_worker_reports_on_it(store):
    claimed = await run_new(store, worker_id="w-1")
    kept = await run_new(store, worker_id="w-1")
    await store.cancel_rollouts([claimed.rollout_id])
    for _ in range(2):
        assert (await store.update_worker("w-1")).unwanted_attempts == [claimed.attempt.attempt_id]
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    assert (await store.update_worker("w-1")).unwanted_attempts == []
    assert await status_of(store, kept) == ("running", "running")


async def test_a_timed_out_attempt_is_named_until_its_worker_reports_on_it(world):
    claimed = await run_new(world.store, worker_id="w-1", timeout_seconds=10)
    world.pass_time(11)
    assert (await world.store.update_worker("w-1")).unwanted_attempts == [claimed.attempt.attempt_id]
    await world.store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    assert (await world.store.update_worker("w-1")).unwanted_attempts == []


async def test_a_lost_attempt_is_named_once_another_worker_has_the_rollout(world):
    claimed = await run_new(world.store, worker_id="w-1", **LEASE)
    world.pass_time(11)
    assert (await world.store.update_worker("w-1")).unwanted_attempts == []
    again = await world.store.dequeue_rollout(worker_id="w-2")
    assert again.rollout_id == claimed.rollout_id
    assert (await world.store.update_worker("w-1")).unwanted_attempts == [claimed.attempt.attempt_id]
    assert (await world.store.update_worker("w-2")).unwanted_attempts == []


async def test_a_lost_attempt_is_named_once_its_rollout_has_failed(world):
    claimed = await run_new(world.store, worker_id="w-1", unresponsive_seconds=10)
    world.pass_time(11)
    world.pass_time(11)
    assert await status_of(world.store, claimed) == ("failed", "unresponsive")
    assert (await world.store.update_worker("w-1")).unwanted_attempts == [claimed.attempt.attempt_id]


async def test_a_superseded_attempt_is_named(store):
    claimed = await run_new(store, worker_id="w-1")
    await store.start_attempt(claimed.rollout_id, worker_id="w-2")
    assert (await store.update_worker("w-1")).unwanted_attempts == [claimed.attempt.attempt_id]


async def test_an_attempt_requeued_by_hand_is_named(store):
    claimed = await run_new(store, worker_id="w-1")
    await store.update_rollout(claimed.rollout_id, status="requeuing")
    assert (await store.update_worker("w-1")).unwanted_attempts == [claimed.attempt.attempt_id]


async def test_an_attempt_that_its_worker_ended_is_never_named(store):
    claimed = await run_new(store, worker_id="w-1")
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    await store.add_span(make_span(claimed))
    assert (await store.update_worker("w-1")).unwanted_attempts == []


@pytest.fixture
async def crew(store, clock):
    """Four workers: two busy, one that became idle, one that only sent a heartbeat."""
    for name in ("b-1", "a-1", "a-2"):
        claimed = await claim_new(store, worker_id=name)
        clock.advance(1)
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    await store.update_worker("c-1")


def ids(page):
    return [worker.worker_id for worker in page]


@pytest.mark.usefixtures("crew")
async def test_workers_are_filtered_sorted_and_cut_in_the_store(store):
    assert sorted(ids(await store.query_workers())) == ["a-1", "a-2", "b-1", "c-1"]
    assert sorted(ids(await store.query_workers(status_in=["busy"]))) == ["a-1", "b-1"]
    assert sorted(ids(await store.query_workers(worker_id_contains="a-"))) == ["a-1", "a-2"]
    assert ids(await store.query_workers(worker_id_contains="a-", status_in=["busy"])) == ["a-1"]
    either = await store.query_workers(worker_id_contains="a-", status_in=["busy"], filter_logic="or")
    assert sorted(ids(either)) == ["a-1", "a-2", "b-1"]
    page = await store.query_workers(sort_by="worker_id", sort_order="desc", limit=2, offset=1)
    assert ids(page) == ["b-1", "a-2"]
    assert (page.limit, page.offset, page.total) == (2, 1, 4)
    assert ids(await store.query_workers(sort_by="last_dequeue_time", sort_order="desc", limit=1)) == ["a-2"]
