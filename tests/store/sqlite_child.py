"""What another process does with a store file while a test looks on. Run as `python sqlite_child.py WHAT FILE ...`.

It prints a line when something has happened, and waits for a line where the test has to say when to go on.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - nobody may not read the standard library any more
import json
import os
import sqlite3
import sys
import time

from sharpen.errors import SharpenError
from sharpen.store import SQLiteStore, backup
from sharpen.types import EnqueueRolloutRequest, RolloutConfig, Span

NOBODY = 65534


def say(what: object) -> None:
    print(what, flush=True)


def listen() -> str:
    return sys.stdin.readline().strip()


async def open_new(folder: str, count: str) -> None:
    """Make new stores at the very moments at which others make them too."""
    say("ready")
    start, ids = float(listen()), []
    for number in range(int(count)):
        while time.time() < start + number * 0.03:
            pass
        store = SQLiteStore(f"{folder}/{number}.db")
        ids.append(store.store_id)
        await store.close()
    say(json.dumps(ids))


async def claim_all(path: str, worker_id: str) -> None:
    store = SQLiteStore(path)
    say("ready")
    listen()
    claimed = []
    while rollout := await store.dequeue_rollout(worker_id=worker_id):
        claimed.append(rollout.rollout_id)
        await store.complete_attempt(rollout.rollout_id, rollout.attempt.attempt_id)
    say(json.dumps(claimed))
    await store.close()


async def wait_for_work(path: str) -> None:
    store = SQLiteStore(path)
    say("ready")
    rollout = await store.dequeue_rollout(wait_seconds=60)
    assert rollout is not None
    say(rollout.rollout_id)
    listen()
    await store.complete_attempt(rollout.rollout_id, rollout.attempt.attempt_id, reward=1.0)
    say("completed")
    listen()
    await store.close()


async def hold(path: str) -> None:
    """Claim one rollout and do nothing with it."""
    store = SQLiteStore(path)
    rollout = await store.dequeue_rollout(worker_id="w-dead")
    assert rollout is not None
    say(rollout.attempt.attempt_id)
    listen()


async def write_group(path: str) -> None:
    """Many writes at once, some of them wrong; say which were acknowledged, and stay."""
    store = SQLiteStore(path)
    calls = []
    for number in range(150):
        calls.append(store.enqueue_rollout(number, rollout_id=f"ro-{number}"))
        calls.append(store.start_attempt("ro-nope"))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    say(json.dumps([answer.rollout_id for answer in answers if not isinstance(answer, Exception)]))
    listen()


async def write_life(path: str) -> None:
    """The whole life of some rollouts; then stay."""
    store = SQLiteStore(path)
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n, config=config) for n in range(4)])
    for status in ("succeeded", "failed"):
        claimed = await store.dequeue_rollout(worker_id="w-1")
        assert claimed is not None
        ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        await store.add_span(Span.from_attributes(attributes={"n": 1}, **ids))
        await store.complete_attempt(**ids, status=status, reward=0.5)
    say("done")
    listen()


async def watch(path: str) -> None:
    """Read all the time; say which numbers of rollouts were ever seen."""
    store, seen = SQLiteStore(path), set()
    say("ready")
    stopped = asyncio.ensure_future(asyncio.to_thread(listen))
    while not stopped.done():
        total = (await store.statistics())["total_rollouts"]
        found = len(await store.query_rollouts(limit=10_000))
        assert found >= total
        seen |= {total, found}
        await asyncio.sleep(0)
    say(json.dumps(sorted(seen)))
    await store.close()


async def lock(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("BEGIN IMMEDIATE")
    say("locked")
    listen()
    connection.execute("COMMIT")
    say("released")
    listen()


async def open_as_nobody(path: str) -> None:
    """Try to open the file as a user who may not."""
    become_nobody()
    try:
        SQLiteStore(path)
    except SharpenError as error:
        say(json.dumps([type(error).__name__, str(error)]))


def become_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


async def look_as_nobody(path: str) -> None:
    """Read the file, again and again, as a user who may not write."""
    become_nobody()
    store = SQLiteStore(path, read_only=True)
    for _ in range(3):
        page = await store.search_rollouts()
        say(json.dumps([rollout.rollout_id for rollout in page.items]))
        listen()


async def back_up(path: str, target: str) -> None:
    """Stop in the middle of a backup."""

    def stop(copy: object) -> None:
        say("copied, not yet checked")
        listen()

    backup.check_copy = stop
    backup.backup_store(path, target)


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))
