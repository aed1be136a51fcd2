"""The store in Redis: what it keeps through losses of its server, and what it leaves behind."""

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import AsyncIterator

import pytest
import redis as client
from msgspec.structs import replace

from sharpen import RedisLightningStore
from sharpen.errors import (
    InvalidInputError,
    StoreError,
    StoreFileError,
    StoreUnavailableError,
    StoreWriteError,
    UnknownIdError,
)
from sharpen.store import LightningStoreClient, LightningStoreServer
from sharpen.types import EnqueueRolloutRequest, RolloutConfig
from tests.errors import raises
from tests.store.internals import READY_SECONDS, Job, redis_store

from ..processes import eventually
from ..scenes import PATIENCE_SECONDS, claim_new, finish_new, make_span, waiting, within_patience
from ..servers import RedisServer, redis_server

pytestmark = pytest.mark.servers


@pytest.fixture
async def store(redis: RedisServer) -> AsyncIterator[RedisLightningStore]:
    opened = RedisLightningStore(redis.url(), prefix=redis.new_prefix())
    yield opened
    await opened.close()


def keys(redis: RedisServer, store: RedisLightningStore) -> list[str]:
    """The kinds of keys that the store has in Redis."""
    with client.Redis.from_url(redis.url()) as looking:
        return sorted(key.decode().split(":")[1] for key in looking.scan_iter(f"{{{store.prefix}}}:*"))


# -- the server goes -----------------------------------------------------------------------------------


async def test_nothing_that_was_answered_is_lost_when_the_server_is_killed():
    with redis_server() as server:
        store = RedisLightningStore(server.url(), busy_seconds=PATIENCE_SECONDS)
        claimed = await claim_new(store)
        await store.add_span(make_span(claimed))
        waiter = await waiting(store, store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
        server.kill()
        completing = asyncio.create_task(store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id))
        await asyncio.to_thread(server.start)
        assert (await completing).status == "succeeded"
        (finished,) = await within_patience(waiter)
        assert finished.status == "succeeded"
        assert len(await store.query_spans(claimed.rollout_id)) == 1
        await store.close()


async def test_a_worker_that_waited_through_a_restart_gets_its_work():
    with redis_server() as server:
        store = RedisLightningStore(server.url())
        worker = await waiting(store, store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
        await asyncio.to_thread(server.restart)
        rollout = await store.enqueue_rollout("task")
        claimed = await within_patience(worker)
        assert claimed.rollout_id == rollout.rollout_id
        await store.close()


async def test_finished_work_is_kept_while_the_server_is_away_and_written_when_it_is_back():
    with redis_server() as server:
        store = RedisLightningStore(server.url(), busy_seconds=0.2)
        claimed = await claim_new(store)
        server.kill()
        with pytest.raises(StoreWriteError):
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=[make_span(claimed)])
        assert store.kept_bytes > 0
        with pytest.raises(StoreWriteError):
            await store.enqueue_rollout("not kept: its caller tries again")
        with pytest.raises(StoreUnavailableError):
            await store.get_rollout_by_id(claimed.rollout_id)
        await asyncio.to_thread(server.start)
        await eventually(lambda: store.kept_bytes == 0)
        (kept,) = await store.query_rollouts()
        assert kept.status == "succeeded"
        await store.close()


async def test_a_server_that_comes_back_empty_is_an_error_for_all_who_wait():
    with redis_server(appendonly=False) as server:
        store = RedisLightningStore(server.url())
        queued = await store.enqueue_rollout("task")
        served = LightningStoreServer(store)
        await served.start()
        remote = LightningStoreClient(served.endpoint)
        waits = [
            asyncio.ensure_future(each.wait_for_rollouts(rollout_ids=[queued.rollout_id])) for each in (store, remote)
        ]
        await asyncio.sleep(0.1)
        server.kill()
        await asyncio.to_thread(server.start)
        for each in waits:
            with pytest.raises((StoreFileError, UnknownIdError)):
                await within_patience(each)
        with pytest.raises(StoreFileError):
            await within_patience(refused(store))
        await remote.close()
        await served.close()
        again = RedisLightningStore(server.url())  # a new store can be opened there
        assert await again.get_rollout_by_id(queued.rollout_id) is None
        await again.close()


