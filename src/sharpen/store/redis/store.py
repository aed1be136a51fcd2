"""The store in Redis: any number of processes and store servers may stand before one, each with its own object.

Nobody locks. Rules run here on what was read, and a script applies their changes where nothing of that has changed
meanwhile (see `session`); a process that dies or sleeps in the middle leaves nothing behind and stops nobody.
"""

import asyncio
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import StoreError, StoreFileError, StoreWriteError
from ..base import LightningStoreCapabilities
from ..jobs import Job, KeptWork
from ..lifecycle import Events
from ..local import LocalStore, Waiter
from ..opening import DatabaseAddress
from ..rules import StoreRules
from .bodies import Bodies, ChangedMeanwhileError
from .connection import Address, Connection
from .listening import News
from .opening import check_prefix, check_rights, check_server, durability, open_store
from .session import Session
from .tables import RedisTables
from .writer import Writer

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
READ_TRIES = 5
IN_OTHER_HANDS_SECONDS = 0.05


class RedisLightningStore(LocalStore):
    """A store in Redis 6.2 or newer. Several processes and store servers can use it at once.

    What a crash of the server would lose is logged at the start and described in `durability`. When the server cannot
    be written, calls raise `StoreWriteError`; spans and completions are buffered in memory and written as soon as
    possible.

    Args:
        url: `redis://user:password@host:6379/0`, `rediss://…` for TLS or `unix://…` for a socket.
        thread_safe: Whether the store can be used from several threads. With False it belongs to one thread, which is
            faster if the server is near.
        prefix: The name of the store; its keys begin with `{prefix}:`.
        busy_seconds: How long to try to reach and write the server before a call fails.
        max_kept_bytes: The size of the buffer for spans and completions.
        clock: The time in seconds since 1970.
        read_only: Whether to open the store for reading only; writes then raise `StoreWriteError`.
        expires_attempts: Whether this process applies leases and time-outs. Pass False if another process receives the
            heartbeats.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        thread_safe: bool = True,
        prefix: str = "sharpen",
        busy_seconds: float = 10.0,
        max_kept_bytes: int = 64 * 2**20,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
        expires_attempts: bool = True,
    ) -> None:
        super().__init__(clock=clock)
        self._expires_attempts = expires_attempts
        options = {
            "thread_safe": thread_safe,
            "prefix": prefix,
            "busy_seconds": busy_seconds,
            "max_kept_bytes": max_kept_bytes,
        }
        self._address = DatabaseAddress(url, options)
        self.prefix = check_prefix(prefix)
        self._connection = Connection(Address(url), prefix, busy_seconds=busy_seconds)
        self._thread_safe, self._is_read_only, self._is_closed = thread_safe, read_only, False
        self._kept = KeptWork(max_kept_bytes)
        self._readers: deque[tuple[RedisTables, StoreRules]] = deque()
        self._write_lock = threading.Lock()
        self._next_look = 0.0
        self._pid = os.getpid()
        try:
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def _open(self) -> None:
        connection = self._connection
        check_server(connection)
        if not self._is_read_only:
            check_rights(connection)
        self.store_id = open_store(connection, read_only=self._is_read_only)
        self.durability, is_bad = durability(connection)
        log.log(logging.WARNING if is_bad else logging.INFO, "%s", self.durability)
        self._bodies = Bodies(connection)
        self._news = News(connection, self._finish_waiting, self._watchdog)
        self._workers_waiting = self._news.line
        self._session = Session(connection, self._make_tables(), self._make_ledger)
        self._writer = Writer(_weakly(self._commit))
        self._end = weakref.finalize(self, _end, connection, self._writer, self._news)
        if not self._is_read_only:
            self._look_at_next_deadline()
            self._watchdog.start()

    def _make_tables(self) -> RedisTables:
        line = self._news.line
        return RedisTables(self._connection, self._bodies, listener=self._news.name, seats=lambda: len(line))

    def _make_ledger(self, tables: RedisTables) -> StoreRules:
        return StoreRules(tables, clock=self._clock, name="RedisLightningStore", keeps_secrets=False)

    def __repr__(self) -> str:
        return f"RedisLightningStore({self._connection.address.text!r}, prefix={self.prefix!r})"

    @property
    def is_read_only(self) -> bool:
        """Whether the store was opened for reading only."""
        return self._is_read_only

    @property
    def kept_bytes(self) -> int:
        """The bytes of finished work buffered in memory because the server cannot be written."""
        return self._kept.size

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": self._thread_safe, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    def address(self) -> DatabaseAddress | None:
        return self._address if self._can_be_opened_elsewhere(RedisLightningStore) else None

    # -- reading -------------------------------------------------------------------------------------

    async def _read(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if self._thread_safe:
            return await asyncio.to_thread(self._read_now, name, *args, **kwargs)
        return self._read_now(name, *args, **kwargs)

    def _read_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_open()
        self._news.before_reading()
        try:
            tables, ledger = self._readers.pop()
        except IndexError:
            tables = self._make_tables()
            ledger = self._make_ledger(tables)
        try:
            return _read_whole(tables, lambda: getattr(ledger, name)(*args, **kwargs))
        finally:
            tables.forget()
            self._readers.append((tables, ledger))

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(f"{self!r} was opened in another process: open it again in process {os.getpid()}")
        if self._is_closed:
            raise StoreError(f"{self!r} is closed")
        self._check_whole()

    # -- writing -------------------------------------------------------------------------------------

    async def _write(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_writable(name)
        if name == "prune":  # its steps are whole by themselves, and hold up nobody
            return await self._read(name, *args, **kwargs)
        self._check_open()
        job = Job(name, args, kwargs)
        if self._thread_safe:
            return await self._writer.write(job)
        self._commit([job])
        return job.answer()

    def _write_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_writable(name)
        self._check_open()
        job = Job(name, args, kwargs)
        self._commit([job])
        return job.answer()

    def _check_writable(self, name: str) -> None:
        if self._is_read_only:
            raise StoreWriteError(f"{name} writes, but {self!r} was opened with read_only=True: open it without that")

    def _commit(self, jobs: Sequence[Job]) -> None:
        self._news.before_claiming()
        with self._write_lock:
            try:
                events = self._session.transact([*self._kept.jobs, *jobs])
                if self._kept.jobs:
                    self._kept.clear()
            except StoreWriteError as error:
                self._kept.keep(jobs, error)
                for job in jobs:
                    job.error = error
                return
        self._announce(events)

    def _announce(self, events: Events) -> None:
        """Those who wait hear of it from Redis, here as everywhere; the watchdog is our own."""
        self._watchdog.look_at(events.deadline)

    # -- others and time -----------------------------------------------------------------------------

    async def _woken(self, waiter: Waiter, seconds: float) -> bool:
        self._watchdog.start()  # a store that is only read needs it only for its look around
        return await super()._woken(waiter, seconds)

    def _poll_seconds(self) -> float | None:
        return LOOK_SECONDS

    def _look_around(self) -> None:
        """Hand on wake-ups and, once a second, write what had to be kept and catch up on what no message told."""
        if self._is_closed:
            return
        self._news.wake_elsewhere()
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS * 0.9
        if self._kept.jobs:
            self._commit([])
        key = self._connection.key
        store_id, queued, finish = self._connection.at_once(
            ("HGET", key("meta"), "store_id"), ("ZCARD", key("queued")), ("HGET", key("totals"), "finish")
        )
        self._check_same(store_id)
        self._news.catch_up(queued, int(finish or 0))
        if not self._is_read_only:
            self._look_at_next_deadline()

    def _check_same(self, store_id: bytes | None) -> None:
        """A server that was restarted without its log, or emptied by hand, has another store, or none."""
        if store_id is not None and store_id.decode() == self.store_id:
            return
        if self._is_read_only and store_id is None:
            return  # whoever writes there says what happened
        raise StoreFileError(
            f"{self!r} has lost its data: Redis was flushed, or restarted without its append-only file; start it with "
            "--appendonly yes to keep the data"
        )

    def _look_at_next_deadline(self) -> None:
        deadline = self._next_deadline()
        if deadline is not None:
            self._watchdog.look_at(deadline)

    def _next_deadline(self) -> float | None:
        found: float | None = self._read_now("next_deadline")
        # One that is over and still there is in somebody else's hands: there is no hurry.
        return None if found is None else max(found, self._clock() + IN_OTHER_HANDS_SECONDS)

    # -- the end -------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._is_closed:
            return
        await super().close()
        await asyncio.to_thread(self._close_now)

    def _close_now(self) -> None:
        self._writer.stop()
        if self._kept.jobs:
            self._commit([])
        if self._kept.jobs:
            log.error(
                "lost %d bytes of finished work: the store was closed before they could be written", self._kept.size
            )
        self._is_closed = True
        self._end()


def _read_whole(tables: RedisTables, read: Callable[[], Any]) -> Any:
    """Read again where something has changed between two questions."""
    for is_last in (False,) * (READ_TRIES - 1) + (True,):
        tables.forget()
        try:
            return read()
        except ChangedMeanwhileError as error:
            if is_last:
                raise StoreError(f"gave up after {READ_TRIES} reads of data that kept changing: {error}") from None
    return None


def _weakly(method: Callable[[Sequence[Job]], None]) -> Callable[[Sequence[Job]], None]:
    """A call that keeps nothing alive: the thread of a store must not keep the store."""
    found = weakref.WeakMethod(method)

    def call(jobs: Sequence[Job]) -> None:
        if (alive := found()) is not None:
            alive(jobs)

    return call


def _end(connection: Connection, writer: Writer, news: News) -> None:
    writer.stop()
    news.stop()
    connection.close()
