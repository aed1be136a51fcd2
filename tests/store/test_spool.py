"""A client whose server goes away: it tries again, keeps finished work on disk, and never does a thing twice."""

import asyncio
import json
import os
import re
import signal
import stat
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sharpen.errors import StoreUnavailableError, UnknownIdError
from sharpen.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer, SQLiteStore
from sharpen.types import EnqueueRolloutRequest, PromptTemplate
from tests.errors import raises
from tests.store.internals import Entry, Spool, default_folder

from .cutting_proxy import cutting_proxy
from .disks import small_disk
from .processes import child, eventually, free_port, server_process
from .scenes import claim_new, make_span, within_patience

CHILD = Path(__file__).with_name("spool_child.py")
RESOURCES = {"prompt": PromptTemplate("{x}", "f-string")}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where spools lie; it does not exist yet."""
    folder = tmp_path / "state" / "spool"
    monkeypatch.setenv("SHARPEN_SPOOL", str(folder))
    return folder


class Away:
    """A store with a server that can go away and come back at the same address."""

    def __init__(self, store):
        self.store = store
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = None

    async def come(self, store=None):
        self._server = LightningStoreServer(store or self.store, port=self.port)
        await self._server.start()

    async def go(self):
        if self._server is not None:
            await self._server.stop()
            self._server = None


@pytest.fixture
async def server(tmp_path):
    store = SQLiteStore(tmp_path / "store.db")
    server = Away(store)
    await server.come()
    yield server
    await server.go()
    await store.close()


@asynccontextmanager
async def connected(url, **options):
    client = LightningStoreClient(url, **{"retry_seconds": 0.5, "spool_after_seconds": 0.1, **options})
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(server):
    async with connected(server.url) as client:
        yield client


def files(folder, suffix=".spool"):
    return sorted(folder.glob(f"*{suffix}")) if folder.exists() else []


def ids_of(claimed):
    return claimed.rollout_id, claimed.attempt.attempt_id


async def status(server, claimed):
    return (await server.store.get_rollout_by_id(claimed.rollout_id)).status


# -- the server goes and comes back ------------------------------------------------------------------


async def test_a_call_is_repeated_until_the_server_is_back(tmp_path):
    with server_process(tmp_path / "store.db") as server:
        await server.start()
        async with connected(server.url, retry_seconds=60) as client:
            first = await client.enqueue_rollout("before")
            server.kill()
            calls = [
                client.enqueue_rollout("during"),
                client.add_resources(RESOURCES),
                client.query_rollouts(rollout_id_in=[first.rollout_id]),
                client.dequeue_rollout(wait_seconds=30),
            ]
            answers = [asyncio.ensure_future(call) for call in calls]
            await server.start()
            during, update, found, claimed = await within_patience(asyncio.gather(*answers))
            assert (during.input, update.version) == ("during", 1)
            assert [each.rollout_id for each in found] == [first.rollout_id]
            assert claimed.rollout_id == first.rollout_id
            assert (await client.statistics())["total_rollouts"] == 2
            assert await server.stop() == 0


async def test_waits_survive_a_server_that_is_killed(tmp_path):
    with server_process(tmp_path / "store.db") as server:
        await server.start()
        async with connected(server.url, retry_seconds=60) as client:
            claimed = await claim_new(client)
            wait = asyncio.ensure_future(client.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
            cursor = asyncio.ensure_future(client.finished_rollouts(wait_seconds=60))
            work = asyncio.ensure_future(client.dequeue_rollout(wait_seconds=60))
            await client.statistics()
            server.kill()
            await server.start()
            await client.complete_attempt(*ids_of(claimed), reward=1.0)
            (finished,) = await within_patience(wait)
            assert (finished.status, finished.reward) == ("succeeded", 1.0)
            assert [each.rollout_id for each in (await within_patience(cursor)).items] == [claimed.rollout_id]
            enqueued = await client.enqueue_rollout("more")
            assert (await within_patience(work)).rollout_id == enqueued.rollout_id


async def test_a_call_gives_up_in_time_and_names_the_last_error(server, client):
    await server.go()
    for call in (client.enqueue_rollout("task"), client.statistics(), client.dequeue_rollout(wait_seconds=10)):
        began = time.monotonic()
        with raises(StoreUnavailableError, server.url, 0.5) as error:
            await within_patience(call)
        assert isinstance(error.value, ConnectionError)
        assert time.monotonic() - began >= 0.5
    assert client.spooled == 0


async def test_a_call_that_does_not_wait_any_more_names_no_time(server, client):
    await server.go()
    client.stop_waiting()
    with pytest.raises(StoreUnavailableError) as error:
        await within_patience(client.statistics())
    assert "0.5 s" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "count"), [("http://store.example:4747", 1), ("https://store.example", 0), ("http://127.0.0.1:4747", 0)]
)
def test_a_token_of_the_environment_that_others_could_read_is_warned_of_once(url, count, monkeypatch, caplog):
    monkeypatch.setenv("SHARPEN_TOKEN", "s3cret")
    for _ in range(2):
        LightningStoreClient(url)
    told = [each.getMessage() for each in caplog.records if "SHARPEN_TOKEN" in each.getMessage()]
    assert len(told) == count
    assert not any("s3cret" in each for each in told)


async def test_a_server_that_does_not_answer_in_time_is_away(folder):
    """It takes the connection and says nothing."""
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with connected(f"http://127.0.0.1:{port}", request_seconds=0.2) as client:
        with raises(StoreUnavailableError, "TimeoutError"):
            await within_patience(client.statistics())
    silent.close()


async def test_an_answer_that_is_no_answer_is_no_success(folder):
    async def talk_nonsense(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>")
        writer.close()

    gateway = await asyncio.start_server(talk_nonsense, "127.0.0.1", 0)
    port = gateway.sockets[0].getsockname()[1]
    async with connected(f"http://127.0.0.1:{port}") as client:
        with raises(StoreUnavailableError, 502):
            await within_patience(client.statistics())
    gateway.close()


# -- finished work is kept ---------------------------------------------------------------------------


async def test_finished_work_is_kept_on_disk_while_the_server_is_away(server, client, folder):
    spans, outcome, update = [await claim_new(client) for _ in range(3)]
    assert not folder.exists()
    await server.go()
    assert [span.name for span in await client.add_many_spans([make_span(spans, name="n")] * 2)] == ["n", "n"]
    assert (await client.complete_attempt(*ids_of(outcome), reward=0.5)).status == "succeeded"
    assert (await client.update_attempt(*ids_of(update), status="failed")).status == "failed"
    assert client.spooled == 3
    (file,) = files(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(file.read_bytes().splitlines()) == 3
    await server.come()
    await eventually(lambda: client.spooled == 0)
    assert files(folder) == []
    assert [await status(server, each) for each in (spans, outcome, update)] == ["running", "succeeded", "failed"]
    assert len(await server.store.query_spans(spans.rollout_id)) == 1


async def test_only_finished_work_is_kept(server, client, folder):
    claimed = await claim_new(client)
    await server.go()
    with pytest.raises(StoreUnavailableError):
        await client.update_attempt(*ids_of(claimed), status="running")
    with pytest.raises(StoreUnavailableError):
        await client.update_worker("w-1")
    assert client.spooled == 0
    assert not folder.exists()


async def test_work_is_replayed_in_the_order_in_which_it_was_done(server, client):
    claimed = await claim_new(client)
    await server.go()
    for number in range(20):
        await client.add_span(make_span(claimed, name=f"span-{number}"))
    await client.complete_attempt(*ids_of(claimed))
    await server.come()
    await eventually(lambda: client.spooled == 0)
    # The store numbers spans as they come.
    names = [span.name for span in await server.store.query_spans(claimed.rollout_id)]
    assert names == [f"span-{number}" for number in range(20)]
    assert await status(server, claimed) == "succeeded"


async def test_work_that_is_done_during_the_replay_comes_after_it(server, client):
    claimed = await claim_new(client)
    await server.go()
    for number in range(100):
        await client.add_span(make_span(claimed, name=f"span-{number}"))
    await server.come()
    for number in range(100, 200):
        await client.add_span(make_span(claimed, name=f"span-{number}"))
    await eventually(lambda: client.spooled == 0)
    await client.add_span(make_span(claimed, name="span-200"))
    names = [span.name for span in await server.store.query_spans(claimed.rollout_id)]
    assert names == [f"span-{number}" for number in range(201)]


async def send_spans(client, claimed, *, size_bytes):
    """More spans than there is room for, one by one."""
    for number in range(100):
        await client.add_span(make_span(claimed, name=f"span-{number}", attributes={"text": "x" * size_bytes}))


async def test_a_full_spool_is_a_clear_error_and_keeps_what_it_has(server, folder):
    async with connected(server.url, max_spool_bytes=4000) as client:
        claimed = await claim_new(client)
        await server.go()
        with pytest.raises(StoreUnavailableError):
            await send_spans(client, claimed, size_bytes=500)
        kept = client.spooled
        assert kept > 0
        (file,) = files(folder)
        assert file.stat().st_size <= 4000
        await server.come()
        await eventually(lambda: client.spooled == 0)
        assert len(await server.store.query_spans(claimed.rollout_id)) == kept
        await client.complete_attempt(*ids_of(claimed))
        assert await status(server, claimed) == "succeeded"


async def test_a_full_disk_is_a_clear_error_and_keeps_what_was_acknowledged(server, folder):
    folder.mkdir(parents=True)
    with small_disk(folder, 64 * 1024) as grow:
        async with connected(server.url) as client:
            claimed = await claim_new(client)
            await server.go()
            with pytest.raises(StoreUnavailableError):
                await send_spans(client, claimed, size_bytes=5000)
            kept = client.spooled
            assert kept > 0
            grow(2**20)
            await client.complete_attempt(*ids_of(claimed))
            await server.come()
            await eventually(lambda: client.spooled == 0)
        names = [span.name for span in await server.store.query_spans(claimed.rollout_id)]
        assert names == [f"span-{number}" for number in range(kept)]
        assert await status(server, claimed) == "succeeded"
        assert files(folder, "rejected") == []


async def test_closing_delivers_what_it_can(server, folder):
    async with connected(server.url) as client:
        claimed = await claim_new(client)
        await server.go()
        await client.complete_attempt(*ids_of(claimed))
        await server.come()
    assert await status(server, claimed) == "succeeded"
    assert files(folder) == []


async def test_closing_while_the_server_is_away_leaves_the_work_for_the_next_worker(server, folder):
    async with connected(server.url) as client:
        claimed = await claim_new(client)
        await server.go()
        await client.complete_attempt(*ids_of(claimed))
    assert len(files(folder)) == 1
    await server.come()
    async with connected(server.url) as client:
        await client.statistics()
        await eventually(lambda: client.spooled == 0)
    assert await status(server, claimed) == "succeeded"
    assert files(folder) == []


async def test_a_client_that_is_used_from_several_threads_delivers_all_their_work(server):
    client = LightningStoreClient(server.url, retry_seconds=0.5, spool_after_seconds=0.1)
    claims = [await claim_new(client) for _ in range(6)]
    await server.go()

    def finish(claimed):
        asyncio.run(complete(claimed))

    async def complete(claimed):
        await client.complete_attempt(*ids_of(claimed))

    threads = [threading.Thread(target=finish, args=(claimed,)) for claimed in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert client.spooled == 6
    await server.come()
    await client.statistics()
    await eventually(lambda: client.spooled == 0)
    assert [await status(server, claimed) for claimed in claims] == ["succeeded"] * 6
    await client.close()


async def test_a_client_is_closed_while_another_thread_waits_for_the_server(server, folder):
    client = LightningStoreClient(server.url, retry_seconds=0.5, spool_after_seconds=0.1)
    claimed = await claim_new(client)
    await server.go()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        work = asyncio.run_coroutine_threadsafe(client.complete_attempt(*ids_of(claimed)), loop)
        await asyncio.wrap_future(work)
        await within_patience(client.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()
    assert len(files(folder)) == 1
    (leftover,) = Spool.adopt_leftovers(folder, {server.store.store_id})
    leftover.close()


# -- what the store will not take --------------------------------------------------------------------


async def test_work_that_the_store_refuses_is_set_aside_and_blocks_nothing(server, client, folder):
    first, last = await claim_new(client), await claim_new(client)
    await server.go()
    await client.complete_attempt(*ids_of(first))
    await client.complete_attempt("ro-nope", "at-nope", reward=0.25)
    await client.complete_attempt(*ids_of(last))
    await server.come()
    await eventually(lambda: client.spooled == 0)
    assert [await status(server, each) for each in (first, last)] == ["succeeded", "succeeded"]
    assert files(folder) == []
    (aside,) = files(folder, ".rejected")
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    refused = json.loads(aside.read_text())
    assert "'ro-nope'" in refused["reason"]
    assert json.loads(refused["entry"]["body"])["reward"] == 0.25
    assert "ro-nope/attempts/at-nope" in refused["entry"]["path"]


async def test_work_that_is_refused_at_once_is_the_callers_error(client):
    with raises(UnknownIdError, "ro-nope"):
        await client.complete_attempt("ro-nope", "at-nope")
    assert client.spooled == 0


async def test_work_is_not_given_up_for_a_wrong_token(folder):
    """That is a matter of configuration: the store has not refused the work itself."""
    store, port = InMemoryLightningStore(), free_port()
    server = LightningStoreServer(store, port=port, token="first")
    await server.start()
    async with connected(server.endpoint, token="first") as client:
        claimed = await claim_new(client)
        await server.stop()
        await client.complete_attempt(*ids_of(claimed))
        server = LightningStoreServer(store, port=port, token="second")
        await server.start()
    assert (len(files(folder)), files(folder, ".rejected")) == (1, [])
    async with connected(server.endpoint, token="second") as client:
        await client.statistics()
        await eventually(lambda: client.spooled == 0)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "succeeded"
    await server.close()


# -- what dead workers left --------------------------------------------------------------------------


@asynccontextmanager
async def worker_with_spooled_work(server):
    """A worker process that has finished a rollout while the server was away; the rollout's id."""
    await server.store.enqueue_rollout("task")
    with child(CHILD, server.url) as worker:
        rollout_id = await worker.hear()
        await server.go()
        worker.tell("finish")
        assert await worker.hear() == "4"
        yield worker, rollout_id


