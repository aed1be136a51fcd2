"""The store server and its workers are killed with SIGKILL at random moments, again and again.

Nothing that was acknowledged is lost, every rollout finishes once, and what a dead worker held is tried again.
One server, several workers and one producer take part, each a process of its own; they note what was acknowledged
to them in files, and the notes are compared with the store.
"""

import asyncio
import os
import random
import sqlite3
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sharpen.store import LightningStore, LightningStoreClient, SQLiteStore
from sharpen.types import AttemptedRollout, Rollout

from .crash_worker import CONFIG, read_acks
from .processes import Child, ServerProcess, child, eventually, server_process
from .scenes import PATIENCE_SECONDS

WORKER = Path(__file__).with_name("crash_worker.py")
HOLDER = Path(__file__).with_name("spool_child.py")
QUEUED = ("queuing", "requeuing")
ACTIVE = ("preparing", "running")
FINISHED = ("succeeded", "failed", "cancelled")


@dataclass
class Role:
    """A worker or the producer, over all of its lives."""

    name: str
    kind: str
    acks: Path
    process: Child | None = None
    lives: int = 0


@dataclass
class Facts:
    """What the store has shown once and must show for ever."""

    order: list[str] = field(default_factory=list)
    ends: dict[str, tuple[object, ...]] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Scene:
    """A server, its workers and its producer, and what they did."""

    def __init__(self, folder: Path, *, workers: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = folder / "store.db"
        self.spools = folder / "spool"
        self.stop = folder / "stop"
        self.server = ServerProcess(self.path)
        self.workers = [Role(f"w-{n}", "work", folder / f"w-{n}.acks") for n in range(workers)]
        self.roles = [*self.workers, Role("producer", "produce", folder / "producer.acks")]
        self.facts = Facts()
        self.kills = 0

    def start(self, role: Role) -> None:
        role.lives += 1
        arguments = (role.kind, self.server.url, role.acks, self.stop, role.name, str(self.random.random()))
        role.process = Child(WORKER, *arguments, SHARPEN_SPOOL=str(self.spools))

    def kill(self, role: Role) -> None:
        assert role.process is not None
        assert role.process.is_alive, f"{role.name} ended by itself"
        role.process.kill()
        self.kills += 1

    def end(self) -> None:
        """Nothing outlives the test."""
        for role in self.roles:
            if role.process is not None:
                role.process.kill()
        self.server.kill()

    # -- killing -------------------------------------------------------------------------------------

    async def round(self) -> None:
        """At a random moment kill the server, some of the others, or both, and start them again."""
        await asyncio.sleep(self.random.uniform(0.05, 0.8))
        victims = [role for role in self.roles if self.random.random() < 0.35]
        takes_server = self.random.random() < 0.7 or not victims
        for role in victims:
            self.kill(role)
        if takes_server:
            self.server.kill()
            self.kills += 1
            await self.check_file()
        for role in victims:
            self.start(role)
        if takes_server:
            await self.server.start()

    async def run_down(self) -> None:
        """No more killing: let everything finish and the processes end by themselves."""
        self.stop.touch()
        await eventually(lambda: not any(role.process.is_alive for role in self.roles))
        assert [role.process.wait() for role in self.roles] == [0] * len(self.roles)

    # -- checking ------------------------------------------------------------------------------------

    async def check_file(self) -> None:
        """Open the file that a killed server left, and compare it with what was acknowledged until now."""
        acknowledged = {role.name: read_acks(role.acks) for role in self.roles}
        store = SQLiteStore(self.path)
        try:
            await self.check_rollouts(store)
            for name, acks in acknowledged.items():
                for ack in acks[self.facts.checked[name] :]:
                    await self.check_ack(store, ack)
                self.facts.checked[name] = len(acks)
        finally:
            await store.close()

    async def check_rollouts(self, store: LightningStore) -> None:
        """Every rollout is in exactly one place, and those that had finished are as they were."""
        found = await _all_finished(store)
        order = [rollout.rollout_id for rollout in found]
        assert len(set(order)) == len(order), "a rollout finished twice"
        assert order[: len(self.facts.order)] == self.facts.order, "the order of completions changed"
        ends = {rollout.rollout_id: _end(rollout) for rollout in found}
        assert self.facts.ends.items() <= ends.items(), "a finished rollout changed"
        self.facts.order, self.facts.ends = order, ends
        everything = (await store.query_rollouts()).items
        for rollout in everything:
            assert rollout.status in (*QUEUED, *ACTIVE, *FINISHED)
            assert (rollout.status in FINISHED) == (rollout.rollout_id in ends)
            if rollout.status in ACTIVE:
                attempted = await store.get_rollout_by_id(rollout.rollout_id)
                assert isinstance(attempted, AttemptedRollout)
                # The watchdog may have put it back into the queue by now.
                assert attempted.status in QUEUED or attempted.attempt.status in ACTIVE
        statistics = await store.statistics()
        assert statistics["total_rollouts"] == len(everything) == sum(statistics["rollouts_by_status"].values())

    async def check_ack(self, store: LightningStore, ack: dict) -> None:
        """One acknowledged write is there."""
        if ack["what"] == "enqueue":
            found = await store.query_rollouts(rollout_id_in=ack["ids"])
            assert sorted(rollout.rollout_id for rollout in found) == ack["ids"]
            assert all(rollout.input == {"id": rollout.rollout_id} for rollout in found)
        elif ack["what"] == "resources":
            update = await store.get_resources_by_id("rs-crash", ack["version"])
            assert update is not None
            assert update.resources["prompt"].template == ack["template"]
        elif ack["stored"]:
            await self.check_work(store, ack)

    async def check_work(self, store: LightningStore, ack: dict) -> None:
        if ack["what"] == "spans":
            spans = await store.query_spans(ack["rollout_id"], ack["attempt_id"])
            assert set(ack["spans"]) <= {span.span_id for span in spans}, f"lost spans: {ack}"
        elif ack["status"] == "succeeded":
            rollout = await store.get_rollout_by_id(ack["rollout_id"])
            assert isinstance(rollout, AttemptedRollout)
            shown = (rollout.status, rollout.attempt.attempt_id, rollout.attempt.status, rollout.reward)
            assert shown == ("succeeded", ack["attempt_id"], "succeeded", ack["reward"]), f"lost completion: {ack}"

    async def check_end(self) -> None:
        """When all is done: everything acknowledged is there, also what went through spools."""
        leftovers = list(self.spools.glob("*")) if self.spools.exists() else []
        assert leftovers == [], "finished work is left in spools"
        await self.check_file()
        store = SQLiteStore(self.path)
        enqueued = [each for ack in read_acks(self.roles[-1].acks) if ack["what"] == "enqueue" for each in ack["ids"]]
        rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
        assert set(enqueued) <= set(rollouts)
        assert {rollout.status for rollout in rollouts.values()} == {"succeeded"}
        assert sorted(self.facts.order) == sorted(rollouts)
        for role in self.workers:
            for ack in read_acks(role.acks):
                await self.check_work(store, ack)
        await store.close()
        with closing(sqlite3.connect(self.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            _check_tables(connection)


async def _all_finished(store: LightningStore) -> list[Rollout]:
    found, cursor = [], 0
    while (page := await store.finished_rollouts(after=cursor)).items:
        found += page.items
        cursor = page.cursor
    return found


def _end(rollout: Rollout) -> tuple[object, ...]:
    return rollout.status, rollout.reward, rollout.end_time, rollout.resources_version


def _check_tables(connection: sqlite3.Connection) -> None:
    """What is counted as it goes is what a count gives; bodies and attempts belong to rollouts."""
    succeeded, attempts = connection.execute("SELECT succeeded, attempts FROM totals").fetchone()
    assert connection.execute("SELECT count(*), sum(attempts) FROM rollouts").fetchone() == (succeeded, attempts)
    old = connection.execute("SELECT count(*) FROM old_attempts").fetchone()[0]
    assert old + succeeded == attempts
    lost = "SELECT count(*) FROM spans WHERE number NOT IN (SELECT number FROM rollouts)"
    assert connection.execute(lost).fetchone() == (0,)


async def play(folder: Path, *, seconds: float, workers: int) -> Scene:
    seed = int(os.environ.get("SHARPEN_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"SHARPEN_TEST_SEED={seed}")
    scene = Scene(folder, workers=workers, seed=seed)
    try:
        await scene.server.start()
        for role in scene.roles:
            scene.start(role)
        await eventually(lambda: all(read_acks(role.acks) for role in scene.roles))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await scene.round()
        await scene.run_down()
        scene.server.kill()
        await scene.check_end()
    finally:
        scene.end()
    done, lives = len(scene.facts.order), sum(role.lives for role in scene.roles)
    print(f"{scene.kills} kills, {lives} processes, {done} rollouts")
    return scene


async def test_nothing_is_lost_when_server_and_workers_are_killed(tmp_path):
    scene = await play(tmp_path, seconds=8, workers=2)
    assert scene.kills >= 3
    assert len(scene.facts.order) >= 20


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_is_lost_when_server_and_workers_are_killed_for_minutes(tmp_path):
    scene = await play(tmp_path, seconds=150, workers=4)
    assert scene.kills >= 30
    assert len(scene.facts.order) >= 200


async def test_what_a_killed_worker_held_is_tried_again(tmp_path):
    """One rollout, one worker that dies with it, one that finishes it; the server dies in between."""
    spool = {"SHARPEN_SPOOL": str(tmp_path / "spool")}
    with server_process(tmp_path / "store.db") as server:
        await server.start()
        client = LightningStoreClient(server.url, spool_folder=tmp_path / "spool")
        await client.add_resources({})
        rollout = await client.enqueue_rollout("task", config=CONFIG)
        with child(HOLDER, server.url, **spool) as holder:
            assert await holder.hear() == rollout.rollout_id
            server.kill()
            holder.kill()
        await server.start()
        with child(WORKER, "work", server.url, tmp_path / "acks", tmp_path / "stop", "w-next", "1", **spool) as worker:
            (finished,) = await client.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=PATIENCE_SECONDS)
            assert finished.status == "succeeded"
            attempts = [(each.status, each.worker_id) for each in await client.query_attempts(rollout.rollout_id)]
            assert attempts == [("unresponsive", "w-child"), ("succeeded", "w-next")]
            (tmp_path / "stop").touch()
            assert await asyncio.to_thread(worker.wait) == 0
        await client.close()
        assert await server.stop() == 0