async def refused(store):
    """Enqueue until that is refused: the loss is noticed within a second."""
    while True:
        await store.enqueue_rollout("task")
        await asyncio.sleep(0.05)


async def test_opening_waits_for_a_server_that_loads_its_log():
    with redis_server() as server:
        store = RedisLightningStore(server.url())
        claimed = await claim_new(store)
        await store.close()
        with client.Redis.from_url(server.url()) as filling:
            filling.mset({f"other-{number}": number for number in range(1000)})
            filling.bgrewriteaof()  # one entry a key, each of which takes its time below
            await eventually(lambda: filling.info("persistence")["aof_rewrite_in_progress"] == 0)
        server.stop()
        server.settings = {**server.settings, "key-load-delay": "2000", "loading-process-events-interval-bytes": "1024"}
        starting = asyncio.ensure_future(asyncio.to_thread(server.start))
        await eventually(lambda: is_loading(server))
        again = await asyncio.to_thread(RedisLightningStore, server.url())
        assert (await again.get_rollout_by_id(claimed.rollout_id)).status == "preparing"
        await again.close()
        await starting


def is_loading(server):
    try:
        with client.Redis.from_url(server.url()) as looking:
            return looking.info("persistence")["loading"] == 1
    except client.RedisError:
        return False


async def test_a_full_server_refuses_new_work_and_gets_finished_work_later():
    with redis_server() as server, client.Redis.from_url(server.url()) as settings:
        store = RedisLightningStore(server.url())
        claimed = await claim_new(store)
        settings.config_set("maxmemory", settings.info("memory")["used_memory"] - 1000)
        with raises(StoreWriteError, "memory"):
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
        assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "preparing"
        settings.config_set("maxmemory", 0)
        (finished,) = await store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=PATIENCE_SECONDS)
        assert finished.status == "succeeded"
        await store.close()


async def test_scripts_that_the_server_has_forgotten_are_sent_again(redis, store):
    with client.Redis.from_url(redis.url()) as looking:
        looking.script_flush()
    claimed = await finish_new(store)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "succeeded"


# -- what it keeps -------------------------------------------------------------------------------------


async def test_a_large_task_is_kept_once_for_all_rollouts_that_have_it(redis, store):
    task = {"question": "why? " * 1000}
    requests = [EnqueueRolloutRequest(task) for _ in range(8)]
    rollouts = await store.enqueue_many_rollouts(requests)
    assert keys(redis, store).count("body") == 1
    assert [each.input for each in await store.query_rollouts()] == [task] * 8
    await store.update_rollout(rollouts[0].rollout_id, input={"question": "how? " * 1000})
    assert keys(redis, store).count("body") == 2
    await store.update_rollout(rollouts[0].rollout_id, input="short")
    assert keys(redis, store).count("body") == 1
    other = RedisLightningStore(redis.url(), prefix=store.prefix)  # which has not seen it yet
    assert (await other.dequeue_many_rollouts(limit=2))[1].input == task
    await other.close()


async def test_pruning_leaves_nothing_of_what_it_deletes(redis, store):
    await store.enqueue_rollout("before")
    first = await store.dequeue_rollout(worker_id="w", request_id="rq-1")
    empty = keys(redis, store)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest({"long": "x" * 2000}) for _ in range(130)])
    claims = await store.dequeue_many_rollouts(limit=130, worker_id="w", request_id="rq-2")
    for claimed in claims[:120]:
        spans = [make_span(claimed), make_span(claimed)]
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=spans, reward=1.0)
    await store.cancel_rollouts([claimed.rollout_id for claimed in claims[120:]])
    assert await store.prune(older_than=3600) == 0
    assert await store.prune(older_than=0) == 130
    assert keys(redis, store) == empty
    assert await store.prune(older_than=0) == 0
    counts = await store.statistics()
    assert (counts["total_rollouts"], counts["total_attempts"], counts["total_spans"]) == (1, 1, 0)
    assert (await store.dequeue_many_rollouts(request_id="rq-1"))[0].attempt == first.attempt


