"""The store in PostgreSQL itself: what it shows, keeps, deletes and leaves behind."""

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator
from secrets import token_hex

import pytest
from msgspec.structs import replace
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

from sharpen.errors import InvalidInputError, StoreError, StoreUnavailableError, StoreWriteError, UnknownIdError
from sharpen.store import PostgresStore
from sharpen.types import EnqueueRolloutRequest
from tests.errors import raises
from tests.store.internals import PostgresSession

from ..processes import eventually
from ..scenes import PATIENCE_SECONDS, claim_new, finish_new, make_span, within_patience
from ..servers import PostgresServer, postgres_server
from ..worlds import Clock

pytestmark = pytest.mark.servers

ODD_TEXTS = ["nul \0 inside", "\0", "é ☃ 😀 \u2028 \x7f", '{"\\": "\'"}', "\\x00", "{a,b}", "%s $1 ?", "\ufeff"]


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(postgres.new_schema()))
    yield opened
    await opened.close()


async def test_its_password_is_shown_nowhere(postgres: PostgresServer, store: PostgresStore) -> None:
    assert (
        postgres.password
        not in f"{store!r}{store.database!r}{store.address()!r}{vars(store)!r}{await store.statistics()}"
    )
    assert repr(store) == f"PostgresStore('127.0.0.1:{postgres.port}/postgres')"


async def test_opening_waits_for_a_server_that_does_not_take_connections_yet() -> None:
    with postgres_server() as server:
        server.settings["wal_level"] = "replica"
        server.restart()
        store = PostgresStore(server.url())
        claimed = await claim_new(store)
        await store.close()
        server.stop()
        # A standby without hot_standby refuses connections as a server that starts does, until it is promoted.
        server.settings["hot_standby"] = "off"
        standby = server.folder / "data" / "standby.signal"
        standby.touch()
        if owner := server.user():
            os.chown(standby, owner["user"], owner["group"])
        starting = asyncio.ensure_future(asyncio.to_thread(server.start))
        address = make_conninfo(server.url())
        await eventually(lambda: PGconn.ping(address.encode()) == Ping.REJECT)
        with pytest.raises(StoreUnavailableError):
            await asyncio.to_thread(PostgresStore, server.url(), busy_seconds=0.3)
        opening = asyncio.ensure_future(asyncio.to_thread(PostgresStore, server.url(), busy_seconds=PATIENCE_SECONDS))
        await asyncio.sleep(0.3)
        assert not opening.done()
        server.promote()
        again = await within_patience(opening)
        assert (await again.get_rollout_by_id(claimed.rollout_id)).status == "preparing"
        await again.close()
        await starting


@pytest.mark.parametrize(
    "url",
    [
        "postgres:/me:hunter2@host/db",
        "mysql://me:hunter2@host/db",
        "postgresql://me:hun%ter2@h",
        "postgresql://me:hun/ter2@localhost:1/db",
        "postgresql://me:hun/ter@2@localhost:1/db",
        "postgresql://me:hun:ter2/@localhost:1/db",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with raises(InvalidInputError, "postgresql://user:password@host:5432/database") as caught:
        PostgresStore(url)
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
async def test_odd_texts_come_back_as_they_were(store: PostgresStore, text: str) -> None:
    claimed = await claim_new(store, {"text": text, text: [text]})
    assert claimed.input == {"text": text, text: [text]}
    for number in (1, 50):  # inserted, and copied
        spans = [
            make_span(claimed, name=text, attributes={"text": text}, span_id=f"{text}{number}{n}", trace_id=text)
            for n in range(number)
        ]
        await store.add_many_spans(spans)
        assert not any(await store.add_many_spans(spans))
    stored = await store.query_spans(claimed.rollout_id, name_contains=text, trace_id=text)
    assert {(span.name, span.trace_id, span.attributes["text"]) for span in stored} == {(text, text, text)}
    assert len(stored) == 51
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, metadata={"text": text})
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt is not None
    assert attempt.metadata == {"text": text}


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800"], ids=ascii)
async def test_what_no_id_can_be_is_found_nowhere(store: PostgresStore, text: str) -> None:
    claimed = await claim_new(store)
    assert await store.get_rollout_by_id(text) is None
    assert await store.get_resources_by_id(text) is None
    assert await store.get_worker_by_id(text) is None
    assert not await store.query_rollouts(rollout_id_in=[text])
    assert not await store.query_rollouts(rollout_id_contains=text)
    assert not await store.query_spans(claimed.rollout_id, span_id=text)
    with pytest.raises(UnknownIdError):
        await store.update_attempt(text, "latest", status="failed")
    with pytest.raises(UnknownIdError):
        await store.cancel_rollouts([claimed.rollout_id, text])
    with pytest.raises(InvalidInputError):
        await store.add_span(make_span(claimed, name="\ud800"))


async def test_pruning_deletes_what_is_old_in_parts(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("store", "tables"):
        monkeypatch.setattr(f"sharpen.store.postgres.{module}.PRUNED_AT_ONCE", 3)
    clock, schema = Clock(), postgres.new_schema()
    store = PostgresStore(postgres.url(schema), clock=clock)
    for _ in range(10):
        claimed = await claim_new(store)
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=[make_span(claimed)])
    clock.advance(100)
    young, waiting = await finish_new(store), await store.enqueue_rollout("waits")
    assert await store.prune(50) == 10
    assert {each.rollout_id for each in await store.query_rollouts()} == {young.rollout_id, waiting.rollout_id}
    assert postgres.execute(f"SELECT count(*) FROM {schema}.spans") == [(0,)]
    assert (await store.statistics())["total_spans"] == 0
    assert [each.rollout_id for each in (await store.finished_rollouts()).items] == [young.rollout_id]
    await store.close()


async def test_a_store_that_is_only_read_sees_what_others_write_and_writes_nothing(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_schema())
    store = PostgresStore(url)
    reading = PostgresStore(url, read_only=True)
    waiting = asyncio.create_task(reading.finished_rollouts(wait_seconds=PATIENCE_SECONDS))
    finished = await finish_new(store)
    assert [each.rollout_id for each in (await within_patience(waiting)).items] == [finished.rollout_id]
    assert (await reading.statistics())["total_rollouts"] == 1
    for call in (reading.enqueue_rollout("no"), reading.dequeue_rollout(), reading.update_worker("w")):
        with pytest.raises(StoreWriteError):
            await call
    await reading.close()
    await store.close()


async def test_closing_leaves_no_thread_and_no_connection(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_schema())
    connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sharpen'"
    before, connected_before = set(threading.enumerate()), postgres.execute(connected)
    store = PostgresStore(url)
    waiting = asyncio.create_task(store.dequeue_rollout(worker_id="w", wait_seconds=PATIENCE_SECONDS))
    await asyncio.gather(*(store.query_rollouts() for _ in range(20)))
    while not store.listener._is_listening.is_set():
        await asyncio.sleep(0.01)
    await store.close()
    with pytest.raises(StoreError):
        await waiting
    with pytest.raises(StoreError):
        await store.enqueue_rollout("late")
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("sharpen-")] == []
    assert [
        thread.name for thread in left if not thread.name.startswith("asyncio_")
    ] == []  # the loop's, for what blocks
    while postgres.execute(connected) > connected_before:
        await asyncio.sleep(0.01)


