"""Rollouts: reading, querying, changing by hand, cancelling, pruning, counting."""

import pytest

from sharpen.errors import FinishedError, UnknownIdError
from sharpen.types import (
    ROLLOUT_STATUSES,
    AttemptedRollout,
    EnqueueRolloutRequest,
    PromptTemplate,
    Rollout,
    RolloutConfig,
)
from tests.errors import raises

from .scenes import claim_new, drain, finish_new, make_span, run_new, status_of

FINISHED = ("succeeded", "failed", "cancelled")
QUEUED = ("queuing", "requeuing")


# -- reading -----------------------------------------------------------------------------------------


async def test_a_rollout_comes_back_plain_before_its_first_attempt_and_with_its_latest_after(store):
    rollout = await store.enqueue_rollout("task")
    assert type(await store.get_rollout_by_id(rollout.rollout_id)) is Rollout
    await store.start_attempt(rollout.rollout_id)
    latest = await store.start_attempt(rollout.rollout_id)
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(found, AttemptedRollout)
    assert found.attempt == latest.attempt


async def test_what_is_unknown_is_none(store):
    assert await store.get_rollout_by_id("ro-unknown") is None
    assert await store.get_latest_attempt("ro-unknown") is None
    assert await store.get_resources_by_id("rs-unknown") is None
    assert await store.get_latest_resources() is None
    assert await store.get_worker_by_id("w-unknown") is None


# -- querying ----------------------------------------------------------------------------------------


@pytest.fixture
async def mixed(store, clock):
    """Six rollouts: names, modes, statuses and rewards all differ."""
    for name, mode in (("a1", "train"), ("a2", "train"), ("b1", "val"), ("b2", "val"), ("c1", "test"), ("c2", None)):
        await store.enqueue_rollout(name, mode=mode, rollout_id=f"ro-{name}")
        clock.advance(1)
    for reward in (0.5, 0.1, 0.9):
        claimed = await store.dequeue_rollout()
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=reward)
        clock.advance(1)
    await store.dequeue_rollout()
    await store.cancel_rollouts(["ro-c1"])


def ids(page):
    return [rollout.rollout_id.removeprefix("ro-") for rollout in page]


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["a1", "a2", "b1", "b2", "c1", "c2"]),
        ({"status_in": ["succeeded"]}, ["a1", "a2", "b1"]),
        ({"status_in": ["queuing", "preparing"], "sort_by": "rollout_id"}, ["b2", "c2"]),
        ({"status": ["cancelled"]}, ["c1"]),
        ({"status_in": []}, []),
        ({"rollout_id_in": ["ro-c2", "ro-a1", "ro-unknown"]}, ["a1", "c2"]),
        ({"rollout_ids": ["ro-b1"]}, ["b1"]),
        ({"rollout_id_in": []}, []),
        ({"rollout_id_contains": "o-b"}, ["b1", "b2"]),
        ({"rollout_id_contains": "%"}, []),
        ({"rollout_id_contains": "ro_"}, []),
        ({"rollout_id_contains": "RO-B"}, []),
        ({"mode": "val"}, ["b1", "b2"]),
        ({"reward_min": 0.5}, ["a1", "b1"]),
        ({"reward_max": 0.5}, ["a1", "a2"]),
        ({"reward_min": 0.2, "reward_max": 0.6}, ["a1"]),
        ({"mode": "val", "status_in": ["succeeded"]}, ["b1"]),
        ({"mode": "val", "rollout_id_contains": "1", "reward_min": 0.0}, ["b1"]),
        ({"mode": "test", "status_in": ["succeeded"], "filter_logic": "or"}, ["a1", "a2", "b1", "c1"]),
        ({"rollout_id_in": ["ro-c2"], "rollout_id_contains": "a", "filter_logic": "or"}, ["a1", "a2", "c2"]),
        ({"mode": "val", "filter_logic": "or"}, ["b1", "b2"]),
        ({"filter_logic": "or"}, ["a1", "a2", "b1", "b2", "c1", "c2"]),
    ],
    ids=str,
)
async def test_rollouts_are_filtered_in_the_store(store, query, expected):
    page = await store.query_rollouts(**query)
    assert ids(page) == expected
    assert page.total == len(expected)


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"sort_order": "desc"}, ["c2", "c1", "b2", "b1", "a2", "a1"]),
        ({"sort_by": "start_time", "sort_order": "desc"}, ["c2", "c1", "b2", "b1", "a2", "a1"]),
        ({"sort_by": "rollout_id", "sort_order": "asc"}, ["a1", "a2", "b1", "b2", "c1", "c2"]),
        ({"sort_by": "reward", "status_in": ["succeeded"]}, ["a2", "a1", "b1"]),
        ({"sort_by": "reward", "sort_order": "desc", "status_in": ["succeeded"]}, ["b1", "a1", "a2"]),
        ({"sort_by": "end_time", "sort_order": "desc", "status_in": ["succeeded"]}, ["b1", "a2", "a1"]),
    ],
    ids=str,
)
async def test_rollouts_are_sorted_in_the_store(store, query, expected):
    assert ids(await store.query_rollouts(**query)) == expected