async def test_pruning_looks_at_the_claims_of_a_request_once_in_a_step(redis, store):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(300)])
    claims = await store.dequeue_many_rollouts(limit=300, request_id="rq-1")
    await store.cancel_rollouts([claimed.rollout_id for claimed in claims])
    with client.Redis.from_url(redis.url()) as looking:
        before = looking.info("commandstats")["cmdstat_exists"]["calls"]
        assert await store.prune(older_than=0) == 300
        assert looking.info("commandstats")["cmdstat_exists"]["calls"] - before < 10 * 300
        assert looking.hlen(f"{{{store.prefix}}}:requests") == 0


async def test_a_late_span_of_a_pruned_rollout_is_refused(store):
    claimed = await finish_new(store)
    await store.prune(older_than=0)
    with pytest.raises(ValueError):
        await store.add_span(make_span(claimed))


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800"], ids=ascii)
async def test_what_no_id_can_be_is_found_nowhere(store, text):
    claimed = await claim_new(store)
    assert await store.get_rollout_by_id(text) is None
    assert await store.get_latest_attempt(text) is None
    assert await store.get_resources_by_id(text) is None
    assert await store.get_worker_by_id(text) is None
    assert not await store.query_rollouts(rollout_id_in=[text])
    assert not await store.query_rollouts(rollout_id_contains=text)
    assert not await store.query_spans(claimed.rollout_id, span_id=text)
    for call in (
        store.update_attempt(text, "latest", status="failed"),
        store.update_attempt(claimed.rollout_id, text, status="failed"),
        store.cancel_rollouts([claimed.rollout_id, text]),
        store.wait_for_rollouts(rollout_ids=[text], timeout=0),
        store.enqueue_rollout("task", resources_id=text),
        store.get_many_span_sequence_ids([(text, "latest")]),
        store.add_span(replace(make_span(claimed), rollout_id=text)),
        store.add_span(replace(make_span(claimed), attempt_id=text)),
    ):
        with pytest.raises(UnknownIdError):
            await call
    for call in (
        store.update_worker(text),
        store.dequeue_rollout(request_id=text),
        store.start_attempt(claimed.rollout_id, request_id=text),
        store.enqueue_many_rollouts([EnqueueRolloutRequest("task", rollout_id=text)]),
    ):
        with pytest.raises(InvalidInputError):
            await call


async def test_a_span_that_cannot_be_written_is_refused_in_words(store):
    claimed = await claim_new(store)
    for spans in ([], [make_span(claimed)]):  # before and after the first one of the rollout
        await store.add_many_spans(spans)
        for field in ("name", "span_id"):
            with pytest.raises(InvalidInputError):
                await store.add_span(make_span(claimed, **{field: "\ud800"}))
    assert len(await store.query_spans(claimed.rollout_id)) == 1


class Name(str):
    """A text of a type of its own, as an enumeration or an array has them: no change can be packed with it."""

    __slots__ = ()


async def test_a_broken_request_fails_alone(store):
    claimed, first = await claim_new(store), await store.enqueue_rollout("first")
    broken = [
        Job("update_attempt", ("\ud800", "latest"), {"status": "failed"}),
        Job("add_many_spans", ([make_span(claimed, span_id="\ud800")],), {}),
        Job("update_worker", ("\ud800",), {}),
        Job("dequeue_many_rollouts", (), {"request_id": "\ud800"}),
    ]
    packed_too_late = Job("enqueue_many_rollouts", ([EnqueueRolloutRequest("task", rollout_id=Name("ro-1"))],), {})
    for jobs in (broken, [packed_too_late]):
        before, after = (Job("enqueue_many_rollouts", ([EnqueueRolloutRequest(n)],), {}) for n in range(2))
        claim = Job("dequeue_many_rollouts", (), {})
        store._commit([before, *jobs, claim, after])  # as one change
        assert [type(job.error) for job in (before, claim, after)] == [type(None)] * 3
        assert [each.rollout_id for each in claim.answer()] == [first.rollout_id]
        assert all(isinstance(job.error, TypeError | ValueError) for job in jobs)
        first = before.answer()[0]
    assert (await store.statistics())["total_rollouts"] == 6


# -- how it is used ------------------------------------------------------------------------------------


