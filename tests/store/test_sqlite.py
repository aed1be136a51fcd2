"""What only the SQLite store promises: durable, shared by processes, careful with files, calm when it cannot write."""

import asyncio
import hashlib
import json
import logging
import math
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from sharpen.errors import (
    InvalidInputError,
    StoreError,
    StoreFileError,
    StoreFullError,
    StoreWriteError,
    TaskError,
    UnknownIdError,
)
from sharpen.store import LightningStoreClient, LightningStoreServer, SQLiteStore
from sharpen.types import LLM, EnqueueRolloutRequest, PromptTemplate, RolloutConfig
from tests.errors import raises, whole
from tests.store.internals import backup_store, sqlite, sqlite_schema

from .disks import small_disk
from .processes import child, eventually, server_process
from .scenes import PATIENCE_SECONDS, claim_new, finish_new, make_span, reward_span, run_new, within_patience
from .threads import named_threads
from .worlds import Clock

CHILD = Path(__file__).with_name("sqlite_child.py")


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder / "store.db"


@pytest.fixture
async def store(path):
    opened = SQLiteStore(path)
    yield opened
    await opened.close()


async def test_its_files_are_for_their_owner_alone(path):
    old = os.umask(0o022)
    try:
        store = SQLiteStore(path)
        await store.enqueue_rollout("task")
        await store.query_rollouts()
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        backup_store(path, path.with_name("copy.db"))
        await store.close()
    finally:
        os.umask(old)
    assert modes == dict.fromkeys(["store.db", "store.db-wal", "store.db-shm"], 0o600)
    assert stat.S_IMODE(path.with_name("copy.db").stat().st_mode) == 0o600


async def test_the_rights_of_a_file_that_was_there_stay_as_they_were(path):
    await make_store(path)
    path.chmod(0o640)
    store = SQLiteStore(path)
    await store.enqueue_rollout("task")
    await store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def asked(path, question, *values):
    """The answer of the file itself, through a connection that has nothing to do with the store."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question, values).fetchall()


async def make_store(path, count=3):
    """A closed store file with some rollouts in it."""
    store = SQLiteStore(path)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n, rollout_id=f"ro-{n}") for n in range(count)])
    await store.close()
    return store.store_id


@contextmanager
def nothing_changes(folder):
    """What the folder holds is the same afterwards, to the byte."""

    def state():
        return {each.name: each.is_file() and hashlib.sha256(each.read_bytes()).digest() for each in folder.iterdir()}

    before = state()
    yield
    assert state() == before


def assert_refused(path, *values):
    with nothing_changes(path.parent), raises(StoreFileError, *values) as error:
        SQLiteStore(path)
    assert path.name in str(error.value) or path.parent.name in str(error.value)
    assert isinstance(error.value, OSError)


# -- files that are not, or not any more, a store ----------------------------------------------------


async def test_a_file_of_a_newer_version_is_refused_untouched(path):
    await make_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert_refused(path, 99)


@pytest.mark.parametrize(
    "content",
    [b"garbage", b"x" * 5000, b"SQLite format 3\x00", b"\x00" * 4096, "text\n".encode("utf-16")],
    ids=["short", "long", "header only", "zeros", "text"],
)
def test_garbage_is_refused_untouched(path, content):
    path.write_bytes(content)
    assert_refused(path)


@pytest.mark.parametrize("kept_bytes", [100, 2048, 5000, -2048], ids=["header", "first page", "part", "all but a page"])
async def test_a_truncated_file_is_refused_untouched(path, kept_bytes):
    await make_store(path, count=200)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    assert_refused(path)


async def test_a_file_whose_pages_are_overwritten_gives_errors_and_no_hang(path, store):
    await make_store(path, count=500)
    await store.close()
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + b"\xff" * half)
    damaged = SQLiteStore(path)
    calls = [damaged.enqueue_rollout("task"), damaged.statistics(), damaged.dequeue_rollout(), damaged.query_rollouts()]
    answers = await within_patience(
        asyncio.gather(*calls, *(damaged.enqueue_rollout(n) for n in range(5)), return_exceptions=True)
    )
    assert {type(answer) for answer in answers} == {StoreFileError}
    with pytest.raises(StoreFileError):
        await damaged.close()


@pytest.mark.parametrize("version", [0, 1, 7])
def test_a_sqlite_file_of_another_program_is_refused_untouched(path, version):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (value)")
        connection.execute(f"PRAGMA user_version = {version}")
    assert_refused(path)


def test_a_sqlite_file_that_names_its_program_is_refused_untouched(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 1196444487")
        connection.execute("CREATE TABLE theirs (value)")
    assert_refused(path, "0x47504b47")


def test_a_file_of_another_program_is_not_migrated(path, monkeypatch):
    """Also not when its own version number happens to be one that a migration starts from."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (value)")
        connection.execute("PRAGMA user_version = 1")
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", [*sqlite_schema.MIGRATIONS, lambda connection: None])
    assert_refused(path)


def test_a_folder_is_refused(path):
    path.mkdir()
    assert_refused(path)


def test_a_device_is_refused():
    with pytest.raises(StoreFileError):
        SQLiteStore("/dev/null")


