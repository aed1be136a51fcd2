"""The store in PostgreSQL: any number of processes and store servers may stand before one database.

Every method is a transaction of its own on one of a few connections, each with a thread: an event loop is never
blocked. Rows are locked one by one, so that methods wait for each other only where they touch the same rollout; claims
never do. An answer is given only once its write is durable in the sense of the server's `synchronous_commit`.
"""

import asyncio
import logging
import math
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import psycopg

from ...errors import StoreError, StoreUnavailableError, StoreWriteError
from ..base import check_number, check_seconds
from ..database import DatabaseStore
from ..lifecycle import Events
from ..opening import DatabaseAddress
from ..rules import StoreRules
from ..sql.tables import SQLRules
from .connection import Address, Query, Row, Session
from .listening import Listener, RemoteWaiters, own_share, tell_finished, wake
from .schema import open_schema
from .tables import PRUNED_AT_ONCE, PostgresTables
from .transactions import PostgresJob, TransactionPool, TransactionRunner

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two looks for what no message announced
LOOKED_AT = 200  # rollouts at the head of the queue
LOOKS_BETWEEN_FINISHES = 5
STARTING_PAUSE_SECONDS = 0.1


class PostgresRules(SQLRules):
    """The rules, and what the store itself wants to know or to write."""

    tables: PostgresTables

    def queue_places(self, limit: int) -> list[int]:
        return self.tables.queue_places(limit)


