"""A lost connection loses nothing and does nothing twice."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from sharpen.errors import StoreError, StoreUnavailableError, StoreWriteError
from sharpen.store import PostgresStore
from sharpen.types import LLM, EnqueueRolloutRequest
from tests.errors import raises
from tests.store.internals import PostgresSession, postgres_connection

from ..scenes import PATIENCE_SECONDS, claim_new, make_span, within_patience
from ..servers import PostgresServer, postgres_server
from .proxy import PostgresProxy, postgres_proxy

pytestmark = pytest.mark.servers

LLMS = {"main": LLM(endpoint="http://localhost:1", model="m")}


@asynccontextmanager
async def behind_proxy(
    server: PostgresServer, **options: float
) -> AsyncIterator[tuple[PostgresProxy, PostgresStore, PostgresStore]]:
    """A store behind a proxy, and one beside it that sees what is there."""
    schema = server.new_schema()
    async with postgres_proxy(server) as proxy:
        url = server.url(schema, port=proxy.port)
        store = await asyncio.to_thread(lambda: PostgresStore(url, **options))  # type: ignore[arg-type]
        beside = PostgresStore(server.url(schema))
        try:
            yield proxy, store, beside
        finally:
            proxy.is_down = False
            await store.close()
            await beside.close()


async def enqueue(store: PostgresStore) -> str:
    return (await store.enqueue_rollout("one")).rollout_id


async def start(store: PostgresStore) -> str:
    return (await store.start_rollout("one", worker_id="w")).rollout_id


Loss = Literal["commit", "answer"]
LOSSES = pytest.mark.parametrize("loss", ["commit", "answer"])


@LOSSES
@pytest.mark.parametrize("create", [enqueue, start])
async def test_a_rollout_is_made_once_though_its_commit_was_lost(
    postgres: PostgresServer, create: Callable[[PostgresStore], Awaitable[str]], loss: Loss
) -> None:
    async with behind_proxy(postgres) as (proxy, store, beside):
        await store.enqueue_rollout("first")
        proxy.lose = loss
        rollout_id = await create(store)
        assert proxy.lost == 1
        assert [each.input for each in await beside.query_rollouts()] == ["first", "one"]
        assert (await beside.query_rollouts())[1].rollout_id == rollout_id


@LOSSES
async def test_a_claim_is_made_once_though_its_commit_was_lost(postgres: PostgresServer, loss: Loss) -> None:
    async with behind_proxy(postgres) as (proxy, store, beside):
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(5)])
        proxy.lose = loss
        claimed = await store.dequeue_many_rollouts(limit=2, worker_id="w")
        assert proxy.lost == 1
        assert [each.input for each in claimed] == [0, 1]
        for each in claimed:
            assert (await beside.get_latest_attempt(each.rollout_id)) == each.attempt
        statistics = await beside.statistics()
        assert (statistics["queue_length"], statistics["total_attempts"]) == (3, 2)


@LOSSES
async def test_spans_are_stored_once_and_answered_as_stored_though_a_commit_was_lost(
    postgres: PostgresServer, loss: Loss
) -> None:
    async with behind_proxy(postgres) as (proxy, store, beside):
        claimed = await claim_new(store)
        spans = [make_span(claimed, name=f"span {n}") for n in range(50)]
        proxy.lose = loss
        stored = await store.add_many_spans(spans)
        assert proxy.lost == 1
        assert [span.sequence_id for span in stored if span is not None] == list(range(1, 51))
        assert [span.name for span in await beside.query_spans(claimed.rollout_id)] == [span.name for span in spans]


@LOSSES
async def test_resources_get_one_version_though_their_commit_was_lost(postgres: PostgresServer, loss: Loss) -> None:
    async with behind_proxy(postgres) as (proxy, store, beside):
        first = await store.add_resources(LLMS)
        proxy.lose = loss
        updated = await store.update_resources(first.resources_id, LLMS)
        assert proxy.lost == 1
        assert [each.version for each in await beside.query_resources(all_versions=True)] == [1, 2]
        assert updated.version == 2


@LOSSES
async def test_a_rollout_finishes_once_though_its_commit_was_lost(postgres: PostgresServer, loss: Loss) -> None:
    async with behind_proxy(postgres) as (proxy, store, beside):
        claimed = await claim_new(store)
        waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=30))
        await asyncio.sleep(0)
        proxy.lose = loss
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=1.0)
        assert proxy.lost == 1
        finished = await beside.finished_rollouts()
        assert [(each.rollout_id, each.reward) for each in finished.items] == [(claimed.rollout_id, 1.0)]
        assert [each.status for each in await within_patience(waiting)] == ["succeeded"]


async def test_calls_go_on_while_their_connections_are_killed(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    store = PostgresStore(postgres.url(schema), n_connections=4)
    total = 300
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(total)])
    seen: list[int] = []

    async def work(name: str) -> None:
        while claimed := await store.dequeue_rollout(worker_id=name):
            await store.add_span(make_span(claimed))
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
            seen.append(claimed.input)

    async def kill(workers: "asyncio.Future[list[None]]") -> None:
        ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sharpen'"
        killed_at = -1
        while not workers.done():
            if len(seen) > killed_at + 3:  # however slow the machine is, it goes on
                killed_at = len(seen)
                await asyncio.to_thread(postgres.execute, ours)
            await asyncio.sleep(0.05)

    workers = asyncio.gather(*(work(f"w{n}") for n in range(6)))
    await within_patience(asyncio.gather(workers, kill(workers)))
    assert sorted(seen) == list(range(total))
    statistics = await store.statistics()
    assert (statistics["total_attempts"], statistics["total_spans"]) == (total, total)
    assert statistics["rollouts_by_status"]["succeeded"] == total
    await store.close()


async def test_spans_outlast_a_pause_that_the_server_does_not_wait_for(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frozen_once(session: Any, *args: Any) -> None:
        monkeypatch.setattr(PostgresSession, "copy", copy)
        time.sleep(2.0)
        copy(session, *args)

    copy = PostgresSession.copy
    monkeypatch.setattr(postgres_connection, "FROZEN_SECONDS", 1)
    store = PostgresStore(postgres.url(postgres.new_schema()))
    claimed = await claim_new(store)
    monkeypatch.setattr(PostgresSession, "copy", frozen_once)
    assert all(await store.add_many_spans([make_span(claimed) for _ in range(50)]))
    assert (await store.query_spans(claimed.rollout_id)).total == 50
    await store.close()


async def test_a_waiting_runner_gets_work_that_comes_after_the_server_was_restarted() -> None:
    with postgres_server() as server:
        url = server.url(server.new_schema())
        store, other = PostgresStore(url), PostgresStore(url)
        waiting = asyncio.create_task(store.dequeue_rollout(worker_id="w", wait_seconds=PATIENCE_SECONDS))
        await _until_seated(server, url)
        await asyncio.to_thread(server.restart)
        rollout = await other.enqueue_rollout("late")
        claimed = await within_patience(waiting)
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id
        await store.close()
        await other.close()


async def test_acknowledged_work_survives_a_server_that_is_killed() -> None:
    with postgres_server() as server:
        store = PostgresStore(server.url(server.new_schema()), busy_seconds=PATIENCE_SECONDS)
        done: list[str] = []

        async def work() -> None:
            while len(done) < 200:
                claimed = await claim_new_or_none(store)
                if claimed is not None:
                    done.append(claimed)

        working = asyncio.create_task(work())
        while len(done) < 50:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await within_patience(working)
        finished = await store.finished_rollouts(limit=1000)
        assert {each.rollout_id for each in finished.items} >= set(done)
        await store.close()


async def claim_new_or_none(store: PostgresStore) -> str | None:
    rollout = await store.enqueue_rollout("task")
    started = await store.start_attempt(rollout.rollout_id, "w")
    await store.complete_attempt(rollout.rollout_id, started.attempt.attempt_id)
    return rollout.rollout_id


async def test_finished_work_is_kept_while_the_database_is_away_and_written_afterwards(
    postgres: PostgresServer,
) -> None:
    async with behind_proxy(postgres, busy_seconds=0.3) as (proxy, store, beside):
        claimed = await claim_new(store)
        proxy.is_down = True
        proxy.cut()
        with pytest.raises(StoreWriteError):
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=[make_span(claimed)])
        with pytest.raises(StoreWriteError):
            await store.enqueue_rollout("refused")
        with pytest.raises(StoreUnavailableError):
            await store.query_rollouts()
        assert store.kept_bytes > 0
        proxy.is_down = False
        finished = await within_patience(beside.finished_rollouts(wait_seconds=PATIENCE_SECONDS))
        assert [each.rollout_id for each in finished.items] == [claimed.rollout_id]
        assert len(await beside.query_spans(claimed.rollout_id)) == 1
        while store.kept_bytes:
            await asyncio.sleep(0.01)


async def test_a_database_that_cannot_be_reached_is_named_without_its_password(postgres: PostgresServer) -> None:
    url = postgres.url(port=1).replace(postgres.password, "hunter2")
    with raises(StoreUnavailableError, "127.0.0.1:1/postgres") as caught:
        PostgresStore(url)
    assert "hunter2" not in f"{caught.value!r}{caught.value.__cause__!r}{caught.value.__context__!r}"
    wrong = postgres.url().replace(postgres.password, "hunter2")
    with pytest.raises(StoreError) as caught:
        PostgresStore(wrong)
    assert "hunter2" not in f"{caught.value!r}{caught.value.__cause__!r}"


async def _until_seated(server: PostgresServer, url: str) -> None:
    schema = url.rsplit("%3D", 1)[1]
    while not server.execute(f"SELECT 1 FROM {schema}.waiters WHERE seats > 0"):
        await asyncio.sleep(0.01)


async def test_a_rollout_is_made_once_however_much_happened_to_it_before_its_commit_was_asked_for(
    postgres: PostgresServer,
) -> None:
    async with behind_proxy(postgres, n_connections=1, busy_seconds=PATIENCE_SECONDS) as (proxy, store, beside):
        await store.enqueue_rollout("first")
        await beside.dequeue_rollout()
        proxy.lose, proxy.is_down = "answer", True
        enqueued = asyncio.create_task(store.enqueue_rollout("second"))
        claimed = await within_patience(beside.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
        assert claimed is not None
        for n in range(12):
            await beside.add_span(make_span(claimed, name=f"span {n}"))
        proxy.is_down = False
        assert (await within_patience(enqueued)).rollout_id == claimed.rollout_id
        assert [each.input for each in await beside.query_rollouts()] == ["first", "second"]


async def test_kept_work_that_is_refused_later_holds_up_nothing(postgres: PostgresServer) -> None:
    async with behind_proxy(postgres, busy_seconds=0.3) as (proxy, store, beside):
        claimed = await claim_new(store)
        names = claimed.rollout_id, claimed.attempt.attempt_id
        proxy.is_down = True
        proxy.cut()
        for spans in (None, [replace(make_span(claimed), span_id=token_hex(8000))], [make_span(claimed)]):
            with pytest.raises(StoreWriteError):
                await store.complete_attempt(*names, spans=spans)  # type: ignore[arg-type]
        proxy.is_down = False
        assert (await store.enqueue_rollout("next")).status == "queuing"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while store.kept_bytes:  # it may be tried a moment before the connection is there again
                await asyncio.sleep(0.01)
        assert len(await beside.query_spans(claimed.rollout_id)) == 1


async def test_a_store_that_cannot_reach_its_database_tries_no_more_often_when_it_is_rung_for(
    postgres: PostgresServer,
) -> None:
    async with behind_proxy(postgres, busy_seconds=0.3) as (proxy, store, _):
        assert await store.dequeue_rollout(wait_seconds=0.05) is None
        tries, connect = 0, store.listener._address.connect

        def counting(**options: Any) -> Any:
            nonlocal tries
            tries += threading.current_thread().name == "sharpen-postgres-listener"
            return connect(**options)

        store.listener._address.connect = counting  # type: ignore[method-assign]
        proxy.is_down = True
        proxy.cut()
        store.listener._ring()
        await asyncio.sleep(0.5)
        assert tries < 10


async def test_many_calls_end_in_time_though_the_server_leaves_them_without_an_answer(postgres: PostgresServer) -> None:
    async with behind_proxy(postgres, busy_seconds=2, n_connections=2) as (proxy, store, _):
        await store.enqueue_rollout("task")
        proxy.is_mute = True
        proxy.cut()
        calls = [asyncio.create_task(store.enqueue_rollout(n)) for n in range(40)]
        await asyncio.wait(calls, timeout=25)  # one after the other they would take 40 s
        proxy.is_mute = False
        assert [type(call.exception()) for call in calls if call.done()] == [StoreWriteError] * 40