async def finished(server, rollout_id):
    rollout = await server.store.get_rollout_by_id(rollout_id)
    spans = await server.store.query_spans(rollout_id)
    return rollout.status, rollout.reward, [span.name for span in spans]


FINISHED = ("succeeded", 0.5, ["span-0", "span-1", "span-2"])


async def test_the_work_of_a_killed_worker_is_delivered_by_the_next_one(server, folder):
    async with worker_with_spooled_work(server) as (worker, rollout_id):
        worker.kill()
    assert len(files(folder)) == 1
    await server.come()
    async with connected(server.url) as client:
        await client.statistics()
        await eventually(lambda: client.spooled == 0)
        assert files(folder) == []
    assert await finished(server, rollout_id) == FINISHED


async def test_the_work_of_a_killed_worker_is_delivered_by_one_of_many(server, folder):
    async with worker_with_spooled_work(server) as (worker, rollout_id):
        worker.kill()
    await server.come()
    clients = [LightningStoreClient(server.url) for _ in range(8)]
    await asyncio.gather(*(client.statistics() for client in clients))
    await eventually(lambda: not files(folder))
    assert await finished(server, rollout_id) == FINISHED
    for client in clients:
        await client.close()


async def test_the_work_of_a_living_worker_is_left_to_it(server, folder):
    async with worker_with_spooled_work(server) as (worker, rollout_id):
        worker.send(signal.SIGSTOP)
        await server.come()
        async with connected(server.url) as client:
            await client.statistics()
            assert client.spooled == 0
        assert len(files(folder)) == 1
        assert (await server.store.get_rollout_by_id(rollout_id)).status == "preparing"
        worker.send(signal.SIGCONT)
        await eventually(lambda: not files(folder))
        assert await finished(server, rollout_id) == FINISHED
        worker.tell("close")
        assert worker.wait() == 0


