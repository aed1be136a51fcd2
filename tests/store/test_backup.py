"""A backup is one whole moment of a store, or nothing."""

import asyncio
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from sharpen.errors import StoreFileError
from sharpen.store import SQLiteStore
from sharpen.types import EnqueueRolloutRequest
from tests.errors import raises
from tests.store.internals import backup, backup_store

from .processes import child
from .scenes import finish_new
from .test_sqlite import make_store, nothing_changes

CHILD = Path(__file__).with_name("sqlite_child.py")


@pytest.fixture
def path(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    return tmp_path / "source" / "store.db"


@pytest.fixture
def target(path):
    return path.parent.parent / "target" / "copy.db"


async def test_a_store_in_use_is_copied_as_it_was_at_one_moment(path, target):
    store = SQLiteStore(path)
    done = await finish_new(store, reward=1.0)

    async def write_on():
        for batch in range(200):
            names = [f"ro-{batch}-{n}" for n in range(5)]
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(1, rollout_id=name) for name in names])
            if copying.done():
                return

    copying = asyncio.ensure_future(asyncio.to_thread(backup_store, path, target))
    await write_on()
    await copying
    assert [each.name for each in target.parent.iterdir()] == ["copy.db"]
    copy = SQLiteStore(target)
    found = await copy.query_rollouts()
    assert found[0].rollout_id == done.rollout_id
    assert (found.total - 1) % 5 == 0
    assert (await copy.statistics())["total_rollouts"] == found.total
    # The copy is a store like any other.
    await copy.enqueue_rollout("more")
    await copy.close()
    await store.close()


async def test_nothing_is_overwritten(path, target):
    await make_store(path)
    target.write_text("mine")
    with nothing_changes(target.parent), pytest.raises(StoreFileError):
        backup_store(path, target)
    target.unlink()
    target.symlink_to("nowhere")
    with pytest.raises(StoreFileError):
        backup_store(path, target)
    with pytest.raises(StoreFileError):
        backup_store(path, path)


async def test_a_file_that_appears_meanwhile_is_kept(path, target, monkeypatch):
    await make_store(path)
    check = backup.check_copy
    monkeypatch.setattr(backup, "check_copy", lambda copy: (check(copy), target.write_text("mine")))
    with pytest.raises(StoreFileError):
        backup_store(path, target)
    assert [each.read_text() for each in target.parent.iterdir()] == ["mine"]


async def test_what_is_no_store_or_has_no_place_is_refused(path, target):
    with pytest.raises(StoreFileError):
        backup_store(path, target)
    path.write_bytes(b"garbage")
    with pytest.raises(StoreFileError):
        backup_store(path, target)
    path.unlink()
    await make_store(path)
    with raises(StoreFileError, "missing"):
        backup_store(path, target.parent / "missing" / "copy.db")
    assert list(target.parent.iterdir()) == []


async def test_a_damaged_store_gives_no_backup(path, target):
    await make_store(path, count=500)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    path.write_bytes(content)
    with pytest.raises(StoreFileError):
        backup_store(path, target)
    assert list(target.parent.iterdir()) == []


async def test_a_killed_backup_leaves_no_copy_and_the_next_one_cleans_up(path, target):
    await make_store(path)
    with child(CHILD, "back_up", path, target) as copier:
        assert await copier.hear() == "copied, not yet checked"
        os.kill(copier.pid, signal.SIGKILL)
    assert not target.exists()
    backup_store(path, target)
    assert [each.name for each in target.parent.iterdir()] == ["copy.db"]
    connection = sqlite3.connect(target)
    assert connection.execute("SELECT count(*) FROM rollouts").fetchone() == (3,)
    connection.close()
