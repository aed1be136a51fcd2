"""A scene of processes that are killed with SIGKILL at random moments, and the checks that nothing was lost.

Some store servers before one database, several workers and one producer take part, each a process of its own; the
database is one of them where it is a server. Workers and producer note what was acknowledged to them in files, and
the notes are compared with the store.
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

from sharpen.store import LightningStore
from sharpen.types import AttemptedRollout, Rollout

from .crash_worker import read_acks
from .databases import Database
from .processes import Child, ServerProcess, eventually
from .wholeness import check_whole

WORKER = Path(__file__).with_name("crash_worker.py")
QUEUED = ("queuing", "requeuing")
ACTIVE = ("preparing", "running")
FINISHED = ("succeeded", "failed", "cancelled")


@dataclass
class Role:
    """A worker or the producer, over all of its lives."""

    name: str
    kind: str
    url: str
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
    """A database, the store servers before it, the workers and the producer, and what they did.

    Workers are spread over the servers; `direct` more of them open the database themselves.
    """

    def __init__(
        self, folder: Path, database: Database, *, servers: int = 1, workers: int, direct: int = 0, seed: int
    ) -> None:
        self.random = random.Random(seed)
        self.database = database
        self.spools = folder / "spool"
        self.stop = folder / "stop"
        self.servers = [ServerProcess(database.url) for _ in range(servers)]
        urls = [server.url for server in self.servers]
        places = [urls[n % servers] for n in range(workers)] + ["database"] * direct
        self.workers = [Role(f"w-{n}", "work", url, folder / f"w-{n}.acks") for n, url in enumerate(places)]
        self.roles = [*self.workers, Role("producer", "produce", urls[-1], folder / "producer.acks")]
        self.facts = Facts()
        self.kills = 0

    async def begin(self) -> None:
        """Start everything, and wait until everybody has been told something."""
        for server in self.servers:
            await server.start()
        for role in self.roles:
            self.start(role)
        await eventually(lambda: all(read_acks(role.acks) for role in self.roles))

    def start(self, role: Role) -> None:
        role.lives += 1
        arguments = (role.kind, role.url, role.acks, self.stop, role.name, str(self.random.random()))
        places = {"SHARPEN_SPOOL": str(self.spools), "SHARPEN_DATABASE_URL": self.database.url}
        role.process = Child(WORKER, *arguments, **places)

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
        for server in self.servers:
            server.kill()

    # -- killing -------------------------------------------------------------------------------------

    async def round(self) -> None:
        """At a random moment kill the database, servers, some of the others, or several, and start them again."""
        await asyncio.sleep(self.random.uniform(0.05, 0.8))
        roles = [role for role in self.roles if self.random.random() < 0.35]
        takes_database = self.database.server is not None and (self.kills == 0 or self.random.random() < 0.35)
        servers = [server for server in self.servers if self.random.random() < 0.7 / len(self.servers)]
        if not (roles or servers or takes_database):
            servers = self.servers
        if takes_database:
            await asyncio.to_thread(self.database.server.kill)
        for each in roles:
            self.kill(each)
        for each in servers:
            each.kill()
        self.kills += len(servers) + takes_database
        if takes_database:
            await asyncio.sleep(self.random.uniform(0, 0.3))
            await asyncio.to_thread(self.database.server.start)
        if takes_database or servers:
            await self.check_database()
        for each in roles:
            self.start(each)
        for each in servers:
            await each.start()

    async def run_down(self) -> None:
        """No more killing: let everything finish and the processes end by themselves."""
        self.stop.touch()
        await eventually(lambda: not any(role.process.is_alive for role in self.roles))
        assert [role.process.wait() for role in self.roles] == [0] * len(self.roles)

    # -- checking ------------------------------------------------------------------------------------

    async def check_database(self) -> None:
        """Open what the killed ones left, and compare it with what was acknowledged until now; others may go on."""
        acknowledged = {role.name: read_acks(role.acks) for role in self.roles}
        store = self.database.open()
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
        before = (await store.query_rollouts()).items
        found = await _all_finished(store)
        order = [rollout.rollout_id for rollout in found]
        assert len(set(order)) == len(order), "a rollout finished twice"
        assert order[: len(self.facts.order)] == self.facts.order, "the order of completions changed"
        ends = {rollout.rollout_id: _end(rollout) for rollout in found}
        assert self.facts.ends.items() <= ends.items(), "a finished rollout changed"
        self.facts.order, self.facts.ends = order, ends
        after = (await store.query_rollouts()).items
        # What goes on meanwhile may finish rollouts, but never hide one.
        assert _finished(before) <= set(order) <= _finished(after)
        for rollout in after:
            assert rollout.status in (*QUEUED, *ACTIVE, *FINISHED)
            if rollout.status in ACTIVE:
                attempted = await store.get_rollout_by_id(rollout.rollout_id)
                assert isinstance(attempted, AttemptedRollout)
                assert attempted.status not in ACTIVE or attempted.attempt.status in ACTIVE

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
        await self.check_database()
        store = self.database.open()
        enqueued = [each for ack in read_acks(self.roles[-1].acks) if ack["what"] == "enqueue" for each in ack["ids"]]
        rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
        assert set(enqueued) <= set(rollouts)
        assert {rollout.status for rollout in rollouts.values()} == {"succeeded"}
        assert sorted(self.facts.order) == sorted(rollouts)
        for role in self.workers:
            for ack in read_acks(role.acks):
                await self.check_work(store, ack)
        await check_whole(store)
        await store.close()
        if self.database.server is None:
            _check_file(Path(self.database.url))


async def _all_finished(store: LightningStore) -> list[Rollout]:
    found, cursor = [], 0
    while (page := await store.finished_rollouts(after=cursor)).items:
        found += page.items
        cursor = page.cursor
    return found


def _finished(rollouts: list[Rollout]) -> set[str]:
    return {rollout.rollout_id for rollout in rollouts if rollout.status in FINISHED}


def _end(rollout: Rollout) -> tuple[object, ...]:
    return rollout.status, rollout.reward, rollout.end_time, rollout.resources_version


def _check_file(path: Path) -> None:
    """What is counted as it goes is what a count gives; bodies and attempts belong to rollouts."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        succeeded, attempts = connection.execute("SELECT succeeded, attempts FROM totals").fetchone()
        assert connection.execute("SELECT count(*), sum(attempts) FROM rollouts").fetchone() == (succeeded, attempts)
        old = connection.execute("SELECT count(*) FROM old_attempts").fetchone()[0]
        assert old + succeeded == attempts
        lost = "SELECT count(*) FROM spans WHERE number NOT IN (SELECT number FROM rollouts)"
        assert connection.execute(lost).fetchone() == (0,)


async def play(folder: Path, database: Database, *, seconds: float, **cast: int) -> Scene:
    """Kill and restart for some seconds; then let everything finish, and check it."""
    seed = int(os.environ.get("SHARPEN_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"SHARPEN_TEST_SEED={seed}")
    scene = Scene(folder, database, seed=seed, **cast)
    try:
        await scene.begin()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await scene.round()
        await scene.run_down()
        for server in scene.servers:
            server.kill()
        await scene.check_end()
    finally:
        scene.end()
    done, lives = len(scene.facts.order), sum(role.lives for role in scene.roles)
    print(f"{scene.kills} kills, {lives} processes, {done} rollouts")
    return scene