async def test_an_unsafe_store_keeps_the_contract_in_its_own_thread(redis):
    store = RedisLightningStore(redis.url(), prefix=redis.new_prefix(), thread_safe=False)
    assert store.capabilities["thread_safe"] is False
    worker = await waiting(store, store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
    rollout = await store.enqueue_rollout("task", config=RolloutConfig(timeout_seconds=0.2))
    claimed = await within_patience(worker)
    assert claimed.rollout_id == rollout.rollout_id
    (finished,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=PATIENCE_SECONDS)
    assert finished.status == "failed"
    await store.close()


async def test_a_store_that_nobody_closes_ends_its_threads_with_it(redis):
    before = set(threading.enumerate())
    store = RedisLightningStore(redis.url(), prefix=redis.new_prefix())
    await store.enqueue_rollout("task")
    assert await store.dequeue_rollout(wait_seconds=0.01) is not None
    assert await store.dequeue_rollout(wait_seconds=0.01) is None
    gone = weakref.ref(store)
    del store
    gc.collect()
    await eventually(lambda: gone() is None)
    await eventually(lambda: not [each for each in set(threading.enumerate()) - before if "sharpen" in each.name])


async def test_a_forked_process_is_told_to_open_its_own(store):
    await store.enqueue_rollout("here")
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


async def test_a_write_while_the_store_closes_is_refused_and_does_not_hang(redis):
    store = RedisLightningStore(redis.url(), prefix=redis.new_prefix())
    await store.enqueue_rollout("before")
    store._writer.stop()  # the first step of closing
    with pytest.raises(StoreError):
        await within_patience(store.enqueue_rollout("too late"))
    await store.close()


def warned_of(value, caplog):
    return any(each.levelname == "WARNING" and value in each.getMessage() for each in caplog.records)


async def test_a_foreign_message_does_not_end_the_hearing_of_finished_rollouts(redis, store, caplog):
    claimed = await claim_new(store)
    waiter = await waiting(store, store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
    with client.Redis.from_url(redis.url()) as stranger:
        await eventually(lambda: stranger.publish(f"{{{store.prefix}}}:finished", "not ours") == 1)
    await eventually(lambda: warned_of(f"{{{store.prefix}}}:finished", caplog))
    assert any(thread.name == "sharpen-redis-listener" for thread in threading.enumerate())
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    assert (await within_patience(waiter))[0].status == "succeeded"


async def test_where_nothing_can_be_heard_writes_are_fast_and_waits_end(caplog):
    """A right that is taken away while the store is open."""
    with redis_server() as server, client.Redis.from_url(server.url()) as admin:
        admin.execute_command("ACL", "SETUSER", "deaf", "on", ">pass", "+@all", "~*", "&*")
        store = RedisLightningStore(f"redis://deaf:pass@127.0.0.1:{server.port}/0")
        admin.execute_command("ACL", "SETUSER", "deaf", "-subscribe")
        worker = asyncio.ensure_future(store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))
        await eventually(lambda: warned_of("subscribe", caplog))
        began = time.monotonic()
        for _ in range(15):
            await store.update_worker("w")
        assert time.monotonic() - began < 15 * READY_SECONDS / 2
        rollout = await store.enqueue_rollout("task")
        assert (await within_patience(worker)).rollout_id == rollout.rollout_id
        await store.close()


async def test_what_was_written_is_answered_though_a_claim_beside_it_fails(monkeypatch):
    monkeypatch.setattr(redis_store, "HELD_SECONDS", 5.0)  # enough for a second try on a busy machine
    calls = 0
    with redis_server() as server:

        def clock() -> float:
            nonlocal calls
            calls += threading.get_ident() == writing
            if calls == 3:  # the heartbeat and the claim took one each; now the claim is tried again
                os.kill(server.pid, signal.SIGKILL)
            return time.time()

        writing = -1
        store = RedisLightningStore(server.url(), clock=clock, busy_seconds=0.2)
        rollout = await store.enqueue_rollout("held by somebody else")
        with client.Redis.from_url(server.url()) as somebody:
            somebody.hset("{sharpen}:held", rollout.rollout_id, int(time.time() * 1000) + 60_000)
        heartbeat, claim = Job("update_worker", ("w",), {}), Job("dequeue_many_rollouts", (), {})
        writing = threading.get_ident()
        store._commit([heartbeat, claim])
        assert heartbeat.answer().worker_id == "w"
        with pytest.raises(StoreWriteError):
            claim.answer()
        await store.close()
