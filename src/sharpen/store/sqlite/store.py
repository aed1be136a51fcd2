"""The durable store: one SQLite file in WAL mode, which several processes may open.

Each process writes through one connection. The first write of a tick of the event loop runs at once; further ones
of the same tick are committed together as a group, and so is everything that comes in while a commit is under
way. Small writes run in the caller's thread, since handing them to another one costs more than they do; large
ones, synced ones and those that have to wait for another process run in a thread. Readers stand beside the
writer, each on a connection of its own. An answer is given only once its write is committed.
"""

import asyncio
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from ...errors import InvalidInputError, StoreError, StoreFileError, StoreFullError, StoreWriteError
from ..database import DatabaseStore, Job
from ..lifecycle import Events
from ..opening import DatabaseAddress
from ..sql.tables import SQLRules
from .schema import ReadOnlyFile, check_file, connect, open_files, parse_path, prepare, read_store_id
from .tables import SQLiteTables

log = logging.getLogger(__name__)

INLINE_READ_ROWS = 200
INLINE_IN_A_TICK = 20  # then a task that only writes lets others have their turn
POLL_SECONDS = 0.05  # how often other processes' writes are looked for while someone waits
IDLE_POLL_SECONDS = 1.0
FULL_BYTES = 128 * 1024  # less than this is free: no room for the log and its index
FILE_LOOK_SECONDS = 1.0
LOOKS_UNTIL_GONE = 5  # in a row: a folder may be renamed and renamed back
CHECK_SECONDS = 2.0  # how long the file is checked for damage when it is closed


class _Busy(Exception):
    """Another process holds the write lock right now."""


