"""A store file that is only looked at."""

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from sharpen.errors import StoreFileError, StoreWriteError
from sharpen.store import SQLiteStore
from sharpen.types import EnqueueRolloutRequest
from tests.errors import raises
from tests.store.internals import sqlite_schema

from .processes import child, eventually
from .scenes import PATIENCE_SECONDS, claim_new, finish_new, make_span, within_patience
from .test_sqlite import assert_refused, make_store, nothing_changes, public_folder  # noqa: F401
from .threads import named_threads

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


async def test_it_reads_what_a_live_writer_has_committed(path, store):
    viewer = SQLiteStore(path, read_only=True)
    assert viewer.store_id == store.store_id
    assert viewer.is_read_only
    rollout = await store.enqueue_rollout("task")
    assert [each.rollout_id for each in (await viewer.search_rollouts()).items] == [rollout.rollout_id]
    await store.cancel_rollouts([rollout.rollout_id])
    assert (await viewer.statistics())["rollouts_by_status"]["cancelled"] == 1
    await viewer.close()


async def test_looking_at_a_file_that_nobody_uses_leaves_nothing_beside_it(path):
    await make_store(path)
    with nothing_changes(path.parent):
        viewer = SQLiteStore(path, read_only=True)
        assert len((await viewer.search_rollouts()).items) == 3
        await viewer.close()


async def test_it_follows_writers_that_come_and_go(path):
    await make_store(path, count=0)
    viewer = SQLiteStore(path, read_only=True)
    for number in range(1, 6):
        store = SQLiteStore(path)
        await store.enqueue_rollout("task")
        assert (await viewer.statistics())["total_rollouts"] == number
        await store.close()
        assert len((await viewer.search_rollouts()).items) == number
        # Nothing is left in the log, though the viewer still has the file open.
        log = path.with_name("store.db-wal")
        assert not log.exists() or not log.stat().st_size
    await viewer.close()


async def test_every_write_is_refused_in_words(path, store):
    claimed = await claim_new(store, worker_id="w-1")
    viewer = SQLiteStore(path, read_only=True)
    writes = [
        lambda: viewer.enqueue_rollout("task"),
        lambda: viewer.dequeue_rollout(),
        lambda: viewer.cancel_rollouts([claimed.rollout_id]),
        lambda: viewer.add_span(make_span(claimed)),
        lambda: viewer.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id),
        lambda: viewer.update_worker("w-1"),
        lambda: viewer.prune(0),
    ]
    for write in writes:
        with pytest.raises(StoreWriteError):
            await write()
    with raises(StoreWriteError, "expire"):
        viewer.expire()
    assert viewer.kept_bytes == 0
    await viewer.close()
    assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "preparing"


async def test_it_applies_no_lease_and_has_no_thread(path):
    store = SQLiteStore(path)
    claimed = await claim_new(store, worker_id="w-1", unresponsive_seconds=500)
    await store.close()
    before = named_threads("sharpen-watchdog")
    viewer = SQLiteStore(path, read_only=True, clock=lambda: time.time() + 1000)
    assert (await viewer.get_rollout_by_id(claimed.rollout_id)).status == "preparing"
    assert named_threads("sharpen-watchdog") == before
    await viewer.close()


async def test_a_wait_in_it_is_woken_by_the_writer(path, store):
    viewer = SQLiteStore(path, read_only=True)
    cursor = asyncio.ensure_future(viewer.finished_rollouts(wait_seconds=PATIENCE_SECONDS))
    await eventually(lambda: len(viewer._finish_waiting) == 1)
    claimed = await finish_new(store)
    assert [each.rollout_id for each in (await within_patience(cursor)).items] == [claimed.rollout_id]
    await viewer.close()


async def test_a_file_of_the_first_version_is_read_as_it_is(path, monkeypatch):
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", sqlite_schema.MIGRATIONS[:1])
    store = SQLiteStore(path)
    done = [(await finish_new(store, n, reward=reward)).rollout_id for n, reward in enumerate((0.5, 1.0, 0.5, None))]
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(9, metadata={"group": "g"}, rollout_id="ro-9")])
    await store.close()
    monkeypatch.undo()
    viewer = SQLiteStore(path, read_only=True)

    async def searched(**wanted):
        first = await viewer.search_rollouts(limit=2, **wanted)
        rest = await viewer.search_rollouts(cursor=first.next_cursor, **wanted) if first.next_cursor else None
        return [rollout.rollout_id for rollout in [*first.items, *(rest.items if rest else ())]]

    assert await searched(order="reward_high") == [done[1], done[2], done[0], "ro-9", done[3]]
    assert await searched(order="reward_low") == [done[0], done[2], done[1], "ro-9", done[3]]
    assert await searched(group="g") == ["ro-9"]
    assert await searched(reward_min=0.6) == [done[1]]
    await viewer.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    store = SQLiteStore(path)
    assert [each.rollout_id for each in (await store.search_rollouts(group="g")).items] == ["ro-9"]
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(sqlite_schema.MIGRATIONS),)


async def test_it_is_read_where_nothing_may_be_written_and_followed_when_its_owner_goes_on(public_folder):  # noqa: F811
    path = public_folder / "store.db"
    await make_store(path)
    path.chmod(0o444)
    public_folder.chmod(0o555)
    with child(CHILD, "look_as_nobody", path) as nobody:
        with nothing_changes(public_folder):
            assert json.loads(await nobody.hear()) == ["ro-2", "ro-1", "ro-0"]
        public_folder.chmod(0o755)
        path.chmod(0o644)
        owner = SQLiteStore(path)
        await owner.enqueue_many_rollouts([EnqueueRolloutRequest(3, rollout_id="ro-3")])
        nobody.tell("look again")
        assert json.loads(await nobody.hear()) == ["ro-3", "ro-2", "ro-1", "ro-0"]
        await owner.enqueue_many_rollouts([EnqueueRolloutRequest(4, rollout_id="ro-4")])
        nobody.tell("look again")
        assert json.loads(await nobody.hear()) == ["ro-4", "ro-3", "ro-2", "ro-1", "ro-0"]
        await owner.close()


def test_what_is_no_store_is_refused_untouched(path):
    with pytest.raises(StoreFileError):
        SQLiteStore(path, read_only=True)
    assert not path.exists()
    path.write_bytes(b"garbage")
    with nothing_changes(path.parent), pytest.raises(StoreFileError):
        SQLiteStore(path, read_only=True)
    path.unlink()
    path.touch()
    with nothing_changes(path.parent), pytest.raises(StoreFileError):
        SQLiteStore(path, read_only=True)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreFileError):
        SQLiteStore(path, read_only=True)


async def test_a_file_that_is_removed_meanwhile_is_named(path):
    await make_store(path)
    viewer = SQLiteStore(path, read_only=True)
    path.unlink()
    with pytest.raises(StoreFileError):
        await viewer.search_rollouts()
    await viewer.close()


async def test_a_newer_version_is_refused(path):
    await make_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreFileError):
        SQLiteStore(path, read_only=True)