async def test_a_line_that_a_crash_cut_short_is_left_out(server, folder):
    async with worker_with_spooled_work(server) as (worker, rollout_id):
        worker.kill()
    (file,) = files(folder)
    with file.open("ab") as spool:
        spool.write(b'{"verb":"POST","path":"/v1/roll')
    await server.come()
    async with connected(server.url) as client:
        await client.statistics()
        await eventually(lambda: client.spooled == 0)
    assert await finished(server, rollout_id) == FINISHED
    assert files(folder) == files(folder, ".rejected") == []


async def test_a_line_that_cannot_be_read_is_set_aside_and_blocks_nothing(server, folder):
    async with worker_with_spooled_work(server) as (worker, rollout_id):
        worker.kill()
    (file,) = files(folder)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], b"\x00\xff garbage\n", b"{}\n", *lines[2:]]))
    await server.come()
    async with connected(server.url) as client:
        await client.statistics()
        await eventually(lambda: client.spooled == 0)
    assert await finished(server, rollout_id) == FINISHED
    assert files(folder) == []
    (aside,) = files(folder, ".rejected")
    assert len(aside.read_bytes().splitlines()) == 2


async def test_an_empty_leftover_goes_away(server, folder):
    folder.mkdir(parents=True)
    (folder / f"{server.store.store_id}.sp-1.spool").touch()
    async with connected(server.url) as client:
        await client.statistics()
        assert client.spooled == 0
    assert files(folder) == []