async def test_asked_for_by_status_rollouts_come_in_the_order_in_which_they_got_there(store):
    claims = [await claim_new(store, n, max_attempts=2, retry_condition=["failed"]) for n in range(4)]
    for n in (2, 0):
        await store.complete_attempt(claims[n].rollout_id, claims[n].attempt.attempt_id)
    for n in (3, 1):
        await store.complete_attempt(claims[n].rollout_id, claims[n].attempt.attempt_id, status="failed")
    assert [r.input for r in await store.query_rollouts(status_in=["succeeded"])] == [2, 0]
    assert [r.input for r in await store.query_rollouts(status_in=["succeeded"], sort_order="desc")] == [0, 2]
    waiting = [r.rollout_id for r in await store.query_rollouts(status_in=["requeuing"])]
    assert waiting == await drain(store)


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("sort_by", ["status", "mode", "reward", "end_time"])
async def test_rollouts_without_a_value_are_sorted_too_and_pages_do_not_overlap(store, sort_by):
    pages = [await store.query_rollouts(sort_by=sort_by, limit=2, offset=offset) for offset in (0, 2, 4)]
    assert sorted(name for page in pages for name in ids(page)) == ["a1", "a2", "b1", "b2", "c1", "c2"]


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [(2, 0, ["a1", "a2"]), (2, 4, ["c1", "c2"]), (2, 5, ["c2"]), (2, 9, []), (0, 0, []), (-1, 4, ["c1", "c2"])],
)
async def test_a_page_is_cut_in_the_store_and_knows_the_total(store, limit, offset, expected):
    page = await store.query_rollouts(limit=limit, offset=offset)
    assert ids(page) == expected
    assert (page.limit, page.offset, page.total) == (limit, offset, 6)


@pytest.mark.usefixtures("mixed")
async def test_the_total_counts_what_matches_not_what_is_on_the_page(store):
    page = await store.query_rollouts(status_in=["succeeded"], limit=1, offset=1)
    assert (ids(page), page.total) == (["a2"], 3)


async def test_queried_rollouts_are_complete(store):
    config = RolloutConfig(timeout_seconds=5, max_attempts=2, retry_condition=["timeout"])
    await store.add_resources({"prompt": PromptTemplate("x")}, resources_id="rs-1")
    rollout = await store.enqueue_rollout({"deep": [1, {"x": None}]}, mode="train", config=config, metadata={"k": 1})
    (found,) = await store.query_rollouts()
    assert found == rollout


async def test_a_long_list_of_ids_is_a_normal_query(store):
    requests = [EnqueueRolloutRequest(n, rollout_id=f"ro-{n}") for n in range(2500)]
    await store.enqueue_many_rollouts(requests)
    wanted = [f"ro-{n}" for n in range(0, 2500, 2)]
    page = await store.query_rollouts(rollout_id_in=wanted)
    assert [rollout.rollout_id for rollout in page] == wanted


# -- changing by hand --------------------------------------------------------------------------------


async def test_only_what_is_given_is_changed(store):
    rollout = await store.enqueue_rollout("task", mode="train", metadata={"k": 1})
    changed = await store.update_rollout(rollout.rollout_id, metadata={"k": 2})
    assert changed.metadata == {"k": 2}
    assert (changed.input, changed.mode, changed.status) == ("task", "train", "queuing")
    assert await store.get_rollout_by_id(rollout.rollout_id) == changed