def test_a_missing_folder_is_named(path):
    with raises(StoreFileError, "missing"):
        SQLiteStore(path.parent / "missing" / "store.db")
    assert not (path.parent / "missing").exists()


@pytest.fixture
def public_folder():
    """A folder that other users can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o700)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode"),
    [(0o000, 0o777), (0o444, 0o777), (0o666, 0o555), (None, 0o555)],
    ids=["no file", "read-only file", "read-only folder", "new file in a read-only folder"],
)
async def test_a_user_without_permission_is_told_so(public_folder, file_mode, folder_mode):
    path = public_folder / "store.db"
    if file_mode is not None:
        await make_store(path)
        path.chmod(file_mode)
    public_folder.chmod(folder_mode)
    before = [(each.name, each.stat()) for each in public_folder.iterdir()]
    with child(CHILD, "open_as_nobody", path) as nobody:
        kind, message = json.loads(await nobody.hear())
    assert kind == "StoreFileError"
    assert "this user" in message
    assert str(public_folder if folder_mode == 0o555 else path) in message
    assert [(each.name, each.stat()) for each in public_folder.iterdir()] == before


@pytest.mark.parametrize("url", ["postgres://host/db", "sqlite://store.db", "sqlite:///", ":memory:", ""])
def test_an_address_that_names_no_file_is_refused(url):
    with raises(InvalidInputError, "database_url"):
        SQLiteStore(url)


async def test_every_form_of_the_address_names_the_same_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store_id = await make_store(tmp_path / "a.db")
    for address in ("sqlite:///a.db", f"sqlite:///{tmp_path}/a.db", str(tmp_path / "a.db"), "a.db", Path("a.db")):
        store = SQLiteStore(address)
        assert store.store_id == store_id
        await store.close()
    default = SQLiteStore()
    await default.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.db", "sharpen.db"]


async def test_an_empty_file_becomes_a_store(path):
    path.touch()
    await make_store(path)
    assert asked(path, "SELECT count(*) FROM rollouts") == [(3,)]


# -- from one version to the next --------------------------------------------------------------------


async def test_an_older_file_is_migrated_with_its_data(path, monkeypatch):
    store_id = await make_store(path)

    def add_column(connection):
        connection.execute("ALTER TABLE rollouts ADD COLUMN colour TEXT DEFAULT 'blue'")

    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", [*sqlite_schema.MIGRATIONS, add_column])
    store = SQLiteStore(path)
    assert store.store_id == store_id
    assert [rollout.input for rollout in await store.query_rollouts()] == [0, 1, 2]
    await store.close()
    assert asked(path, "PRAGMA user_version") == [(len(sqlite_schema.MIGRATIONS),)]
    assert asked(path, "SELECT DISTINCT colour FROM rollouts") == [("blue",)]
    monkeypatch.undo()
    assert_refused(path)


@pytest.mark.parametrize("error", [sqlite3.OperationalError("no such thing"), RuntimeError("a bug")], ids=repr)
async def test_a_failing_migration_leaves_everything_as_it_was(path, monkeypatch, error):
    store_id = await make_store(path)
    before = asked(path, "SELECT * FROM rollouts"), asked(path, "SELECT * FROM sqlite_master")

    def destroy(connection):
        connection.execute("CREATE TABLE half_done (value)")
        connection.execute("DELETE FROM rollouts")

    def fail(connection):
        raise error

    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", [*sqlite_schema.MIGRATIONS, destroy, fail])
    with raises((StoreFileError, RuntimeError), error):
        SQLiteStore(path)
    monkeypatch.undo()
    assert (asked(path, "SELECT * FROM rollouts"), asked(path, "SELECT * FROM sqlite_master")) == before
    store = SQLiteStore(path)
    assert store.store_id == store_id
    await store.close()


# -- several processes -------------------------------------------------------------------------------


@contextmanager
def children(count, *arguments):
    """The same child several times."""
    if count == 0:
        yield []
        return
    with child(CHILD, *arguments) as first, children(count - 1, *arguments) as rest:
        yield [first, *rest]


async def test_processes_that_make_the_same_file_at_once_get_one_store(tmp_path):
    with children(4, "open_new", tmp_path, "25") as openers:
        for opener in openers:
            assert await opener.hear() == "ready"
        for opener in openers:
            opener.tell(str(time.time() + 0.05))
        ids = [json.loads(await within_patience(opener.hear())) for opener in openers]
    assert ids[0] == ids[1] == ids[2] == ids[3]
    assert len(set(ids[0])) == 25


async def test_processes_that_share_a_file_claim_every_rollout_once(path, store):
    ids = [f"ro-{n}" for n in range(400)]
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n, rollout_id=each) for n, each in enumerate(ids)])
    with children(4, "claim_all", path, "w-1") as claimers:
        for claimer in claimers:
            assert await claimer.hear() == "ready"
        for claimer in claimers:
            claimer.tell("go")
        claimed = [json.loads(await claimer.hear()) for claimer in claimers]
    assert sorted(each for part in claimed for each in part) == sorted(ids)
    finished = await store.finished_rollouts()
    assert sorted(rollout.rollout_id for rollout in finished.items) == sorted(ids)
    statistics = await store.statistics()
    assert (statistics["total_attempts"], statistics["rollouts_by_status"]["succeeded"]) == (400, 400)


async def test_waits_are_woken_by_another_process(path, store):
    with child(CHILD, "wait_for_work", path) as worker:
        assert await worker.hear() == "ready"
        rollout = await store.enqueue_rollout("task")
        assert await within_patience(worker.hear()) == rollout.rollout_id
        everything = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
        cursor = asyncio.ensure_future(store.finished_rollouts(wait_seconds=PATIENCE_SECONDS))
        await eventually(lambda: len(store._finish_waiting) == 2)
        worker.tell("complete it")
        (finished,) = await within_patience(everything)
        assert (finished.status, finished.reward) == ("succeeded", 1.0)
        assert [each.rollout_id for each in (await within_patience(cursor)).items] == [rollout.rollout_id]


async def test_a_claim_here_is_woken_by_an_enqueue_of_another_process(path, store):
    claims = [asyncio.ensure_future(store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS)) for _ in range(3)]
    with child(CHILD, "write_life", path) as writer:
        assert await writer.hear() == "done"
        claimed = await within_patience(asyncio.gather(*claims))
    # The child enqueued four and tried two of them; one of its two may have been claimed here before.
    assert len({each.rollout_id for each in claimed}) == 3


async def test_readers_of_other_processes_see_whole_batches_only(path, store):
    with child(CHILD, "watch", path) as watcher:
        assert await watcher.hear() == "ready"
        for _ in range(20):
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(100)])
        watcher.tell("stop")
        seen = json.loads(await within_patience(watcher.hear()))
    assert all(total % 100 == 0 for total in seen)
    assert seen[-1] <= 2000


async def test_a_reader_sees_only_what_is_committed(path, store):
    claimed = await finish_new(store, reward=1.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE rollouts SET reward = 7")
        assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 1.0
        assert (await store.query_rollouts()).items[0].reward == 1.0
        other.execute("ROLLBACK")
        assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 1.0
        other.execute("UPDATE rollouts SET reward = 7")
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 7


async def test_workers_can_be_listed_while_new_ones_come(store):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(200):
            listing = asyncio.ensure_future(store.query_workers())
            await asyncio.sleep(0)
            await store.start_rollout("task", worker_id=f"w-{number}")
            await listing
    finally:
        sys.setswitchinterval(interval)
    assert (await store.query_workers()).total == 200


# -- one commit for many writes ----------------------------------------------------------------------


@pytest.mark.parametrize("synchronous", ["normal", "full"])
async def test_a_wrong_request_in_a_group_fails_alone(path, synchronous):
    store = SQLiteStore(path, synchronous=synchronous)
    calls = []
    for number in range(100):
        calls.append(store.enqueue_rollout(number, rollout_id=f"ro-{number}"))
        calls.append(store.enqueue_rollout({1, 2}))
        calls.append(store.start_attempt("ro-nope"))
    answers = await within_patience(asyncio.gather(*calls, return_exceptions=True))
    assert [answer.rollout_id for answer in answers[0::3]] == [f"ro-{number}" for number in range(100)]
    assert {type(answer) for answer in answers[1::3]} == {TaskError}
    assert {type(answer) for answer in answers[2::3]} == {UnknownIdError}
    statistics = await store.statistics()
    assert (statistics["total_rollouts"], statistics["queue_length"]) == (100, 100)
    await store.close()
    assert asked(path, "SELECT count(*) FROM rollouts WHERE phase = 'queued'") == [(100,)]


async def test_a_group_of_the_whole_life_keeps_every_count_right(path, store):
    async def live(number):
        claimed = await store.start_rollout(number)
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        await store.add_many_spans([make_span(claimed), make_span(claimed)])
        with pytest.raises(UnknownIdError):
            await store.complete_attempt(claimed.rollout_id, "at-nope")
        await store.complete_attempt(*ids, status="succeeded" if number % 2 else "failed", reward=float(number))
        with pytest.raises(InvalidInputError):
            await store.complete_attempt(*ids, reward=float("nan"))
        return claimed.rollout_id

    ids = await within_patience(asyncio.gather(*(live(number) for number in range(100))))
    statistics = await store.statistics()
    assert statistics["rollouts_by_status"]["succeeded"] == statistics["rollouts_by_status"]["failed"] == 50
    assert (statistics["total_attempts"], statistics["total_spans"], statistics["open_attempts"]) == (100, 200, 0)
    finished = await store.finished_rollouts()
    assert sorted(each.rollout_id for each in finished.items) == sorted(ids)
    assert finished.cursor == 100


async def test_what_was_acknowledged_in_a_group_survives_the_death_of_its_process(path):
    with child(CHILD, "write_group", path) as writer:
        acknowledged = json.loads(await writer.hear())
        writer.kill()
    assert len(acknowledged) == 150
    store = SQLiteStore(path)
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == acknowledged
    await store.close()


async def test_a_closed_store_refuses_every_call_and_hangs_on_none(store):
    await store.enqueue_rollout("task")
    await store.close()
    calls = [store.enqueue_rollout(n) for n in range(5)] + [store.statistics(), store.query_rollouts()]
    answers = await within_patience(asyncio.gather(*calls, return_exceptions=True))
    assert {type(answer) for answer in answers} == {StoreError}
    assert all("is closed" in str(answer) for answer in answers)


async def test_claims_that_are_given_up_in_a_group_take_nothing(store):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(300)])
    claimed = 0
    for _ in range(50):
        claims = [asyncio.ensure_future(store.dequeue_rollout()) for _ in range(5)]
        await asyncio.sleep(0)
        for claim in claims[:4]:
            claim.cancel()
        answers = await asyncio.gather(*claims, return_exceptions=True)
        claimed += sum(not isinstance(answer, asyncio.CancelledError) for answer in answers)
    assert (await store.statistics())["total_attempts"] == claimed


async def test_full_synchronisation_is_set_where_asked_for(path):
    for synchronous, number in (("normal", 1), ("full", 2)):
        store = SQLiteStore(path, synchronous=synchronous)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (number,)
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        await finish_new(store)
        await store.close()
    with raises(InvalidInputError, "synchronous", "off"):
        SQLiteStore(path, synchronous="off")


# -- when the file cannot be written -----------------------------------------------------------------


@contextmanager
def locked(path):
    """Another process holds the write lock; call what is given to let it go."""
    with child(CHILD, "lock", path) as locker:
        assert locker.read() == "locked"

        def release():
            locker.tell("release")
            assert locker.read() == "released"

        yield release


async def test_finished_work_is_kept_while_another_process_holds_the_file(path):
    store = SQLiteStore(path, busy_seconds=0.2)
    claimed = await claim_new(store, worker_id="w-1")
    with locked(path) as release:
        with raises(StoreWriteError, 0.2):
            await store.enqueue_rollout("task")
        assert store.kept_bytes == 0
        with pytest.raises(StoreWriteError):
            await store.add_span(make_span(claimed, name="kept"))
        with pytest.raises(StoreWriteError):
            await store.complete_attempt(
                claimed.rollout_id, claimed.attempt.attempt_id, spans=[reward_span(claimed, 0.5)]
            )
        assert store.kept_bytes > 0
        assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "preparing"
        release()
        await eventually(lambda: store.kept_bytes == 0)
    found = await store.get_rollout_by_id(claimed.rollout_id)
    assert (found.status, found.reward) == ("succeeded", 0.5)
    assert [span.sequence_id for span in await store.query_spans(claimed.rollout_id)] == [1, 2]
    await store.close()


async def test_kept_work_wakes_those_who_wait_for_it(path):
    store = SQLiteStore(path, busy_seconds=0.1)
    claimed = await claim_new(store)
    wait = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
    with locked(path) as release:
        with pytest.raises(StoreWriteError):
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
        release()
        (finished,) = await within_patience(wait)
    assert finished.status == "succeeded"
    await store.close()


async def test_kept_work_stays_within_its_bound(path, caplog):
    store = SQLiteStore(path, busy_seconds=0.1, max_kept_bytes=5000)
    claimed = await run_new(store)
    with locked(path) as release:
        for number in range(4):
            with pytest.raises(StoreWriteError):
                await store.add_span(make_span(claimed, name=f"span-{number}", attributes={"text": "x" * 1500}))
        assert 0 < store.kept_bytes <= 5000
        assert [(each.levelname, str(path) in each.getMessage()) for each in logged_by("database", caplog)] == [
            ("ERROR", True)
        ] * 2
        release()
        await eventually(lambda: store.kept_bytes == 0)
    names = [span.name for span in await store.query_spans(claimed.rollout_id, name_contains="span-")]
    assert names == ["span-0", "span-1"]
    await store.close()


async def test_work_that_is_sent_again_is_kept_once(path):
    """A client that is told to come later comes often."""
    store = SQLiteStore(path, busy_seconds=0.05)
    claimed = await run_new(store)
    span, sizes = make_span(claimed, attributes={"text": "x" * 1000}), []
    with locked(path):
        for _ in range(4):
            with pytest.raises(StoreWriteError):
                await store.add_span(span)
            sizes.append(store.kept_bytes)
    assert sizes == sizes[:1] * 4
    await eventually(lambda: store.kept_bytes == 0)
    assert len(await store.query_spans(claimed.rollout_id)) == 2
    await store.close()


async def test_work_that_can_never_be_written_keeps_nothing_else_from_being_kept(path):
    store = SQLiteStore(path, busy_seconds=0.1)
    claimed = await run_new(store)
    bad, good = make_span(claimed, attributes={"object": object()}), make_span(claimed, name="good")
    with locked(path):
        answers = await asyncio.gather(*(store.add_span(each) for each in (good, bad)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreWriteError}
    await eventually(lambda: store.kept_bytes == 0)
    assert [span.name for span in await store.query_spans(claimed.rollout_id, name="good")] == ["good"]
    await store.close()


async def test_kept_work_that_is_refused_does_not_hold_up_the_rest(path, caplog):
    store = SQLiteStore(path, busy_seconds=0.1)
    claimed = await claim_new(store)
    with locked(path) as release:
        for ids in (("ro-nope", "at-nope"), (claimed.rollout_id, claimed.attempt.attempt_id)):
            with pytest.raises(StoreWriteError):
                await store.complete_attempt(*ids)
        release()
        await eventually(lambda: store.kept_bytes == 0)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "succeeded"
    (refused,) = logged_by("database", caplog)
    assert refused.levelname == "WARNING"
    assert "'ro-nope'" in refused.getMessage()
    await store.close()


async def test_a_store_can_be_closed_while_another_process_holds_the_file(path, caplog):
    store = SQLiteStore(path, busy_seconds=0.1)
    claimed = await claim_new(store, worker_id="w-1")
    with locked(path):
        with pytest.raises(StoreWriteError):
            await store.add_span(make_span(claimed))
        await within_patience(store.close())
        (lost,) = [each for each in logged_by("database", caplog) if each.levelname == "ERROR"]
        assert re.search(whole(store.kept_bytes), lost.getMessage())
        assert open_files(path.parent) == []


async def test_other_calls_go_on_while_one_waits_for_the_lock(path):
    store = SQLiteStore(path, busy_seconds=PATIENCE_SECONDS)
    with locked(path) as release:
        write = asyncio.ensure_future(store.enqueue_rollout("task"))
        for _ in range(10):
            assert await within_patience(store.get_latest_resources()) is None
        assert not write.done()
        release()
        assert (await within_patience(write)).status == "queuing"
    await store.close()


async def test_a_claim_that_is_given_up_while_it_waits_for_the_file_takes_nothing(path, store):
    await store.enqueue_rollout("task")
    with locked(path) as release:
        claim = asyncio.ensure_future(store.dequeue_rollout())
        for _ in range(5):
            await store.get_latest_resources()
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)
        release()
        assert (await within_patience(store.dequeue_rollout())).attempt.sequence_id == 1


def test_a_write_whose_loop_was_closed_holds_up_no_later_loop(path):
    """A program without a loop of its own may make a new one for every call."""
    store = SQLiteStore(path)
    loop = asyncio.new_event_loop()
    with locked(path) as release:
        with pytest.raises(TimeoutError):
            loop.run_until_complete(asyncio.wait_for(store.enqueue_rollout("given up"), 0.1))
        loop.close()
        release()
        asyncio.run(asyncio.wait_for(store.enqueue_rollout("task"), PATIENCE_SECONDS))
    asyncio.run(store.close())


async def fill(store, claimed):
    """Add spans until there is no room; how many were acknowledged."""
    for stored in range(10_000):
        try:
            await store.add_span(make_span(claimed, attributes={"text": os.urandom(2000).hex()}))
        except StoreFullError:
            return stored
    raise AssertionError("the disk never became full")


async def survive_a_full_disk(store, make_room):
    """Nothing acknowledged is lost, reads go on, and finished work is written when there is room again."""
    claimed = await claim_new(store, worker_id="w-1")
    stored = await fill(store, claimed)
    assert stored > 0
    assert store.kept_bytes > 0
    assert len(await store.query_spans(claimed.rollout_id)) == stored
    with pytest.raises(StoreWriteError):
        await store.complete_attempt(
            claimed.rollout_id,
            claimed.attempt.attempt_id,
            spans=[make_span(claimed, attributes={"text": "x" * 50_000})],
        )
    make_room()
    await eventually(lambda: store.kept_bytes == 0)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "succeeded"
    assert len(await store.query_spans(claimed.rollout_id)) == stored + 2
    await finish_new(store)
    assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_full_disk_loses_nothing(tmp_path):
    with small_disk(tmp_path, 512 * 1024) as grow:
        store = SQLiteStore(tmp_path / "store.db")
        await survive_a_full_disk(store, lambda: grow(64 * 2**20))
        await store.close()


async def test_a_file_at_its_greatest_size_loses_nothing(store):
    store._connection.execute("PRAGMA max_page_count = 200")
    await survive_a_full_disk(store, lambda: store._connection.execute("PRAGMA max_page_count = 1000000"))


async def test_a_full_disk_is_named_as_the_reason_and_logged_once(tmp_path, caplog):
    with small_disk(tmp_path, 512 * 1024) as grow:
        store = SQLiteStore(tmp_path / "store.db")
        claimed = await claim_new(store, worker_id="w-1", unresponsive_seconds=0.05)
        await fill(store, claimed)
        waiting = asyncio.ensure_future(store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS))  # polls often
        await eventually(lambda: warnings_of(caplog))
        await asyncio.sleep(1.5)  # many polls, and one more try of the watchdog
        assert len(warnings_of(caplog)) == 1
        assert "full" in warnings_of(caplog)[0]
        assert "rollback" not in caplog.text
        waiting.cancel()
        grow(64 * 2**20)
        await eventually(lambda: store.kept_bytes == 0)
        await store.close()


def warnings_of(caplog):
    return [record.getMessage() for record in logged_by("local", caplog)]


def logged_by(module, caplog):
    return [record for record in caplog.records if record.name == f"sharpen.store.{module}"]


@pytest.mark.parametrize("what", ["deleted", "replaced"])
async def test_a_file_that_is_lost_while_someone_waits_is_an_error_for_all(path, what):
    store = SQLiteStore(path)
    queued = await store.enqueue_rollout("task")
    waiting = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=[queued.rollout_id]))
    await asyncio.sleep(0)
    path.unlink()
    if what == "replaced":
        path.write_bytes(b"")
    with pytest.raises(StoreFileError):
        await within_patience(waiting)
    with pytest.raises(StoreFileError):
        await store.enqueue_rollout("task")
    with pytest.raises(StoreFileError):
        await store.close()


async def test_the_working_directory_may_change_while_a_store_with_a_relative_path_is_open(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    store = SQLiteStore("store.db")
    queued = await store.enqueue_rollout("task")
    monkeypatch.chdir(tmp_path / "other")
    look_until_gone(store)
    assert await store.get_rollout_by_id(queued.rollout_id) is not None
    await store.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "store.db"]
    assert not list((tmp_path / "other").iterdir())


def look_until_gone(store):
    """What the watchdog does in so many seconds that a file which is away counts as lost, less one look."""
    for _ in range(sqlite.LOOKS_UNTIL_GONE - 1):
        with suppress(StoreWriteError):
            store._look_at_file()


async def test_a_folder_that_is_renamed_and_renamed_back_loses_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    store = SQLiteStore(tmp_path / "a" / "store.db")
    store._next_file_look = math.inf
    first = await store.enqueue_rollout("task")
    for _ in range(2):
        (tmp_path / "a").rename(tmp_path / "b")
        look_until_gone(store)
        store._close_readers()
        with pytest.raises(StoreWriteError):  # no new file is made in the place of the old one
            await store.get_rollout_by_id(first.rollout_id)
        assert not (tmp_path / "a").exists()
        second = await store.enqueue_rollout("task")
        (tmp_path / "b").rename(tmp_path / "a")
        store._look_at_file()
    await store.close()
    again = SQLiteStore(tmp_path / "a" / "store.db")
    assert await again.get_rollout_by_id(first.rollout_id) is not None
    assert await again.get_rollout_by_id(second.rollout_id) is not None
    await again.close()


async def test_a_disk_that_cannot_be_reached_for_a_while_does_not_end_the_store(path):
    store = SQLiteStore(path)
    link = path.with_name("loop")
    os.symlink(link, link)  # it cannot be looked at: ELOOP
    real, store.path = store.path, link / "store.db"
    for _ in range(sqlite.LOOKS_UNTIL_GONE + 1):
        with raises(StoreWriteError, "loop"):
            store._look_at_file()
    store.path = real
    await store.enqueue_rollout("task")
    await store.close()


async def test_a_file_that_was_overwritten_while_in_use_is_not_closed_without_an_error(path):
    store = SQLiteStore(path)
    for number in range(200):
        await store.enqueue_rollout({"text": f"{number}" * 1000})
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(-40_000, os.SEEK_END)
        file.write(b"\xff" * 40_000)
    await store.enqueue_rollout("the pages that this needs are kept in memory")
    with pytest.raises(StoreFileError):
        await store.close()


async def test_the_loss_of_the_file_reaches_the_clients_of_a_server_at_once(tmp_path):
    path = tmp_path / "store.db"
    with server_process(path) as server:
        await server.start()
        client = LightningStoreClient(server.url)
        queued = await client.enqueue_rollout("task")
        waiting = asyncio.ensure_future(client.wait_for_rollouts(rollout_ids=[queued.rollout_id]))
        path.unlink()
        with raises(StoreFileError, "deleted"):
            await within_patience(waiting)
        await client.close()


async def enqueue_without_end(store):
    while True:
        await store.enqueue_rollout({"text": os.urandom(2000).hex()})


async def test_a_client_gives_a_full_disk_its_name(tmp_path):
    with small_disk(tmp_path, 512 * 1024):
        store = SQLiteStore(tmp_path / "store.db")
        server = LightningStoreServer(store)
        await server.start()
        client = LightningStoreClient(server.endpoint, retry_seconds=0.2)
        with pytest.raises(StoreFullError):
            await enqueue_without_end(client)
        await client.close()
        await server.close()


# -- large bodies ------------------------------------------------------------------------------------

LARGE = {"image": "x" * 100_000}


def blobs(path):
    return asked(path, "SELECT uses, length(data) FROM blobs")


async def test_a_large_body_is_stored_once(path, store):
    for _ in range(3):
        await store.enqueue_rollout(LARGE, metadata=LARGE)
    claimed = await store.dequeue_rollout()
    assert claimed.input == claimed.metadata == LARGE
    ((uses, size),) = blobs(path)
    assert (uses, size) == (6, len(json.dumps(LARGE, separators=(",", ":"))))
    assert [rollout.input for rollout in await store.query_rollouts()] == [LARGE] * 3


async def test_a_small_body_is_stored_in_its_row(path, store):
    await store.enqueue_rollout("x" * 65_000)
    assert blobs(path) == []


async def test_a_large_span_comes_back_whole(path, store):
    claimed = await claim_new(store)
    await store.add_many_spans([make_span(claimed, attributes=LARGE), make_span(claimed, attributes=LARGE)])
    assert [span.attributes for span in await store.query_spans(claimed.rollout_id)] == [LARGE, LARGE]
    assert [uses for uses, _ in blobs(path)] == [2]


async def test_pruning_removes_large_bodies_that_nobody_needs_any_more(path):
    clock = Clock()
    store = SQLiteStore(path, clock=clock)
    other = {"image": "y" * 100_000}
    for task in (LARGE, LARGE, other):
        claimed = await claim_new(store, task)
        span = make_span(claimed, attributes=LARGE)
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, spans=[span], metadata=LARGE)
    await store.enqueue_rollout(other)
    clock.advance(10)
    assert await store.prune(5) == 3
    assert [uses for uses, _ in blobs(path)] == [1]
    assert (await store.dequeue_rollout()).input == other
    await store.close()


async def test_a_large_body_that_is_sent_again_or_replaced_leaves_nothing_behind(path):
    clock = Clock()
    store = SQLiteStore(path, clock=clock)
    claimed = await claim_new(store, LARGE)
    span = make_span(claimed, attributes={"image": "y" * 100_000})
    assert await store.add_span(span) is not None
    assert await store.add_span(span) is None
    assert await store.add_many_spans([span, span]) == [None, None]
    await store.update_rollout(claimed.rollout_id, input={"image": "z" * 100_000}, metadata=LARGE)
    await store.update_rollout(claimed.rollout_id, input="small", metadata=LARGE)
    for _ in range(2):
        await store.update_attempt(claimed.rollout_id, "latest", metadata={"text": "a" * 100_000})
    await store.update_worker("w-1", {"text": "b" * 100_000})
    assert (await store.get_rollout_by_id(claimed.rollout_id)).metadata == LARGE
    await store.cancel_rollouts([claimed.rollout_id])
    clock.advance(10)
    assert await store.prune(5) == 1
    assert blobs(path) == []
    await store.close()


# -- open again --------------------------------------------------------------------------------------


async def everything(store):
    """All that a store shows, for comparing."""
    rollouts = (await store.query_rollouts()).items
    return {
        "rollouts": rollouts,
        "spans": [(await store.query_spans(each.rollout_id)).items for each in rollouts],
        "attempts": [(await store.query_attempts(each.rollout_id)).items for each in rollouts],
        "resources": (await store.query_resources(all_versions=True)).items,
        "workers": (await store.query_workers()).items,
        "finished": (await store.finished_rollouts()).items,
        "statistics": {**await store.statistics(), "uptime_seconds": 0, "uptime": 0, "size_bytes": 0},
    }


async def test_a_file_that_is_opened_again_holds_everything(path):
    store = SQLiteStore(path)
    update = await store.add_resources({"prompt": PromptTemplate("{x}", "f-string")})
    await store.update_resources(update.resources_id, {"llm": LLM("http://localhost/v1", "model")})
    await finish_new(store, {"n": 1}, reward=1.0)
    await finish_new(store, {"n": 2}, status="failed")
    await run_new(store, worker_id="w-1", unresponsive_seconds=3600)
    await store.enqueue_rollout({"n": 3}, mode="val", metadata={"key": [1, None]}, config=RolloutConfig(max_attempts=3))
    await store.update_worker("w-2", {"load": 0.5})
    before = await everything(store)
    await store.close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    again = SQLiteStore(path)
    assert again.store_id == store.store_id
    assert await everything(again) == before
    await again.close()


async def test_what_a_killed_process_wrote_is_found(path):
    with child(CHILD, "write_life", path) as writer:
        assert await writer.hear() == "done"
        writer.kill()
    store = SQLiteStore(path)
    found = await everything(store)
    assert [rollout.status for rollout in found["rollouts"]] == ["succeeded", "requeuing", "queuing", "queuing"]
    assert [len(spans) for spans in found["spans"]] == [1, 1, 0, 0]
    assert found["rollouts"][0].reward == 0.5
    assert [(await store.dequeue_rollout()).input for _ in range(3)] == [2, 3, 1]
    await store.close()


# -- time --------------------------------------------------------------------------------------------

LEASED = RolloutConfig(unresponsive_seconds=0.5, max_attempts=5, retry_condition=["unresponsive"])


def status_in_file(path):
    return asked(path, "SELECT status FROM rollouts")[0][0]


@pytest.mark.parametrize("opened", ["before", "after"])
async def test_the_lease_of_a_dead_process_runs_out_without_a_call(path, opened):
    """In a store that was open when the process claimed, and in one that is opened later."""
    await make_store(path, count=0)
    early = SQLiteStore(path)
    await early.enqueue_rollout("task", config=LEASED)
    if opened == "after":
        await early.close()
    with child(CHILD, "hold", path) as dead:
        await dead.hear()
        dead.kill()
    assert status_in_file(path) == "preparing"
    store = early if opened == "before" else SQLiteStore(path)
    await eventually(lambda: status_in_file(path) == "requeuing")
    claimed = await store.dequeue_rollout()
    assert claimed.attempt.sequence_id == 2
    await store.close()


async def test_a_timeout_that_passed_while_nobody_had_the_file_open_is_applied_on_opening(path):
    clock = Clock()
    store = SQLiteStore(path, clock=clock)
    await claim_new(store, timeout_seconds=10)
    await store.close()
    clock.advance(100)
    again = SQLiteStore(path, clock=clock)
    await eventually(lambda: status_in_file(path) == "failed")
    await again.close()


# -- ends --------------------------------------------------------------------------------------------


def open_files(folder):
    """What this process holds open below a folder."""
    links = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(each))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(folder))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_closed_store_holds_no_thread_and_no_file(path):
    before = set(threading.enumerate())

    async def use():
        store = SQLiteStore(path)
        await run_new(store, worker_id="w-1", timeout_seconds=3600)
        await asyncio.gather(*(store.enqueue_rollout(n) for n in range(50)))
        await asyncio.gather(*(store.query_rollouts() for _ in range(20)))
        assert open_files(path.parent)
        await store.close()
        await store.close()
        assert open_files(path.parent) == []
        assert not named_threads("sharpen-watchdog") - before

    asyncio.run(use())
    assert set(threading.enumerate()) <= before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_reads_that_are_under_way_hold_nothing_after_closing(path):
    store = SQLiteStore(path)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest("x" * 100) for _ in range(5000)])
    reads = [asyncio.ensure_future(store.query_rollouts()) for _ in range(8)]
    await reads[0]
    await store.close()
    await within_patience(asyncio.gather(*reads, return_exceptions=True))
    assert open_files(path.parent) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_a_refused_file_is_not_held_open(path):
    await make_store(path, count=200)
    path.write_bytes(path.read_bytes()[:5000])
    before = named_threads("sharpen-watchdog")
    for _ in range(3):
        with pytest.raises(StoreFileError) as error:
            SQLiteStore(path)
        assert open_files(path.parent) == [], error
        assert named_threads("sharpen-watchdog") <= before


async def test_an_unclosed_store_that_is_forgotten_loses_nothing(path, caplog):
    caplog.set_level(logging.ERROR)
    store = SQLiteStore(path)
    await finish_new(store)
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    again = SQLiteStore(copy)
    assert (await again.statistics())["rollouts_by_status"]["succeeded"] == 1
    await again.close()
    await store.close()
    assert caplog.text == ""


LOOK = """
import asyncio, sys
from sharpen import SQLiteStore