def test_a_spool_that_is_just_being_made_is_not_taken_for_a_leftover(tmp_path):
    """Workers that start make spools and look for leftovers at the same time, and no work falls between them."""
    stop, taken = threading.Event(), []

    def adopt():
        while not stop.is_set():
            for spool in Spool.adopt_leftovers(tmp_path, {"st-1"}):
                taken.extend(entry.body for entry in spool.entries())
                spool.drop_sent(spool.count)

    adopter = threading.Thread(target=adopt)
    adopter.start()
    for number in range(300):
        spool = Spool(tmp_path, "st-1")
        spool.append(Entry("POST", "/", str(number)))
        spool.close()
    stop.set()
    adopter.join()
    for spool in Spool.adopt_leftovers(tmp_path, {"st-1"}):
        taken.extend(entry.body for entry in spool.entries())
        spool.close()
    assert sorted(taken, key=int) == [str(number) for number in range(300)]


# -- another store at the same address ---------------------------------------------------------------


@pytest.fixture
async def stranger(tmp_path):
    store = SQLiteStore(tmp_path / "stranger.db")
    yield store
    await store.close()


async def test_work_is_never_sent_to_another_store(server, stranger, folder):
    async with connected(server.url) as client:
        claimed = await claim_new(client)
        await server.go()
        await client.complete_attempt(*ids_of(claimed))
        await server.come(stranger)
        assert (await client.statistics())["total_rollouts"] == 0
    assert len(files(folder)) == 1
    assert files(folder, ".rejected") == []
    async with connected(server.url) as another:
        await another.statistics()
        assert another.spooled == 0
    assert len(files(folder)) == 1
    await server.go()
    await server.come()
    async with connected(server.url) as client:
        await client.statistics()
        await eventually(lambda: client.spooled == 0)
    assert await status(server, claimed) == "succeeded"