async def test_everything_of_a_rollout_can_be_changed(store):
    rollout = await store.enqueue_rollout("task", mode="train", metadata={"k": 1})
    await store.add_resources({"prompt": PromptTemplate("x")}, resources_id="rs-1")
    await store.update_resources("rs-1", {"prompt": PromptTemplate("y")})
    config = RolloutConfig(timeout_seconds=5)
    changed = await store.update_rollout(
        rollout.rollout_id, input={"q": 2}, mode="val", resources_id="rs-1", config=config, metadata=None
    )
    assert (changed.input, changed.mode, changed.config, changed.metadata) == ({"q": 2}, "val", config, None)
    assert (changed.resources_id, changed.resources_version) == ("rs-1", 2)
    claimed = await store.dequeue_rollout()
    assert (claimed.input, claimed.resources_version) == ({"q": 2}, 2)


async def test_none_is_a_value_where_none_is_allowed(store):
    await store.add_resources({"prompt": PromptTemplate("x")})
    rollout = await store.enqueue_rollout("task", mode="train", metadata={"k": 1})
    changed = await store.update_rollout(rollout.rollout_id, input=None, mode=None, resources_id=None, metadata=None)
    assert (changed.input, changed.mode, changed.resources_id, changed.metadata) == (None, None, None, None)


async def test_an_unknown_rollout_cannot_be_changed(store):
    with raises(UnknownIdError, "ro-unknown"):
        await store.update_rollout("ro-unknown", metadata={})


async def test_a_change_to_unknown_resources_changes_nothing(store):
    rollout = await store.enqueue_rollout("task", metadata={"k": 1})
    with raises(UnknownIdError, "rs-unknown"):
        await store.update_rollout(rollout.rollout_id, resources_id="rs-unknown", metadata={"k": 2}, status="cancelled")
    assert await store.get_rollout_by_id(rollout.rollout_id) == rollout


@pytest.mark.parametrize("target", ROLLOUT_STATUSES)
@pytest.mark.parametrize("start", ["queuing", "preparing", "running", "requeuing"])
async def test_an_unfinished_rollout_may_be_moved_to_any_status(store, clock, start, target):
    if start == "queuing":
        rollout = await store.enqueue_rollout("task")
    else:
        rollout = await (claim_new(store) if start == "preparing" else run_new(store))
        if start == "requeuing":
            await store.update_rollout(rollout.rollout_id, status="requeuing")
    clock.advance(5)
    changed = await store.update_rollout(rollout.rollout_id, status=target)
    assert changed.status == target
    assert (await status_of(store, rollout))[0] == target
    assert changed.end_time == (clock.now if target in FINISHED else None)
    finished = (await store.finished_rollouts()).items
    assert [r.rollout_id for r in finished] == ([rollout.rollout_id] if target in FINISHED else [])
    assert await drain(store) == ([rollout.rollout_id] if target in QUEUED else [])


@pytest.mark.parametrize("target", ROLLOUT_STATUSES)
@pytest.mark.parametrize("final", FINISHED)
async def test_a_finished_rollout_keeps_its_status(store, final, target):
    claimed = await run_new(store)
    await store.update_rollout(claimed.rollout_id, status=final)
    before = await store.get_rollout_by_id(claimed.rollout_id)
    if target == final:
        assert await store.update_rollout(claimed.rollout_id, status=target) == before
    else:
        with raises(ValueError, claimed.rollout_id) as caught:
            await store.update_rollout(claimed.rollout_id, status=target, metadata={"k": 1}, mode="test")
        assert isinstance(caught.value, FinishedError)
    assert await store.get_rollout_by_id(claimed.rollout_id) == before
    assert await store.dequeue_rollout() is None
    assert len((await store.finished_rollouts()).items) == 1


async def test_notes_may_still_be_added_to_a_finished_rollout(store):
    claimed = await finish_new(store, reward=1.0)
    changed = await store.update_rollout(claimed.rollout_id, metadata={"seen": True})
    assert (changed.metadata, changed.status, changed.reward) == ({"seen": True}, "succeeded", 1.0)