async def look():
    store = SQLiteStore(sys.argv[1])
    await store.enqueue_rollout("from elsewhere")
    print((await store.statistics())["total_rollouts"])
    await store.close()

asyncio.run(look())
"""


async def test_a_file_opened_twice_in_one_process_keeps_its_locks(tmp_path):
    """Closing one of two must not make another process believe that nobody has the file open."""

    async def look_from_elsewhere():
        command = [sys.executable, "-c", LOOK, str(tmp_path / "store.db")]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    store = SQLiteStore(tmp_path / "store.db")
    await store.enqueue_rollout(0)
    await SQLiteStore(tmp_path / "store.db").close()
    assert await look_from_elsewhere() == 2
    assert (tmp_path / "store.db-wal").exists()
    for number in range(5):
        await store.enqueue_rollout(number)
    assert await look_from_elsewhere() == 8
    assert (await store.statistics())["total_rollouts"] == 8
    await store.close()


async def test_numbers_of_other_libraries_which_the_database_would_misread_are_refused(store):
    claimed = await claim_new(store)
    ids = claimed.rollout_id, claimed.attempt.attempt_id
    for number in (np.int64(1), np.float32(5)):
        with raises(InvalidInputError, "last_heartbeat_time", type(number).__name__):
            await store.update_attempt(*ids, last_heartbeat_time=number)
        with raises(InvalidInputError, "after", type(number).__name__):
            await store.finished_rollouts(number)
        with raises(InvalidInputError, "limit", type(number).__name__):
            await store.dequeue_many_rollouts(limit=number)
        with raises(InvalidInputError, "resources_version", type(number).__name__):
            await store.search_rollouts(resources_version=number)
    assert await store.prune(math.inf) == 0


# -- closing ------------------------------------------------------------------------------------------


async def test_a_close_that_is_cancelled_is_finished_by_the_next_one(path):
    store = SQLiteStore(path)
    await store.enqueue_rollout("task")
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await asyncio.gather(store.close(), store.close())
    assert [each.name for each in path.parent.iterdir()] == [path.name]  # the log is merged
    with raises(StoreError, str(path)):
        await store.enqueue_rollout("task")


async def test_a_path_that_nobody_can_ask_does_not_keep_a_store_open(path, monkeypatch, caplog):
    store = SQLiteStore(path)
    await store.enqueue_rollout("task")

    def cannot(*_):
        raise PermissionError("the share is away")

    monkeypatch.setattr(sqlite.open_files, "is_at", cannot)
    await store.close()
    assert "the share is away" in caplog.text
    with raises(StoreError, str(path)):
        await store.enqueue_rollout("task")
