"""Several stores before one database: each item goes to one of them, in order, with one wake-up."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

import pytest

from sharpen.store import PostgresStore
from sharpen.types import EnqueueRolloutRequest, RolloutConfig
from tests.store.internals import postgres_store

from ..scenes import PATIENCE_SECONDS, claim_new, make_span, within_patience
from ..servers import PostgresServer
from .claimer import Claimer

pytestmark = pytest.mark.servers


class CountingStore(PostgresStore):
    """Counts how often each method that writes is run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: Counter[str] = Counter()
        super().__init__(*args, **kwargs)

    async def _write(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        return await super()._write(name, *args, **kwargs)


@asynccontextmanager
async def several(server: PostgresServer, number: int, **options: Any) -> AsyncIterator[list[CountingStore]]:
    url = server.url(server.new_schema())
    stores = [CountingStore(url, **options) for _ in range(number)]
    try:
        yield stores
    finally:
        await asyncio.gather(*(store.close() for store in stores))


def tasks(number: int) -> list[EnqueueRolloutRequest]:
    return [EnqueueRolloutRequest(input=n) for n in range(number)]


async def seats(store: PostgresStore, number: int) -> None:
    """Return when so many seats are known to the database."""
    while sum(seats for (seats,) in await asyncio.to_thread(_seats, store)) < number:
        await asyncio.sleep(0.01)


def _seats(store: PostgresStore) -> list[tuple[int]]:
    with store.database.connect(lock_seconds=5) as connection:
        return connection.execute("SELECT seats FROM waiters").fetchall()


async def test_each_rollout_is_claimed_once_and_in_order_by_processes_and_by_threads(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_schema())
    store = PostgresStore(url)
    total = 400
    await store.enqueue_many_rollouts(tasks(total))
    claimers = [Claimer(url, f"p{n}") for n in range(3)]
    assert {await claimer.opened() for claimer in claimers} == {store.store_id}
    here: list[list[int]] = [[], []]

    async def claim(claimed_here: list[int]) -> None:
        while claimed := await store.dequeue_rollout(worker_id="here"):
            claimed_here.append(claimed.input)

    both = asyncio.gather(asyncio.gather(*(each.go() for each in claimers)), *(claim(each) for each in here))
    lines, *_ = await within_patience(both)
    assert sorted(chain(*lines, *here)) == list(range(total))
    for claimed in (*lines, *here):
        assert claimed == sorted(claimed)
    await store.close()


async def test_one_wake_up_for_each_item_wherever_its_waiter_sits(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "LOOK_SECONDS", 3600.0)  # on a slow machine it would wake more
    async with several(postgres, 3) as stores:
        waiting = [
            asyncio.create_task(store.dequeue_rollout(worker_id=f"w{n}", wait_seconds=PATIENCE_SECONDS))
            for store in stores
            for n in range(10)
        ]
        await seats(stores[0], 30)
        before = sum(store.calls["dequeue_many_rollouts"] for store in stores)
        claimed = []
        for n in range(30):
            await stores[n % 3].enqueue_rollout(n)
            done, _ = await asyncio.wait(waiting, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            claimed += [task.result().input for task in done]
            waiting = [task for task in waiting if task not in done]
        assert claimed == list(range(30))
        assert sum(store.calls["dequeue_many_rollouts"] for store in stores) - before == 30


async def test_a_wake_up_that_finds_nobody_goes_to_another_store(postgres: PostgresServer) -> None:
    async with several(postgres, 3) as (first, second, third):
        gone = asyncio.create_task(first.dequeue_rollout(worker_id="gone", wait_seconds=PATIENCE_SECONDS))
        waiting = asyncio.create_task(second.dequeue_rollout(worker_id="w", wait_seconds=PATIENCE_SECONDS))
        await seats(third, 2)
        gone.cancel()
        rollout = await third.enqueue_rollout("task")
        claimed = await within_patience(waiting)
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id


async def test_whoever_waits_hears_of_what_another_store_finished(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "LOOK_SECONDS", 3600.0)  # a message, and not a look
    async with several(postgres, 2) as (here, there):
        claimed = await claim_new(there)
        one = asyncio.create_task(here.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=PATIENCE_SECONDS))
        any_one = asyncio.create_task(here.finished_rollouts(wait_seconds=PATIENCE_SECONDS))
        while not (await asyncio.to_thread(_awaiting, there)):
            await asyncio.sleep(0.01)
        await there.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
        assert [each.rollout_id for each in await within_patience(one)] == [claimed.rollout_id]
        assert [each.rollout_id for each in (await within_patience(any_one)).items] == [claimed.rollout_id]


def _awaiting(store: PostgresStore) -> bool:
    with store.database.connect(lock_seconds=5) as connection:
        return bool(connection.execute("SELECT 1 FROM waiters WHERE awaits_finish").fetchall())


async def test_no_finished_rollout_is_skipped_while_many_finish_at_once(postgres: PostgresServer) -> None:
    async with several(postgres, 4) as stores:
        total = 600
        await stores[0].enqueue_many_rollouts(tasks(total))
        seen: list[str] = []

        async def finish(store: PostgresStore) -> None:
            while claimed := await store.dequeue_many_rollouts(limit=3):
                await store.cancel_rollouts([each.rollout_id for each in claimed[:2]])
                await store.complete_attempt(claimed[-1].rollout_id, claimed[-1].attempt.attempt_id)

        async def read() -> None:
            after = 0
            while len(seen) < total:
                found = await stores[3].finished_rollouts(after, limit=7, wait_seconds=0.2)
                assert found.cursor >= after
                after = found.cursor
                seen.extend(each.rollout_id for each in found.items)

        workers = [finish(store) for store in stores[:3] for _ in range(4)]
        await within_patience(asyncio.gather(read(), *workers))
        assert len(set(seen)) == len(seen) == total


async def test_calls_that_touch_the_same_rollouts_in_any_order_all_succeed(postgres: PostgresServer) -> None:
    async with several(postgres, 2) as (one, other):
        for _ in range(15):
            rollouts = await one.enqueue_many_rollouts(tasks(8))
            claimed = await one.dequeue_many_rollouts(limit=8, worker_id="w")
            spans = [make_span(each) for each in claimed]
            ids = [each.rollout_id for each in rollouts]
            await within_patience(
                asyncio.gather(
                    one.add_many_spans(spans),
                    other.add_many_spans(spans[::-1]),
                    one.cancel_rollouts(ids[::-1]),
                    other.cancel_rollouts(ids),
                    other.update_worker("w"),
                    one.update_worker("w", {"cpu": 1}),
                )
            )
            assert {each.status for each in await one.query_rollouts(rollout_ids=ids)} == {"cancelled"}
        assert (await one.statistics())["total_spans"] == 15 * 8


async def test_one_id_enqueued_by_many_at_once_is_one_rollout(postgres: PostgresServer) -> None:
    async with several(postgres, 4) as stores:
        for n in range(10):
            calls = [store.enqueue_rollout("same", rollout_id=f"ro-{n}") for store in stores]
            starts = [store.start_rollout("same", rollout_id=f"st-{n}") for store in stores]
            await within_patience(asyncio.gather(*calls))
            attempts = {each.attempt.attempt_id for each in await within_patience(asyncio.gather(*starts))}
            assert len(attempts) == 1
        assert (await stores[0].statistics())["total_rollouts"] == 20


async def test_one_request_sent_by_many_at_once_gets_one_answer(postgres: PostgresServer) -> None:
    async with several(postgres, 4) as stores:
        await stores[0].enqueue_many_rollouts(tasks(40))
        resources = await stores[0].add_resources({})
        for n in range(10):
            claims = [store.dequeue_many_rollouts(limit=2, request_id=f"rq-{n}") for store in stores]
            updates = [store.update_resources(resources.resources_id, {}, request_id=f"up-{n}") for store in stores]
            answers = await within_patience(asyncio.gather(*claims))
            assert all(answer == answers[0] for answer in answers)
            versions = await within_patience(asyncio.gather(*updates))
            assert {each.version for each in versions} == {n + 2}
        assert (await stores[0].statistics())["queue_length"] == 20


async def test_a_lease_that_runs_out_is_applied_once_by_several_stores(postgres: PostgresServer) -> None:
    async with several(postgres, 3) as stores:
        config = RolloutConfig(unresponsive_seconds=0.2, max_attempts=2, retry_condition=["unresponsive"])
        requests = [EnqueueRolloutRequest(input=n, config=config) for n in range(20)]
        await stores[0].enqueue_many_rollouts(requests)
        claimed = await stores[0].dequeue_many_rollouts(limit=20)
        while (await stores[1].statistics())["rollouts_by_status"]["requeuing"] < 20:
            await asyncio.sleep(0.02)
        again = await stores[2].dequeue_many_rollouts(limit=30)
        assert len(again) == len(claimed) == 20
        assert {each.attempt.sequence_id for each in again} == {2}


async def test_a_lease_in_somebody_elses_hands_is_looked_at_now_and_then(postgres: PostgresServer) -> None:
    async with several(postgres, 1) as (store,):
        started = await store.start_rollout("task", config=RolloutConfig(timeout_seconds=0.2))
        looks, read_now = 0, store._read_now

        def counting(name: str, *args: Any) -> Any:
            nonlocal looks
            looks += name == "next_deadline"
            return read_now(name, *args)

        store._read_now = counting  # type: ignore[method-assign]
        with store.database.connect(lock_seconds=5) as somebody:
            somebody.execute("BEGIN")
            somebody.execute("SELECT * FROM rollouts FOR UPDATE")
            began = time.monotonic()
            await asyncio.sleep(0.7)
            somebody.execute("ROLLBACK")
        assert looks < 10 + 25 * (time.monotonic() - began)
        (ended,) = await within_patience(store.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        assert ended.status == "failed"