async def test_a_store_that_nobody_closes_ends_its_threads_with_it(postgres: PostgresServer) -> None:
    before = set(threading.enumerate())
    store = PostgresStore(postgres.url(postgres.new_schema()))
    await asyncio.gather(*(store.enqueue_rollout(n) for n in range(10)))
    assert await store.dequeue_many_rollouts(limit=20, wait_seconds=0.01)
    assert await store.dequeue_rollout(wait_seconds=0.01) is None
    gone = weakref.ref(store)
    del store
    while gone() is not None or [each for each in set(threading.enumerate()) - before if "sharpen" in each.name]:
        gc.collect()
        await asyncio.sleep(0.01)


async def test_what_cannot_be_sent_leaves_no_row_locked(
    postgres: PostgresServer, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(session: object, *args: object) -> None:
        raise RuntimeError("cannot be copied")

    claimed = await claim_new(store)
    monkeypatch.setattr(PostgresSession, "copy", broken)
    with raises(RuntimeError, "cannot be copied"):
        await store.add_many_spans([make_span(claimed) for _ in range(50)])
    held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sharpen' AND state LIKE 'idle in%'"
    assert postgres.execute(held) == [(0,)]
    with pytest.raises(InvalidInputError):
        await store.add_span(make_span(claimed, start_time=10**400))


async def test_whoever_gave_up_claims_nothing(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_schema())
    store = PostgresStore(url, n_connections=1)
    with store.database.connect(lock_seconds=5) as connection:
        connection.execute("BEGIN; LOCK TABLE rollouts IN ACCESS EXCLUSIVE MODE")
        first = asyncio.create_task(store.enqueue_rollout("task"))
        second = asyncio.create_task(store.dequeue_rollout(worker_id="w"))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.wait([second])
        connection.execute("ROLLBACK")
    await within_patience(first)
    assert (await store.statistics())["queue_length"] == 1
    await store.close()


async def test_the_event_loop_goes_on_while_the_database_keeps_a_call_waiting(store: PostgresStore) -> None:
    await store.enqueue_rollout("task")
    with store.database.connect(lock_seconds=5) as connection:
        connection.execute("BEGIN; LOCK TABLE rollouts IN ACCESS EXCLUSIVE MODE")
        call = asyncio.create_task(store.dequeue_rollout())
        began = time.monotonic()
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert time.monotonic() - began < 5
        assert not call.done()
        connection.execute("ROLLBACK")
    assert await within_patience(call) is not None


async def test_a_forked_process_is_told_to_open_its_own(store: PostgresStore) -> None:
    child = os.fork()
    if child == 0:
        try:
            store.expire()
        except StoreError as error:
            os._exit(0 if str(os.getpid()) in str(error) else 1)
        os._exit(2)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (await store.enqueue_rollout("still here")).status == "queuing"


async def test_many_loops_and_threads_share_one_store(store: PostgresStore) -> None:
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(60)])
    claimed: list[int] = []

    async def claim() -> None:
        while found := await store.dequeue_rollout():
            claimed.append(found.input)

    await within_patience(asyncio.gather(*(asyncio.to_thread(asyncio.run, claim()) for _ in range(4))))
    assert sorted(claimed) == list(range(60))


async def test_a_long_group_is_kept_and_found(store: PostgresStore) -> None:
    for group in (long := token_hex(500), long + token_hex(8000), "short"):
        await store.enqueue_rollout("task", metadata={"group": group})
    page = await store.search_rollouts(group=long)
    assert [each.metadata for each in page.items] == [{"group": long}]


async def test_a_span_id_that_is_too_long_is_refused_at_once(store: PostgresStore) -> None:
    claimed = await claim_new(store)
    with pytest.raises(InvalidInputError):
        await within_patience(store.add_span(replace(make_span(claimed), span_id=token_hex(8000))))
    assert store.kept_bytes == 0
