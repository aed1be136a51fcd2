"""Searches for rollouts, in every store."""

import base64

from sharpen.errors import InvalidInputError, UnknownIdError
from sharpen.store import InMemoryLightningStore, LightningStore
from sharpen.types import EnqueueRolloutRequest, Rollout
from tests.errors import raises

from .scenes import claim_new, finish_new


async def enqueue(store, count, **fields):
    requests = [EnqueueRolloutRequest({"n": n}, rollout_id=f"ro-{n}", **fields) for n in range(count)]
    await store.enqueue_many_rollouts(requests)


def ids(page):
    return [rollout.rollout_id for rollout in page.items]


async def test_the_newest_come_first_in_pages_that_join(store):
    await enqueue(store, 5)
    first = await store.search_rollouts(limit=2)
    assert ids(first) == ["ro-4", "ro-3"]
    assert (first.total, first.is_total_exact, first.is_complete) == (5, True, True)
    # What comes meanwhile shifts nothing.
    await store.enqueue_rollout("later")
    second = await store.search_rollouts(limit=2, cursor=first.next_cursor)
    third = await store.search_rollouts(limit=2, cursor=second.next_cursor)
    assert ids(second) + ids(third) == ["ro-2", "ro-1", "ro-0"]
    assert third.next_cursor is None


async def test_items_are_whole_rollouts(store):
    claimed = await claim_new(store, {"question": "6 * 7"}, worker_id="w-1")
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=0.5)
    (found,) = (await store.search_rollouts(worker_id="w-1")).items
    (listed,) = await store.query_rollouts()
    assert found == Rollout(**{name: getattr(listed, name) for name in Rollout.__struct_fields__})
    assert (found.input, found.reward, found.status) == ({"question": "6 * 7"}, 0.5, "succeeded")


async def test_the_last_to_finish_comes_first_and_the_unfinished_last(store):
    done = [(await finish_new(store, n)).rollout_id for n in range(3)]
    await enqueue(store, 2)
    assert ids(await store.search_rollouts(order="finished")) == [*done[::-1], "ro-1", "ro-0"]


async def test_orders_by_reward_put_those_without_one_last(store):
    low, high = [(await finish_new(store, reward=reward)).rollout_id for reward in (-1.0, 2.0)]
    (none,) = [(await finish_new(store)).rollout_id]
    assert ids(await store.search_rollouts(order="reward_high")) == [high, low, none]
    assert ids(await store.search_rollouts(order="reward_low")) == [low, high, none]
    assert ids(await store.search_rollouts(reward_min=0.0)) == [high]


async def test_no_status_at_all_finds_nothing(store):
    await finish_new(store, reward=1.0)
    await enqueue(store, 2)
    for order in ("newest", "finished", "reward_high"):
        page = await store.search_rollouts(status_in=[], order=order)
        assert (page.items, page.next_cursor, page.total) == ([], None, 0)
    for options in ({}, {"sort_by": "start_time"}, {"mode": "train", "filter_logic": "or"}, {"rollout_id_in": []}):
        listed = await store.query_rollouts(status_in=[], **options)
        assert (listed.items, listed.total) == ([], 0)


async def test_a_reward_that_changes_moves_the_rollout(store):
    claimed = await finish_new(store, reward=1.0)
    other = await finish_new(store, reward=2.0)
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=1.0)
    assert ids(await store.search_rollouts(order="reward_high")) == [other.rollout_id, claimed.rollout_id]


async def test_text_is_found_in_id_input_and_metadata(store):
    await store.enqueue_many_rollouts(
        [
            EnqueueRolloutRequest("plain", rollout_id="ro-Needle"),
            EnqueueRolloutRequest({"deep": ["a needle here"]}, rollout_id="ro-2"),
            EnqueueRolloutRequest(3, metadata={"note": 'NEEDLE "quoted"'}, rollout_id="ro-3"),
            EnqueueRolloutRequest("nothing", rollout_id="ro-4"),
        ]
    )
    assert ids(await store.search_rollouts(text="needle", order="oldest")) == ["ro-Needle", "ro-2", "ro-3"]
    assert ids(await store.search_rollouts(text='"quoted"')) == ["ro-3"]
    assert ids(await store.search_rollouts(text='"deep":')) == ["ro-2"]
    assert ids(await store.search_rollouts(text="%")) == []
    assert len((await store.search_rollouts(text="")).items) == 4