class PostgresStore(DatabaseStore):
    """A durable store in a PostgreSQL database. Several processes and store servers can use it at once.

    When the database cannot be written, calls raise `StoreWriteError`; spans and completions are buffered in memory
    and written as soon as possible.

    Args:
        database_url: `postgresql://user:password@host:5432/database`. The tables are in the first schema of the
            `search_path`; `?options=-csearch_path%3Dname` chooses another one.
        n_connections: The number of connections.
        busy_seconds: How long to try to reach and write the database before a call fails.
        max_kept_bytes: The size of the buffer for spans and completions.
        clock: The time in seconds since 1970.
        read_only: Whether to open the store for reading only; writes then raise `StoreWriteError`.
        expires_attempts: Whether this process applies leases and time-outs. Pass False if another process receives the
            heartbeats.
    """

    def __init__(
        self,
        database_url: str,
        *,
        n_connections: int = 8,
        busy_seconds: float = 10.0,
        max_kept_bytes: int = 64 * 2**20,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
        expires_attempts: bool = True,
    ) -> None:
        check_number("n_connections", n_connections, at_least=1)
        check_seconds("busy_seconds", busy_seconds)
        self.database = Address(database_url, busy_seconds=busy_seconds)
        super().__init__(
            f"the database {self.database.label}",
            clock=clock,
            max_kept_bytes=max_kept_bytes,
            read_only=read_only,
            expires_attempts=expires_attempts,
        )
        options = {"n_connections": n_connections, "busy_seconds": busy_seconds, "max_kept_bytes": max_kept_bytes}
        self._address = DatabaseAddress(database_url, options)
        self.busy_seconds = busy_seconds
        self._started = clock()
        self._kept_lock = threading.Lock()
        self._marks, self._mark_prefix = count(1), secrets.token_hex(5)
        self._expiring = threading.Lock()
        self._seen_places, self._looks, self._next_look = set[int](), 0, 0.0
        self._workers_waiting: RemoteWaiters = RemoteWaiters()
        self.listener = Listener(self.database, self._workers_waiting, self._finish_waiting, busy_seconds=busy_seconds)
        self._open()
        self._pool = _pool_of(self, int(n_connections))
        self._abandoned = weakref.finalize(self, _end, self._pool, self.listener)
        if not read_only:
            self._watchdog.start()

    def __repr__(self) -> str:
        return f"PostgresStore({self.database.label!r})"

    def _open(self) -> None:
        end = time.monotonic() + self.busy_seconds
        while True:
            try:
                connection = self.database.connect(
                    lock_seconds=max(self.busy_seconds, 60.0), read_only=self.is_read_only
                )
                with connection:
                    opened = open_schema(connection, self.database.label, read_only=self.is_read_only)
                break
            except psycopg.Error as error:
                if time.monotonic() < end and self.database.is_starting():
                    time.sleep(STARTING_PAUSE_SECONDS)
                    continue
                raise StoreUnavailableError(
                    f"cannot open the store in the database {self.database.label}: {self.database.words(error)}"
                ) from None
        self.store_id, self._schema_key = opened.store_id, opened.key

    # -- calls ---------------------------------------------------------------------------------------

    async def _read(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return await self._submit(PostgresJob(name, args, kwargs, is_read=True))

    async def _write(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_writable(name)
        job = PostgresJob(name, args, kwargs, is_read=False)
        job.takes_seat = name == "dequeue_many_rollouts" and self._workers_waiting.takes_seat()
        return await self._submit(job)

    async def _submit(self, job: PostgresJob) -> Any:
        job.loop = asyncio.get_running_loop()
        job.future = job.loop.create_future()
        self._hand_in(job)
        return await job.future

    def _read_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._wait_for(PostgresJob(name, args, kwargs, is_read=True))

    def _write_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_writable(name)
        return self._wait_for(PostgresJob(name, args, kwargs, is_read=False))

    def _wait_for(self, job: PostgresJob) -> Any:
        job.done = threading.Event()
        self._hand_in(job)
        job.done.wait()
        return job.answer()

    def _hand_in(self, job: PostgresJob) -> None:
        self._check_process()
        if not self._pool.submit(job):
            raise StoreError(f"the store in the database {self.database.label} is closed")

    async def prune(self, older_than: float) -> int:
        """Delete rollouts that finished more than `older_than` seconds ago, in batches; return how many."""
        pruned = 0
        while True:
            gone: int = await self._write("prune", older_than)
            pruned += gone
            if gone < PRUNED_AT_ONCE:
                return pruned

    # -- in the threads ------------------------------------------------------------------------------

    def _run(self, runner: TransactionRunner, job: PostgresJob) -> None:
        try:
            if not job.is_given_up():
                if self._kept.jobs and not job.is_read:
                    self._write_kept(runner, job)
                runner.check_worth_trying(job)
                job.result = runner.perform(job)
        except Exception as error:  # noqa: BLE001 - it is the answer of whoever waits for the job
            job.error = error
            if isinstance(error, StoreWriteError):
                with self._kept_lock:
                    self._kept.keep([job], error)
        finally:
            job.finish()

    def _write_kept_work(self) -> None:
        self._write_now("write_worker_times", {})

    def _write_kept(self, runner: TransactionRunner, before: PostgresJob) -> None:
        """Write what could not be written before; a part that is done already changes nothing."""
        with self._kept_lock:
            runner.check_worth_trying(before)
            for kept in self._kept.jobs:
                job = PostgresJob(kept.name, kept.args, kept.kwargs, is_read=False)
                job.began = -math.inf  # it is tried once: others wait meanwhile
                try:
                    runner.perform(job)
                except StoreError as error:
                    if isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                        kept.error = error  # nothing that comes later mends it
                        continue
                    log.debug("finished work stays buffered: %s", error)
                    return
                except Exception as error:  # noqa: BLE001 - refused, whatever it is: what comes after must not wait for it
                    kept.error = error
            self._kept.clear()

    def make_rules(self, session: Session) -> tuple[PostgresTables, StoreRules]:
        """The rules on a connection."""
        tables = PostgresTables(session, self._schema_key, self._worker_times)
        rules = PostgresRules(tables, clock=self._clock, name="PostgresStore", keeps_secrets=False)
        rules.started = self._started
        return tables, rules

    def new_mark(self) -> str:
        """What a transaction leaves in the rows that it writes: nobody else uses it."""
        return f"{self._mark_prefix}{next(self._marks):x}"

    def notifications(self, events: Events) -> list[Query]:
        """Return the notifications for other stores about a transaction, once it is durable."""
        found: list[Query] = []
        if events.queued:
            found.append(wake(self.listener.name, events.queued))
        if events.finished:
            found.append(tell_finished(self.listener.name, events.finished))
        return found

    def settle(self, events: Events, answers: Sequence[list[Row]]) -> None:
        """A transaction is durable: wake those in this store who wait for what it brought."""
        if events.queued and answers:
            self._workers_waiting.hand_on(self._workers_waiting.wake_seated(own_share(answers[0])))
        if events.finished:
            self._finish_waiting.finished(events.finished)
        if events.deadline < math.inf:
            self._watchdog.look_at(events.deadline)

    # -- others and time -----------------------------------------------------------------------------

    def _poll_seconds(self) -> float | None:
        return LOOK_SECONDS

    def _look_around(self) -> None:
        """Write what had to wait, and find what no message announced."""
        if self._is_closing or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS * 0.9
        self._looks += 1
        if len(self._finish_waiting) and (self.is_read_only or self._looks % LOOKS_BETWEEN_FINISHES == 0):
            self._finish_waiting.wake_all()
        if self.is_read_only:
            return
        if self._kept.jobs:
            self._write_kept_work()
        self._write_worker_times()
        if len(self._workers_waiting):
            self._look_at_queue()
        self._look_at_next_deadline()

    def _look_at_queue(self) -> None:
        """Rollouts that have waited since the last look although somebody waits for work: a wake-up was lost."""
        places = set(self._read_now("queue_places", LOOKED_AT))
        if overlooked := len(places & self._seen_places):
            self._workers_waiting.wake(overlooked)
        self._seen_places = places

    def expire(self) -> int:
        with self._expiring:  # what the watchdog is about to apply is passed over, and has to be there on return
            return super().expire()

    # -- the end -------------------------------------------------------------------------------------

    def _close_connections(self) -> None:
        self._write_what_is_left()
        self._is_closed = True
        self._abandoned.detach()
        self.listener.stop()
        self._pool.stop()

    def address(self) -> DatabaseAddress | None:
        return self._address if self._can_be_opened_elsewhere(PostgresStore) else None


def _pool_of(store: PostgresStore, size: int) -> TransactionPool:
    """Threads that do not keep the store: one that nobody has any more ends, with all that is its."""
    hooks, run = weakref.proxy(store), weakref.WeakMethod(store._run)

    def run_in(runner: TransactionRunner, job: PostgresJob) -> None:
        if (alive := run()) is not None:
            alive(runner, job)

    return TransactionPool(size, make_runner=lambda: TransactionRunner(hooks), run=run_in)


def _end(pool: TransactionPool, listener: Listener) -> None:
    listener.end()
    pool.end()