@pytest.mark.parametrize("target", QUEUED)
async def test_requeueing_by_hand_ends_the_open_attempt_as_failed_and_queues_once(store, clock, target):
    claimed = await run_new(store)
    clock.advance(5)
    await store.update_rollout(claimed.rollout_id, status=target)
    await store.update_rollout(claimed.rollout_id, status=target)
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert (attempt.status, attempt.end_time) == ("failed", clock.now)
    again = await store.dequeue_rollout()
    assert (again.rollout_id, again.attempt.sequence_id, again.status) == (claimed.rollout_id, 2, "preparing")
    assert await store.dequeue_rollout() is None


async def test_moving_between_the_two_waiting_statuses_queues_once(store):
    rollout = await store.enqueue_rollout("task")
    for target in ("requeuing", "queuing", "requeuing"):
        await store.update_rollout(rollout.rollout_id, status=target)
    assert await drain(store) == [rollout.rollout_id]


@pytest.mark.parametrize("final", FINISHED)
async def test_no_attempt_of_a_finished_rollout_stays_open(store, clock, final):
    claimed = await run_new(store)
    clock.advance(5)
    await store.update_rollout(claimed.rollout_id, status=final)
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt.status in ("succeeded", "failed")
    assert attempt.end_time == clock.now


# -- cancelling --------------------------------------------------------------------------------------


async def test_cancelling_takes_waiting_rollouts_out_of_the_queue(store, clock):
    rollouts = [await store.enqueue_rollout(n) for n in range(3)]
    clock.advance(5)
    cancelled = await store.cancel_rollouts([rollouts[0].rollout_id, rollouts[2].rollout_id])
    assert [r.rollout_id for r in cancelled] == [rollouts[0].rollout_id, rollouts[2].rollout_id]
    assert {(r.status, r.end_time) for r in cancelled} == {("cancelled", clock.now)}
    assert await drain(store) == [rollouts[1].rollout_id]


async def test_the_open_attempt_of_a_cancelled_rollout_ends_as_failed(store, clock):
    claimed = await run_new(store)
    clock.advance(5)
    await store.cancel_rollouts([claimed.rollout_id])
    assert await status_of(store, claimed) == ("cancelled", "failed")
    assert (await store.get_latest_attempt(claimed.rollout_id)).end_time == clock.now


async def test_cancelling_leaves_finished_rollouts_alone(store, clock):
    claimed = await finish_new(store, reward=1.0)
    before = await store.get_rollout_by_id(claimed.rollout_id)
    clock.advance(5)
    assert await store.cancel_rollouts([claimed.rollout_id]) == [before]
    assert await store.get_rollout_by_id(claimed.rollout_id) == before


async def test_cancelling_twice_is_one_cancellation(store, clock):
    claimed = await run_new(store)
    first = await store.cancel_rollouts([claimed.rollout_id, claimed.rollout_id])
    clock.advance(5)
    assert await store.cancel_rollouts([claimed.rollout_id]) == first[:1]
    assert len((await store.finished_rollouts()).items) == 1


async def test_an_unknown_id_cancels_nothing(store):
    rollout = await store.enqueue_rollout("task")
    with raises(UnknownIdError, "ro-unknown"):
        await store.cancel_rollouts([rollout.rollout_id, "ro-unknown"])
    assert (await status_of(store, rollout))[0] == "queuing"


async def test_what_a_cancelled_attempt_still_sends_is_kept_and_changes_nothing(store):
    claimed = await run_new(store)
    await store.cancel_rollouts([claimed.rollout_id])
    before = await store.get_rollout_by_id(claimed.rollout_id)
    await store.add_span(make_span(claimed))
    await store.complete_attempt(
        claimed.rollout_id, claimed.attempt.attempt_id, spans=[make_span(claimed)], status="succeeded"
    )
    found = await store.get_rollout_by_id(claimed.rollout_id)
    assert (found.status, found.end_time, found.attempt.status) == ("cancelled", before.end_time, "failed")
    assert (await store.query_spans(claimed.rollout_id)).total == 3


# -- pruning -----------------------------------------------------------------------------------------