async def test_groups_and_equal_inputs_are_found(store):
    await enqueue(store, 3, metadata={"group": "g-1"})
    same = await store.enqueue_rollout({"n": 1}, metadata={"group": "g-2"})
    assert ids(await store.search_rollouts(group="g-1", order="oldest")) == ["ro-0", "ro-1", "ro-2"]
    assert ids(await store.search_rollouts(same_input_as="ro-1")) == [same.rollout_id, "ro-1"]
    assert ids(await store.search_rollouts(same_input_as="ro-1", group="g-1")) == ["ro-1"]


async def test_resources_and_times_are_found(store, world):
    await store.add_resources({}, "rs-1")
    early = await store.enqueue_rollout(1)
    world.clock.advance(10)
    await store.update_resources("rs-1", {})
    late = await store.enqueue_rollout(2)
    assert ids(await store.search_rollouts(resources_id="rs-1", resources_version=1)) == [early.rollout_id]
    assert ids(await store.search_rollouts(started_after=late.start_time)) == [late.rollout_id]
    assert ids(await store.search_rollouts(started_before=late.start_time)) == [early.rollout_id]


def cursor_of(text):
    return base64.urlsafe_b64encode(text.encode()).decode()


WRONG = [
    {"order": "best"},
    {"status_in": ["done"]},
    {"mode": "training"},
    {"limit": 0},
    {"limit": 10_001},
    {"resources_version": 0},
    {"reward_min": float("nan")},
    {"text": "x" * 1001},
    {"cursor": "not a cursor"},
    {"cursor": ""},
    {"cursor": "é"},
    {"cursor": cursor_of('["newest",false,0,-1]')},
    {"cursor": cursor_of('["newest",false,0,1e99]')},
    {"cursor": cursor_of('["newest",false,1e999,1]')},
    {"cursor": cursor_of('["newest",false,0,1,2]')},
]


async def test_a_wrong_value_is_named(store):
    for wrong in WRONG:
        with raises(InvalidInputError, next(iter(wrong))):
            await store.search_rollouts(**wrong)


async def test_a_cursor_of_another_order_is_refused(store):
    await enqueue(store, 3)
    page = await store.search_rollouts(limit=1)
    with raises(InvalidInputError, "cursor", "newest", "oldest"):
        await store.search_rollouts(order="oldest", cursor=page.next_cursor)


async def test_an_unknown_rollout_is_named(store):
    with raises(UnknownIdError, "ro-none"):
        await store.search_rollouts(same_input_as="ro-none")


class Listing(LightningStore):
    """A store of a user that knows nothing of searches."""

    def __init__(self, store):
        self._store = store

    async def query_rollouts(self, **wanted):
        return await self._store.query_rollouts(**wanted)

    async def get_latest_attempt(self, rollout_id):
        return await self._store.get_latest_attempt(rollout_id)


async def test_a_store_that_can_only_list_can_be_searched():
    inner = InMemoryLightningStore()
    store = Listing(inner)
    claimed = await claim_new(inner, "a needle", worker_id="w-1")
    await inner.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=1.0)
    await enqueue(inner, 3)
    assert ids(await store.search_rollouts(text="needle", worker_id="w-1")) == [claimed.rollout_id]
    page = await store.search_rollouts(order="finished", limit=2)
    assert (ids(page), page.total) == ([claimed.rollout_id, "ro-2"], 4)
    assert ids(await store.search_rollouts(order="finished", cursor=page.next_cursor)) == ["ro-1", "ro-0"]
    with raises(UnknownIdError, "ro-none"):
        await store.search_rollouts(same_input_as="ro-none")
    await inner.close()