async def test_work_for_two_stores_at_one_address_waits_for_each_of_them(server, stranger, folder):
    async with connected(server.url) as client:
        claimed = await claim_new(client)
        await server.go()
        await client.complete_attempt(*ids_of(claimed))
        await server.come(stranger)
        other = await claim_new(client)
        await server.go()
        await client.complete_attempt(*ids_of(other))
        assert client.spooled == len(files(folder)) == 2
        await server.come()
        await eventually(lambda: client.spooled == 1)
        await server.go()
        await server.come(stranger)
        await eventually(lambda: client.spooled == 0)
        assert (await client.get_rollout_by_id(other.rollout_id)).status == "succeeded"
    assert await status(server, claimed) == "succeeded"
    assert files(folder, ".rejected") == []


async def test_work_follows_its_store_to_another_address(server, folder):
    async with connected(server.url) as client:
        claimed = await claim_new(client)
        await server.go()
        await client.complete_attempt(*ids_of(claimed))
    moved = Away(server.store)
    await moved.come()
    async with connected(moved.url) as client:
        await client.statistics()
        await eventually(lambda: client.spooled == 0)
    assert await status(server, claimed) == "succeeded"
    await moved.go()


# -- answers that are lost ---------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
async def inner(request, tmp_path):
    store = InMemoryLightningStore() if request.param == "memory" else SQLiteStore(tmp_path / "inner.db")
    yield store
    await store.close()