class _Group(threading.local):
    """The writes of one thread's event loop that wait for their commit."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.jobs: list[Job] = []
        self.is_open = False
        self.owner: asyncio.Task[Any] | None = None
        self.inline_left = 0


class SQLiteStore(DatabaseStore):
    """A durable store in one SQLite file.

    When the file cannot be written, calls raise `StoreWriteError`; spans and completions are buffered in memory and
    written as soon as possible.

    Args:
        database_url: A path, or `sqlite:///PATH`. The file is created if it does not exist.
        synchronous: `"normal"` survives the crash of any process, `"full"` also a loss of power.
        busy_seconds: How long to wait for a lock that another process holds.
        max_kept_bytes: The size of the buffer for spans and completions.
        clock: The time in seconds since 1970.
        read_only: Whether to open the file for reading only, even while it is in use or in a read-only folder. It is
            not changed, not even to upgrade an older version, and writes raise `StoreWriteError`.
        expires_attempts: Whether this process applies leases and time-outs. Pass False if another process has the file
            open and receives the heartbeats.
    """

    __module__ = "sharpen.store.sqlite"  # where users import it from, and what configurations name

    def __init__(
        self,
        database_url: str | os.PathLike[str] = "sqlite:///sharpen.db",
        *,
        synchronous: Literal["normal", "full"] = "normal",
        busy_seconds: float = 10.0,
        max_kept_bytes: int = 64 * 2**20,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
        expires_attempts: bool = True,
    ) -> None:
        if synchronous not in ("normal", "full"):
            raise InvalidInputError(f"synchronous is {synchronous!r}: use 'normal' or 'full'")
        self.path = parse_path(database_url).absolute()  # the working directory may change later
        super().__init__(
            f"the store file {str(self.path)!r}",
            clock=clock,
            max_kept_bytes=max_kept_bytes,
            read_only=read_only,
            expires_attempts=expires_attempts,
        )
        self._synchronous = synchronous
        self._is_quick = synchronous == "normal"
        self._busy_seconds = busy_seconds
        self._write_lock = threading.Lock()
        self._group = _Group()
        self._readers: deque[tuple[SQLiteTables, SQLRules]] = deque()
        self._generation = 0
        self._open_file: tuple[int, int] | None = None
        self._next_file_look, self._looks_left = 0.0, LOOKS_UNTIL_GONE
        self._read_only = ReadOnlyFile(self.path, busy_seconds=busy_seconds) if read_only else None
        if self._read_only is None:
            check_file(self.path)
        with _file_errors(self.path):
            self._connection = self._connect()
            try:
                self._prepare()
                self._open_file = open_files.add(self.path)
                if self._read_only is None:
                    self._look_at_next_deadline()  # of processes that have died since
            except BaseException:
                self._close_readers()
                self._connection.close()  # leaves nothing beside a file that is refused
                if self._open_file is not None:
                    open_files.remove(self._open_file)
                raise
        if self._read_only is None:
            self._watchdog.start()

    def _connect(self) -> sqlite3.Connection:
        if self._read_only is not None:
            return self._read_only.connect()
        return connect(self.path, synchronous=self._synchronous, busy_seconds=self._busy_seconds)

    def _prepare(self) -> None:
        if self._read_only is not None:
            self.store_id = read_store_id(self._connection)
            self._seen_version = self._data_version()
            return
        self.store_id = prepare(self._connection, self.path)
        self._connection.execute("PRAGMA busy_timeout = 0")
        self._tables = SQLiteTables(self._connection, self._worker_times)
        self._writer = self._make_rules(self._tables)
        self._seen_version = self._data_version()

    def _make_rules(self, tables: SQLiteTables) -> SQLRules:
        return SQLRules(tables, clock=self._clock, name="SQLiteStore", keeps_secrets=False)

    # -- reading -------------------------------------------------------------------------------------

    async def _read(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if _is_small_read(name, args, kwargs):
            return self._read_now(name, *args, **kwargs)
        return await asyncio.to_thread(self._read_now, name, *args, **kwargs)

    def _read_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        for is_last in (False, False, True):
            try:
                with _file_errors(self.path), self._reader() as rules:
                    answer = getattr(rules, name)(*args, **kwargs)
            except StoreError as error:
                self._notice_damage(error, error.__cause__)
                if is_last or not self._refresh():
                    raise
            else:
                if is_last or not self._refresh():
                    break
        return answer

    @contextmanager
    def _reader(self) -> Iterator[SQLRules]:
        self._check_usable()
        self._refresh()
        generation = self._generation
        try:
            tables, rules = self._readers.pop()
        except IndexError:
            if not self._is_file_there():  # SQLite would make a new file in its place
                raise StoreWriteError(f"the store file {str(self.path)!r} is missing") from None
            tables = SQLiteTables(self._connect(), self._worker_times)
            rules = self._make_rules(tables)
        # One consistent view for a method that asks several questions.
        tables.connection.execute("BEGIN")
        try:
            yield rules
        finally:
            if tables.connection.in_transaction:  # an error may have ended it already
                tables.connection.execute("COMMIT")
            tables.forget()
            self._readers.append((tables, rules))
            if self._is_closed or generation != self._generation:
                self._close_readers()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreError(f"the store {str(self.path)!r} is closed")
        self._check_whole()

    def _refresh(self) -> bool:
        """Begin anew where a file that was taken to stand still has changed; whether it has."""
        if self._read_only is None or self._is_closed or not self._read_only.has_changed():
            return False
        with self._write_lock:
            self._generation += 1
            self._close_readers()
            self._connection.close()
            self._connection = self._connect()
            self._seen_version = -1
        return True

    # -- writing -------------------------------------------------------------------------------------

    async def _write(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_writable(name)
        job, group = Job(name, args, kwargs), self._group
        if not (self._is_quick and job.is_small() and self._is_alone(group)):
            return await self._join_group(job)
        try:
            self._commit([job], wait=False)
        except _Busy:
            return await self._join_group(job)
        return job.answer()

    def _is_alone(self, group: _Group) -> bool:
        """Whether this task is the only one that writes in this tick, so that there is nothing to group."""
        task = asyncio.current_task()
        if not group.is_open:
            group.is_open, group.owner, group.inline_left = True, task, INLINE_IN_A_TICK
            asyncio.get_running_loop().call_soon(self._close_group, group)
        group.inline_left -= 1
        return group.owner is task and not group.jobs and group.inline_left >= 0

    def group_writes(self) -> None:
        """Commit the writes of tasks that start in this tick together; call this after creating the tasks."""
        group = self._group
        if not group.is_open:
            group.is_open, group.owner = True, None
            asyncio.get_running_loop().call_soon(self._close_group, group)

    async def _join_group(self, job: Job) -> Any:
        loop, group = asyncio.get_running_loop(), self._group
        if group.loop is not loop:
            # An earlier loop of this thread may have ended in the middle of a commit: its group never closes.
            group.loop, group.jobs, group.is_open = loop, [], False
        job.future = loop.create_future()
        group.jobs.append(job)
        if not group.is_open:
            group.is_open = True
            loop.call_soon(self._close_group, group)
        return await job.future

    def _close_group(self, group: _Group) -> None:
        """The tick is over: commit what came in during it."""
        jobs, group.jobs, group.owner = group.jobs, [], None
        if not jobs:
            group.is_open = False
            return
        if self._is_quick and all(job.is_small() for job in jobs):
            try:
                self._commit_surely(jobs, wait=False)
            except _Busy:
                pass
            else:
                self._settle(jobs, group)
                return
        loop = asyncio.get_running_loop()
        committing = loop.run_in_executor(None, lambda: self._commit_surely(jobs, wait=True))
        committing.add_done_callback(lambda _: self._settle(jobs, group))

    def _settle(self, jobs: list[Job], group: _Group) -> None:
        for job in jobs:
            job.resolve()
        self._close_group(group)  # commits what came in meanwhile

    def _commit_surely(self, jobs: list[Job], *, wait: bool) -> None:
        """Like `_commit`, but what goes wrong is each job's own error."""
        try:
            self._commit(jobs, wait=wait)
        except _Busy:
            raise
        except BaseException as error:
            for job in jobs:
                job.error = error
            if not isinstance(error, Exception):
                raise

    def _write_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_writable(name)
        job = Job(name, args, kwargs)
        self._commit([job], wait=True)
        return job.answer()

    def _write_kept_work(self) -> None:
        self._commit([], wait=True)

    def _commit(self, jobs: list[Job], *, wait: bool) -> None:
        """Run all jobs in one transaction. A job that fails is undone alone; others keep their effect."""
        if not self._write_lock.acquire(blocking=wait):
            raise _Busy
        try:
            self._check_usable()
            if self._kept.jobs:
                events = self._transact([*self._kept.jobs, *jobs], wait=wait)
                self._kept.clear()
            else:
                events = self._transact(jobs, wait=wait)
        except StoreWriteError as error:
            self._kept.keep(jobs, error)
            for job in jobs:
                job.error = error
            return
        finally:
            self._write_lock.release()
        if not events.is_empty():
            self._announce(events)

    def _transact(self, jobs: list[Job], *, wait: bool) -> Events:
        execute = self._connection.execute
        self._begin(wait=wait)
        try:
            if len(jobs) == 1:
                self._run(jobs[0])
                self._tables.flush_sums()
                execute("COMMIT" if jobs[0].error is None else "ROLLBACK")
            else:
                for job in jobs:
                    execute("SAVEPOINT job")
                    self._run(job)
                    if job.error is not None:
                        execute("ROLLBACK TO job")
                    execute("RELEASE job")
                self._tables.flush_sums()
                execute("COMMIT")
        except BaseException as error:
            self._writer.take_events()
            self._tables.forget()
            self._tables.forget_sums()
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                translated = _translated(error, self.path)
                self._notice_damage(translated, error)
                raise translated from error
            raise
        return self._writer.take_events()

    def _notice_damage(self, error: StoreError, cause: BaseException | None) -> None:
        """A file that was found damaged is damaged for everybody, also for those who only wait."""
        if self._read_only is None and isinstance(error, StoreFileError) and _is_damage(cause):
            self._break(error)

    def _begin(self, *, wait: bool) -> None:
        """Open the transaction. Waiting is done here and not by SQLite, whose waits grow long and are unfair."""
        end = None
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise _translated(error, self.path) from error
                if not wait:
                    raise _Busy from None
                end = end or time.monotonic() + self._busy_seconds
                if time.monotonic() >= end:
                    raise StoreWriteError(
                        f"the store file {str(self.path)!r} has been locked by another process for "
                        f"{self._busy_seconds:g} s"
                    ) from error
                time.sleep(0.002)

    def _run(self, job: Job) -> None:
        """A refused request is the job's own answer; a failing file is everybody's."""
        if job.is_given_up():
            return
        tables, events = self._tables, self._writer.events
        mark = events.mark()
        tables.begin()
        try:
            job.result = getattr(self._writer, job.name)(*job.args, **job.kwargs)
        except (sqlite3.Error, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a request raises is its own answer
            job.error = error
            tables.undo()
            events.back_to(mark)
        else:
            tables.flush()

    # -- others and time -----------------------------------------------------------------------------

    def _poll_seconds(self) -> float | None:
        return POLL_SECONDS if len(self._workers_waiting) or len(self._finish_waiting) else IDLE_POLL_SECONDS

    def _look_around(self) -> None:
        """Wake those who wait when another process wrote, and write what had to be kept."""
        if self._is_closed:
            return
        self._refresh()
        if time.monotonic() >= self._next_file_look:
            self._next_file_look = time.monotonic() + FILE_LOOK_SECONDS
            self._look_at_file()
        if self._kept.jobs:
            self._write_kept_work()
        self._write_worker_times()
        version = self._data_version()
        if version != self._seen_version:
            self._seen_version = version
            self._workers_waiting.wake(self._read_now("queue_length"))
            self._finish_waiting.wake_all()
            if self._read_only is None:  # otherwise whoever writes applies leases and time-outs
                self._look_at_next_deadline()

    def _is_file_there(self) -> bool:
        """Return whether the path leads to the open file; where that cannot be said, as on a network disk, raise."""
        if self._read_only is not None or self._open_file is None:
            return True
        try:
            return open_files.is_at(self.path, self._open_file)
        except OSError as error:
            raise StoreWriteError(f"the store file {str(self.path)!r} is temporarily inaccessible: {error}") from error

    def _look_at_file(self) -> None:
        """Notice a file that is gone: SQLite continues to write into it, but nobody would find it at its path."""
        if self._is_file_there():
            self._looks_left = LOOKS_UNTIL_GONE
            return
        self._looks_left -= 1
        if self._looks_left > 0:
            raise StoreWriteError(f"the store file {str(self.path)!r} is missing")
        error = StoreFileError(
            f"the store file {str(self.path)!r} was moved, deleted or replaced while in use: move it back or restore a "
            "backup, then open the store again"
        )
        self._break(error)
        raise error

    def _is_surely_there(self) -> bool:
        """Whether the path leads to the open file, at the end. A store is closed also where nobody can say that."""
        try:
            while not self._is_file_there():
                try:
                    self._look_at_file()
                except StoreWriteError:
                    time.sleep(FILE_LOOK_SECONDS)
        except StoreError as error:
            if self._broken is None:
                log.warning("%s was closed without a check for damage: %s", self._place, error)
            return False
        return True

    def _roll_back(self) -> None:
        """End the transaction, unless SQLite has done so itself: on a full disk it does."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _data_version(self) -> int:
        """Changes when a connection other than this process's writer has committed."""
        with self._write_lock:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _close_connections(self) -> None:
        self._write_what_is_left()
        is_there = self._is_surely_there()
        with self._write_lock:
            self._is_closed = True
            self._close_readers()
            if self._read_only is None:
                self._write_back_log()
            self._connection.close()
            if self._read_only is None and self._broken is None and is_there:
                self._check_for_damage()
            if self._open_file is not None:
                open_files.remove(self._open_file)
        self._check_whole()

    def _check_for_damage(self) -> None:
        """Look through the file with fresh eyes: a connection keeps pages, and does not see what happened to them."""
        try:
            with closing(self._connect()) as connection:
                end = time.monotonic() + CHECK_SECONDS
                connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
                found = [row[0] for row in connection.execute("PRAGMA quick_check(1)")]
        except sqlite3.Error as error:
            if not _is_damage(error):
                return  # it takes too long, or another process is at it
            found = [str(error)]
        if found != ["ok"]:
            self._break(StoreFileError(f"the store file {str(self.path)!r} is damaged ({found[0]}): restore a backup"))

    def _write_back_log(self) -> None:
        """SQLite does it by itself only where nobody else, not even a reader, has the file open."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            log.info("the write-ahead log of the store could not be merged and stays beside the file: %s", error)

    def _close_readers(self) -> None:
        while self._readers:
            self._readers.pop()[0].connection.close()

    def address(self) -> DatabaseAddress | None:
        if not self._can_be_opened_elsewhere(SQLiteStore):
            return None
        options = {
            "synchronous": self._synchronous,
            "busy_seconds": self._busy_seconds,
            "max_kept_bytes": self._kept.max_bytes,
        }
        return DatabaseAddress(str(self.path), options)


def _is_small_read(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name.startswith("query_") or name == "finished_rollouts":
        limit = kwargs.get("limit", args[1] if name == "finished_rollouts" and len(args) > 1 else -1)
        return isinstance(limit, int) and 0 <= limit <= INLINE_READ_ROWS
    return name != "search_rollouts" and (name != "unfinished" or len(args[0]) <= INLINE_READ_ROWS)


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _is_damage(error: BaseException | None) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _translated(error: sqlite3.Error, path: os.PathLike[str]) -> StoreError:
    """The same in our words. A full disk or a lock may pass; a damaged file does not."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_disk_full(path)):
        return StoreFullError(
            f"the disk of the store file {os.fspath(path)!r} is full ({error}): free some space, then it continues"
        )
    passing = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    if code in (*passing, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return StoreWriteError(f"the store file {os.fspath(path)!r} cannot be written at the moment: {error}")
    return StoreFileError(f"the store file {os.fspath(path)!r} cannot be used: {error}")


def _is_disk_full(path: os.PathLike[str]) -> bool:
    """Whether there is no room for the log of a store: its shared memory then fails as an I/O error."""
    try:
        return shutil.disk_usage(Path(path).parent).free < FULL_BYTES
    except OSError:
        return False


@contextmanager
def _file_errors(path: os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(error, path) from error