async def test_pruning_deletes_what_finished_long_ago_with_all_it_left(store, clock):
    old = await finish_new(store, spans=())
    await store.add_span(make_span(old))
    clock.advance(100)
    recent = await finish_new(store)
    waiting = await store.enqueue_rollout("task")
    clock.advance(10)
    assert await store.prune(older_than=50) == 1
    assert await store.get_rollout_by_id(old.rollout_id) is None
    assert await store.get_latest_attempt(old.rollout_id) is None
    left = await store.query_rollouts()
    assert [r.rollout_id for r in left] == [recent.rollout_id, waiting.rollout_id]
    assert (await store.statistics())["total_spans"] == 0
    assert (await store.statistics())["total_attempts"] == 1
    assert await store.prune(older_than=50) == 0


async def test_an_unfinished_rollout_is_never_pruned(store, clock):
    claimed = await run_new(store)
    waiting = await store.enqueue_rollout("task")
    clock.advance(1000)
    assert await store.prune(older_than=0) == 0
    assert {r.rollout_id for r in await store.query_rollouts()} == {claimed.rollout_id, waiting.rollout_id}


async def test_a_cursor_over_completions_stays_right_after_pruning(store, clock):
    await finish_new(store)
    await finish_new(store)
    cursor = (await store.finished_rollouts()).cursor
    clock.advance(100)
    assert await store.prune(older_than=10) == 2
    after = await finish_new(store)
    page = await store.finished_rollouts(after=cursor)
    assert [r.rollout_id for r in page.items] == [after.rollout_id]
    assert page.cursor > cursor


# -- counting ----------------------------------------------------------------------------------------


async def test_statistics_count_what_the_store_holds(store):
    await store.add_resources({"prompt": PromptTemplate("x")}, resources_id="rs-1")
    await store.update_resources("rs-1", {"prompt": PromptTemplate("y")})
    await finish_new(store)
    claimed = await run_new(store, worker_id="w-1")
    await store.add_many_spans([make_span(claimed), make_span(claimed)])
    for _ in range(3):
        await store.enqueue_rollout("task")
    numbers = await store.statistics()
    assert numbers["total_rollouts"] == 5
    by_status = {status: n for status, n in numbers["rollouts_by_status"].items() if n}
    assert by_status == {"succeeded": 1, "running": 1, "queuing": 3}
    assert numbers["queue_length"] == 3
    assert (numbers["total_attempts"], numbers["open_attempts"]) == (2, 1)
    assert (numbers["total_spans"], numbers["total_resources"], numbers["total_workers"]) == (3, 2, 1)
    assert numbers["size_bytes"] > 0
    assert numbers["uptime_seconds"] >= 0
    assert isinstance(numbers["name"], str)


async def test_a_store_tells_what_it_can_do(store):
    capabilities = store.capabilities
    assert set(capabilities) == {"thread_safe", "async_safe", "zero_copy", "otlp_traces"}
    assert all(isinstance(value, bool) for value in capabilities.values())
    assert capabilities["async_safe"]
    if capabilities["otlp_traces"]:
        assert store.otlp_traces_endpoint().startswith("http://127.0.0.1:")
    else:
        with pytest.raises(NotImplementedError):
            store.otlp_traces_endpoint()


async def test_closing_twice_is_harmless(store):
    await store.enqueue_rollout("task")
    await store.close()
    await store.close()


async def test_listed_rollouts_have_their_latest_attempt(store):
    done = await finish_new(store)
    waiting = await store.enqueue_rollout("waiting")
    found = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
    claimed = found[done.rollout_id]
    assert isinstance(claimed, AttemptedRollout)
    assert claimed.attempt == await store.get_latest_attempt(done.rollout_id)
    assert type(found[waiting.rollout_id]) is Rollout
    by_status = await store.query_rollouts(status_in=["succeeded"])
    waited_for = await store.wait_for_rollouts(rollout_ids=[done.rollout_id])
    assert [*by_status, *waited_for] == [claimed] * 2


async def test_many_rollouts_may_be_given_as_rollouts(store):
    queued = await store.enqueue_many_rollouts(rollouts=[EnqueueRolloutRequest("a"), EnqueueRolloutRequest("b")])
    assert [rollout.input for rollout in queued] == ["a", "b"]


async def test_statistics_have_an_uptime(store):
    assert (await store.statistics())["uptime"] >= 0