@pytest.fixture(params=[0, 30], ids=["no answer", "part of an answer"])
async def proxied(request, inner):
    """A client behind a proxy that loses answers."""
    server = LightningStoreServer(inner)
    await server.start()
    async with (
        cutting_proxy(server.endpoint) as proxy,
        connected(proxy.url, retry_seconds=60, spool_after_seconds=60) as client,
    ):
        proxy.bytes_before_cut = request.param
        yield proxy, client
    await server.stop()


def times_sent(proxy, pattern):
    return sum(re.search(pattern, line) is not None for line in proxy.seen)


async def test_a_claim_whose_answer_was_lost_is_given_again(proxied, inner):
    proxy, client = proxied
    for task in ("first", "second"):
        await inner.enqueue_rollout(task)
    proxy.cut += ["queue:claim"] * 2
    claimed = await within_patience(client.dequeue_rollout(worker_id="w-1"))
    assert (claimed.input, times_sent(proxy, "queue:claim")) == ("first", 3)
    statistics = await inner.statistics()
    assert (statistics["total_attempts"], statistics["queue_length"]) == (1, 1)
    assert (await client.dequeue_rollout()).input == "second"


async def test_a_claim_of_many_whose_answer_was_lost_is_given_again(proxied, inner):
    proxy, client = proxied
    await inner.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(5)])
    proxy.cut += ["queue:claim"]
    claimed = await within_patience(client.dequeue_many_rollouts(limit=3))
    assert [each.input for each in claimed] == [0, 1, 2]
    assert (await inner.statistics())["total_attempts"] == 3


async def test_a_claim_that_waited_and_lost_its_answer_is_given_again(proxied, inner):
    proxy, client = proxied
    proxy.cut += ["queue:claim"]
    claim = asyncio.ensure_future(client.dequeue_rollout(wait_seconds=60))
    await eventually(lambda: len(inner._workers_waiting))
    rollout = await inner.enqueue_rollout("task")
    assert (await within_patience(claim)).rollout_id == rollout.rollout_id
    assert (await inner.statistics())["total_attempts"] == 1


async def test_an_enqueue_whose_answer_was_lost_enqueues_once(proxied, inner):
    proxy, client = proxied
    proxy.cut += ["POST /v1/rollouts"] * 2
    one = await within_patience(client.enqueue_rollout("one"))
    proxy.cut += ["POST /v1/rollouts"]
    many = await within_patience(client.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(3)]))
    found = await inner.query_rollouts()
    assert [each.rollout_id for each in found] == [one.rollout_id, *(each.rollout_id for each in many)]


