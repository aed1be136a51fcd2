"""Several stores before one database: together they keep the promises that one of them keeps."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from sharpen.errors import StoreWriteError
from sharpen.store import LightningStore
from sharpen.types import EnqueueRolloutRequest, RolloutConfig

from .databases import own_database
from .scenes import PATIENCE_SECONDS, waiting, within_patience
from .worlds import Ground

pytestmark = pytest.mark.servers

Stores = tuple[LightningStore, LightningStore]


@pytest.fixture(params=["postgres", "redis"])
async def pair(request: pytest.FixtureRequest, ground: Ground) -> AsyncIterator[Stores]:
    """Two stores in one database, as two processes would have them."""
    database = ground.database(request.param)
    one, other = database.open(), database.open()
    yield one, other
    await one.close()
    await other.close()


async def enqueue(store: LightningStore, count: int, **config: object) -> list[str]:
    requests = [EnqueueRolloutRequest(n, config=RolloutConfig(**config)) for n in range(count)]
    return [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests)]


async def work_off(store: LightningStore, name: str) -> list[str]:
    """Claim and finish until nothing is left."""
    done = []
    while claimed := await store.dequeue_rollout(worker_id=name):
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=1.0)
        done.append(claimed.rollout_id)
    return done


async def test_all_have_the_same_id(pair: Stores):
    assert pair[0].store_id == pair[1].store_id


async def test_work_given_to_one_wakes_a_worker_of_the_other(pair: Stores):
    one, other = pair
    for _ in range(3):
        claiming = await waiting(other, other.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
        began = time.monotonic()
        (rollout_id,) = await enqueue(one, 1)
        claimed = await claiming
        assert claimed is not None
        assert claimed.rollout_id == rollout_id
        assert time.monotonic() - began < PATIENCE_SECONDS / 4


async def test_no_wake_up_is_lost_while_somebody_sits_down(pair: Stores, monkeypatch: pytest.MonkeyPatch):
    """Work comes before, while and after the other begins to wait; the look around that would find it is put off."""
    one, other = pair
    claiming = await waiting(other, other.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
    await enqueue(one, 1)
    assert await claiming is not None  # it listens from now on
    for kind in ("postgres", "redis"):
        monkeypatch.setattr(f"sharpen.store.{kind}.store.LOOK_SECONDS", 3600.0)
    for n in range(60):
        claiming = asyncio.ensure_future(other.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
        await asyncio.sleep(0.0002 * (n % 20))
        await enqueue(one, 1)
        assert await claiming is not None, f"nothing was heard of item {n}"


async def test_what_finishes_in_one_wakes_those_who_wait_in_the_other(pair: Stores):
    one, other = pair
    (rollout_id,) = await enqueue(one, 1)
    following = await waiting(other, other.finished_rollouts(wait_seconds=PATIENCE_SECONDS))
    awaiting = await waiting(other, other.wait_for_rollouts(rollout_ids=[rollout_id], timeout=PATIENCE_SECONDS))
    assert await work_off(one, "w") == [rollout_id]
    assert [rollout.rollout_id for rollout in (await following).items] == [rollout_id]
    assert [rollout.rollout_id for rollout in await awaiting] == [rollout_id]


async def test_every_rollout_is_claimed_once_whoever_asks(pair: Stores):
    ids = await enqueue(pair[0], 120)
    done = await asyncio.gather(*(work_off(pair[n % 2], f"w-{n}") for n in range(8)))
    assert sorted(each for part in done for each in part) == sorted(ids)
    assert (await pair[1].statistics())["total_attempts"] == len(ids)


async def test_nobody_who_follows_the_order_of_finishing_misses_one(pair: Stores):
    ids = await enqueue(pair[0], 160)

    async def follow(store: LightningStore) -> list[str]:
        found, cursor = [], 0
        while len(found) < len(ids):
            page = await store.finished_rollouts(after=cursor, wait_seconds=1.0)
            found += [rollout.rollout_id for rollout in page.items]
            cursor = page.cursor
        return found

    following = [asyncio.ensure_future(follow(store)) for store in pair]
    await asyncio.gather(*(work_off(pair[n % 2], f"w-{n}") for n in range(8)))
    one, other = await within_patience(asyncio.gather(*following))
    assert one == other
    assert sorted(one) == sorted(ids)


async def test_a_request_that_is_sent_to_both_is_answered_once(pair: Stores):
    ids = await enqueue(pair[0], 6)
    answers = await asyncio.gather(
        *(pair[n % 2].dequeue_many_rollouts(limit=2, worker_id="w", request_id="rq-1") for n in range(6))
    )
    assert [[each.rollout_id for each in answer] for answer in answers] == [ids[:2]] * 6
    assert (await pair[0].statistics())["queue_length"] == 4


async def test_a_rollout_that_is_enqueued_in_both_is_one(pair: Stores):
    request = EnqueueRolloutRequest("task", rollout_id="ro-same")
    answers = await asyncio.gather(*(pair[n % 2].enqueue_many_rollouts([request]) for n in range(8)))
    assert [[each.rollout_id for each in answer] for answer in answers] == [["ro-same"]] * 8
    assert len(await pair[0].query_rollouts()) == 1


async def test_spans_that_are_sent_to_both_get_numbers_of_their_own(pair: Stores):
    await enqueue(pair[0], 1)
    claimed = await pair[0].dequeue_rollout()
    assert claimed is not None
    ids = claimed.rollout_id, claimed.attempt.attempt_id
    numbers = await asyncio.gather(*(pair[n % 2].get_next_span_sequence_id(*ids) for n in range(20)))
    assert sorted(numbers) == list(range(1, 21))


async def test_a_lease_that_ends_is_noticed_once(pair: Stores):
    config = {"unresponsive_seconds": 0.2, "max_attempts": 2, "retry_condition": ["unresponsive"]}
    ids = await enqueue(pair[0], 10, **config)
    assert len(await pair[0].dequeue_many_rollouts(limit=10, worker_id="w-lost")) == 10
    again = Counter[str]()
    end = time.monotonic() + PATIENCE_SECONDS
    while len(again) < 10 and time.monotonic() < end:
        for store in pair:
            again.update(
                claimed.rollout_id for claimed in await store.dequeue_many_rollouts(limit=10, wait_seconds=0.1)
            )
    assert again == Counter(ids)


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_who_waits_while_the_database_dies_is_woken_after_it_came_back(tmp_path, kind):
    with own_database(kind, tmp_path) as database:
        assert database.server is not None
        one, other = database.open(busy_seconds=PATIENCE_SECONDS), database.open(busy_seconds=PATIENCE_SECONDS)
        claiming = await waiting(other, other.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
        await asyncio.to_thread(database.server.kill)
        enqueuing = asyncio.ensure_future(one.enqueue_rollout("task"))
        await asyncio.sleep(0.2)
        assert not enqueuing.done()
        await asyncio.to_thread(database.server.start)
        rollout, claimed = await within_patience(asyncio.gather(enqueuing, claiming))
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id
        await one.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
        assert len((await other.finished_rollouts()).items) == 1
        await asyncio.gather(one.close(), other.close())


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_finished_work_is_kept_while_the_database_is_away_for_long(tmp_path, kind):
    with own_database(kind, tmp_path) as database:
        assert database.server is not None
        store = database.open(busy_seconds=0.3)
        await enqueue(store, 2)
        claimed = await store.dequeue_many_rollouts(limit=2)
        await asyncio.to_thread(database.server.kill)
        for each in claimed:
            with pytest.raises(StoreWriteError):
                await store.complete_attempt(each.rollout_id, each.attempt.attempt_id, reward=0.5)
        await asyncio.to_thread(database.server.start)
        await store.update_worker("w-any")  # any write carries what was kept
        finished = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in claimed], timeout=30)
        assert [(rollout.status, rollout.reward) for rollout in finished] == [("succeeded", 0.5)] * 2
        await store.close()