async def test_a_start_whose_answer_was_lost_starts_once(proxied, inner):
    proxy, client = proxied
    proxy.cut += ["rollouts:start", "attempts HTTP"]
    started = await within_patience(client.start_rollout("task", worker_id="w-1"))
    again = await within_patience(client.start_attempt(started.rollout_id))
    attempts = await inner.query_attempts(started.rollout_id)
    assert [each.attempt_id for each in attempts] == [started.attempt.attempt_id, again.attempt.attempt_id]
    assert (await inner.statistics())["total_rollouts"] == 1


async def test_resources_whose_answer_was_lost_are_published_once(proxied, inner):
    proxy, client = proxied
    proxy.cut += ["POST /v1/resources HTTP", "versions"]
    update = await within_patience(client.add_resources(RESOURCES))
    second = await within_patience(client.update_resources(update.resources_id, RESOURCES))
    assert (update.version, second.version) == (1, 2)
    assert [each.version for each in await inner.query_resources(all_versions=True)] == [1, 2]


async def test_work_whose_answer_was_lost_is_done_once(proxied, inner):
    proxy, client = proxied
    claimed = await claim_new(client)
    span, last = make_span(claimed, name="span"), make_span(claimed, name="last")
    proxy.cut += ["spans:batch", "completion"]
    await within_patience(client.add_span(span))
    await within_patience(client.complete_attempt(*ids_of(claimed), spans=[last], reward=0.5))
    assert [each.name for each in await inner.query_spans(claimed.rollout_id)] == ["span", "last"]
    finished = await inner.finished_rollouts()
    assert [(each.rollout_id, each.reward) for each in finished.items] == [(claimed.rollout_id, 0.5)]
    assert (await inner.statistics())["total_spans"] == 2


async def test_an_update_whose_answer_was_lost_is_made_once(proxied, inner):
    proxy, client = proxied
    claimed = await claim_new(client)
    proxy.cut += ["PATCH", "rollouts:cancel"]
    attempt = await within_patience(client.update_attempt(*ids_of(claimed), status="succeeded"))
    assert attempt.status == "succeeded"
    other = await claim_new(client)
    (cancelled,) = await within_patience(client.cancel_rollouts([other.rollout_id]))
    assert cancelled.status == "cancelled"
    finished = await inner.finished_rollouts()
    assert [each.rollout_id for each in finished.items] == [claimed.rollout_id, other.rollout_id]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
async def test_a_folder_of_another_user_keeps_and_gives_no_work(server, folder, caplog):
    client = LightningStoreClient(server.url, retry_seconds=0.1, spool_after_seconds=0.1)
    claimed = await claim_new(client)
    planted = Spool(folder, client.store_id)
    planted.append(Entry("POST", "/v1/rollouts", '{"input": "planted"}'))
    planted.close()
    os.chown(folder, 12345, 12345)
    await client.close()
    client = LightningStoreClient(server.url, retry_seconds=0.1, spool_after_seconds=0.1)
    assert len(await client.query_rollouts()) == 1
    await eventually(lambda: str(folder) in caplog.text)
    await server.go()
    with raises(StoreUnavailableError, folder):
        await client.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    await client.close()


@pytest.mark.parametrize("mode", [0o777, None])
async def test_without_a_home_only_a_folder_of_this_user_alone_keeps_work(tmp_path, monkeypatch, mode):
    monkeypatch.delenv("SHARPEN_SPOOL")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError("no home"))))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    base = tmp_path / f"sharpen-{os.getuid()}"
    if mode is not None:
        base.mkdir()
        base.chmod(mode)
    spool = Spool(default_folder(), "st-1")
    if mode is None:
        spool.append(Entry("POST", "/v1/rollouts", "{}"))
        assert [stat.S_IMODE(each.stat().st_mode) for each in (base, base / "spool")] == [0o700] * 2
    else:
        with raises(StoreUnavailableError, base):
            spool.append(Entry("POST", "/v1/rollouts", "{}"))
    spool.close()
