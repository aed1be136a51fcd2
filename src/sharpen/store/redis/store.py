"""The store in Redis: any number of processes and store servers may stand before one, each with its own object.

Nobody locks. Rules run here on what was read, and a script applies their changes where nothing of that has changed
meanwhile; a process that dies or sleeps in the middle leaves nothing behind and stops nobody. Methods that come in
while a change is on its way leave together as the next one, with two trips whatever their number: one for what they
will ask, one for what they changed. Where others were faster, everything is read and run again. A change carries the
writer's name and a number, and Redis remembers the last number of every writer: a change whose answer was lost can be
sent again without being applied twice.
"""

import asyncio
import logging
import random
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import InvalidInputError, StoreError, StoreFileError, StoreUnavailableError, StoreWriteError
from ...types import Span
from ..base import LightningStoreCapabilities, new_id
from ..database import DatabaseStore, Job, named_rollouts
from ..lifecycle import Events
from ..opening import DatabaseAddress
from ..rules import StoreRules
from .connection import Address, Connection, check_rights, check_server, durability
from .listening import Notifications
from .records import ChangedMeanwhileError, SharedTasks, is_text
from .scripts import COMMIT, ROWS, WORKER
from .tables import RedisTables

log = logging.getLogger(__name__)

LAYOUT = 1  # of the keys, see `scripts`
LOOK_SECONDS = 1.0
READ_TRIES = 5
MAX_TOGETHER = 64
LONGEST_PAUSE = 0.02  # between two tries, where others were faster
HELD_SECONDS, HELD_PAUSE = 0.1, 0.003  # far longer than others hold anything, unless they are dead
MOST_CLAIMS = 1_000_000
CLAIM = "dequeue_many_rollouts"
_ALONE = frozenset({"add_resources", "update_resources"})  # what others of the same group would not see


class RedisLightningStore(DatabaseStore):
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
        if not isinstance(prefix, str) or not re.fullmatch(r"[^\s{}]{1,100}", prefix):
            raise InvalidInputError(
                f"prefix is {prefix!r}: use a string of 1 to 100 characters without spaces and braces"
            )
        self.prefix, self._thread_safe = prefix, thread_safe
        options = {"thread_safe": thread_safe, "prefix": prefix}
        options |= {"busy_seconds": busy_seconds, "max_kept_bytes": max_kept_bytes}
        self._address = DatabaseAddress(url, options)
        self._connection = Connection(Address(url), prefix, busy_seconds=busy_seconds)
        super().__init__(
            f"the store under the prefix {prefix!r} in {self._connection.place}",
            clock=clock,
            max_kept_bytes=max_kept_bytes,
            read_only=read_only,
            expires_attempts=expires_attempts,
        )
        self._readers: deque[tuple[RedisTables, StoreRules]] = deque()
        self._write_lock = threading.Lock()
        self._next_look = 0.0
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
        self.store_id = self._open_layout()
        self.durability, is_bad = durability(connection)
        log.log(logging.WARNING if is_bad else logging.INFO, "%s", self.durability)
        self._tasks = SharedTasks(connection)
        self._notifications = Notifications(connection, self._finish_waiting, self._watchdog)
        self._workers_waiting = self._notifications.workers
        self._transactions = Transactions(connection, *self._make_rules())
        self._writer = Writer(_weakly(self._commit))
        self._end = weakref.finalize(self, _end, connection, self._writer, self._notifications)
        if not self._is_read_only:
            self._look_at_next_deadline()
            self._watchdog.start()

    def _open_layout(self) -> str:
        """Return the id of the store under the prefix, made where there is none; refuse a foreign or newer one."""
        at_once, key = self._connection.at_once, self._connection.key("meta")
        where = f"{self.prefix!r} in {self._connection.place}"
        (kind,) = at_once(("TYPE", key))
        if kind not in (b"hash", b"none"):
            raise StoreFileError(f"the prefix {where} is used by something other than a store: choose another prefix")
        if not self._is_read_only:
            at_once(("HSETNX", key, "layout", LAYOUT), ("HSETNX", key, "store_id", new_id("st")))
        layout, store_id = at_once(("HMGET", key, "layout", "store_id"))[0]
        if layout is None or store_id is None:
            raise StoreFileError(
                f"no store exists under the prefix {where}: open it without read_only=True to create one"
            )
        if int(layout) > LAYOUT:
            raise StoreFileError(
                f"the store under the prefix {where} has layout {int(layout)}, but this Sharpen supports up to "
                f"{LAYOUT}: upgrade Sharpen"
            )
        found: str = store_id.decode()
        return found

    def _make_rules(self) -> tuple[RedisTables, StoreRules]:
        waiting = self._notifications.workers
        tables = RedisTables(
            self._connection, self._tasks, listener=self._notifications.name, seats=lambda: len(waiting)
        )
        return tables, StoreRules(tables, clock=self._clock, name="RedisLightningStore", keeps_secrets=False)

    def __repr__(self) -> str:
        return f"RedisLightningStore({self._connection.address.text!r}, prefix={self.prefix!r})"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**super().capabilities, "thread_safe": self._thread_safe}

    def address(self) -> DatabaseAddress | None:
        return self._address if self._can_be_opened_elsewhere(RedisLightningStore) else None

    # -- reading -------------------------------------------------------------------------------------

    async def _read(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if self._thread_safe:
            return await asyncio.to_thread(self._read_now, name, *args, **kwargs)
        return self._read_now(name, *args, **kwargs)

    def _read_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_open()
        self._notifications.before_reading()
        try:
            tables, rules = self._readers.pop()
        except IndexError:
            tables, rules = self._make_rules()
        try:
            return _read_whole(tables, lambda: getattr(rules, name)(*args, **kwargs))
        finally:
            tables.forget()
            self._readers.append((tables, rules))

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise StoreError(f"{self!r} is closed")
        self._check_whole()

    # -- writing -------------------------------------------------------------------------------------

    async def _write(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if self._thread_safe and name != "prune":
            self._check_writable(name)
            self._check_open()
            return await self._writer.write(Job(name, args, kwargs))
        if self._thread_safe:
            return await asyncio.to_thread(self._write_now, name, *args, **kwargs)
        return self._write_now(name, *args, **kwargs)

    def _write_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self._check_writable(name)
        if name == "prune":  # its steps are whole by themselves, and hold up nobody
            return self._read_now(name, *args, **kwargs)
        self._check_open()
        job = Job(name, args, kwargs)
        self._commit([job])
        return job.answer()

    def _write_kept_work(self) -> None:
        self._commit([])

    def _commit(self, jobs: Sequence[Job]) -> None:
        self._notifications.before_claiming()
        with self._write_lock:
            kept = self._kept.jobs
            events = self._transactions.run([*kept, *jobs])
            if kept and not any(isinstance(job.error, StoreWriteError) for job in kept):
                self._kept.clear()
            for job in jobs:
                if isinstance(job.error, StoreWriteError):
                    self._kept.keep([job], job.error)
        self._watchdog.look_at(events.deadline)  # those who wait hear of the rest from Redis, here as everywhere

    # -- others and time -----------------------------------------------------------------------------

    def _poll_seconds(self) -> float | None:
        return LOOK_SECONDS

    def _look_around(self) -> None:
        """Hand on wake-ups and, once a second, write what had to be kept and catch up on what no message announced."""
        if self._is_closed:
            return
        self._notifications.wake_elsewhere()
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS * 0.9
        if self._kept.jobs:
            self._write_kept_work()
        key = self._connection.key
        store_id, queued, finish = self._connection.at_once(
            ("HGET", key("meta"), "store_id"), ("ZCARD", key("queued")), ("HGET", key("totals"), "finish")
        )
        self._check_same(store_id)
        self._notifications.catch_up(queued, int(finish or 0))
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

    # -- the end -------------------------------------------------------------------------------------

    def _close_connections(self) -> None:
        self._writer.stop()
        self._write_what_is_left()
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


def _end(connection: Connection, writer: "Writer", notifications: Notifications) -> None:
    writer.stop()
    notifications.stop()
    connection.close()


# -- the thread that writes --------------------------------------------------------------------------


class Writer:
    """Jobs of any thread and loop, committed in groups by a thread of its own."""

    def __init__(self, commit: Callable[[Sequence[Job]], None]) -> None:
        self._commit = commit
        self._jobs: deque[Job] = deque()
        self._is_there_work = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    async def write(self, job: Job) -> object:
        """Return the answer to a job, once it is written."""
        job.loop = asyncio.get_running_loop()
        job.future = job.loop.create_future()
        with self._is_there_work:
            if self._is_stopped:
                raise StoreError("the store was closed before the write")
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sharpen-redis-writer", daemon=True)
                self._thread.start()
            self._is_there_work.notify()
        return await job.future

    def _run(self) -> None:
        while jobs := self._next():
            try:
                self._commit(jobs)
            except BaseException as error:  # noqa: BLE001 - whoever waits has to hear of it
                for job in jobs:
                    job.error = error
            _resolve(jobs)

    def _next(self) -> list[Job]:
        """The jobs that leave together; none at the end."""
        with self._is_there_work:
            self._is_there_work.wait_for(lambda: self._jobs or self._is_stopped)
            jobs: list[Job] = []
            while self._jobs and len(jobs) < MAX_TOGETHER:
                if jobs and (self._jobs[0].name in _ALONE or jobs[0].name in _ALONE):
                    break
                jobs.append(self._jobs.popleft())
            return jobs

    def stop(self) -> None:
        """End once everything that waits is written."""
        with self._is_there_work:
            self._is_stopped = True
            self._is_there_work.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _resolve(jobs: Sequence[Job]) -> None:
    """Answer each job in its own loop; one whose loop has closed waits for nothing any more."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        if job.loop is not None:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_here, answered)
        except RuntimeError:
            log.debug("an event loop closed before it received the results of %d writes", len(answered))


def _resolve_here(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.resolve()


# -- transactions ------------------------------------------------------------------------------------


class Transactions:
    """One writer: it runs methods of the rules and has Redis apply all of their changes or none. One thread at a time
    uses it."""

    def __init__(self, connection: Connection, tables: RedisTables, rules: StoreRules) -> None:
        self._connection, self._tables, self._rules = connection, tables, rules
        self._number = 0
        self._is_applied = False

    def run(self, jobs: Sequence[Job]) -> Events:
        """Run all jobs. One that is refused changes nothing; others keep their effect."""
        events, end = self._run_all(jobs), time.monotonic() + HELD_SECONDS
        while (hungry := self._hungry(jobs)) and time.monotonic() < end:
            time.sleep(HELD_PAUSE)
            events.deadline = min(events.deadline, self._run_all(hungry).deadline)
        return events

    def _run_all(self, jobs: Sequence[Job]) -> Events:
        """All jobs in one change; where one is refused amid its changes, or cannot be packed, each in its own."""
        events, groups, is_head_held = Events(), deque([jobs]), False
        while groups:
            group = groups.popleft()
            try:
                events.deadline = min(events.deadline, self._until_applied(group).deadline)
            except StoreWriteError as error:
                for job in group:
                    job.error = error
            except (StoreError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a request raises is its own answer
                if len(group) == 1:
                    group[0].error = error
                else:
                    groups.extend([job] for job in group)
            is_head_held |= self._tables.is_head_held
        self._tables.is_head_held = is_head_held
        return events

    def _hungry(self, jobs: Sequence[Job]) -> list[Job]:
        """Claims that got nothing only because others are about to claim, or to give back, what is there."""
        if not self._tables.is_head_held:
            return []
        return [job for job in jobs if job.name == CLAIM and not job.result and job.error is None]

    def _until_applied(self, jobs: Sequence[Job]) -> Events:
        end, tries = time.monotonic() + self._connection.busy_seconds, 0
        while True:
            try:
                if self._try(jobs):
                    return self._rules.take_events()
            except StoreUnavailableError as error:
                raise StoreWriteError(str(error)) from error
            finally:
                self._tables.forget()
                if not self._is_applied:
                    self._rules.take_events()
            if time.monotonic() > end:
                raise StoreWriteError(f"gave up after {tries + 1} conflicting transactions: try again later")
            tries += 1
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.001 * tries)))

    def _try(self, jobs: Sequence[Job]) -> bool:
        """Whether it worked: False where others were faster."""
        self._is_applied = self._tables.is_head_held = False
        try:
            _read_ahead(self._tables, jobs)
            for job in jobs:
                self._run(job)
            events = self._rules.events
            change = self._tables.take_change(events.queued, events.finished)
            self._is_applied = change is None or self._apply(change)
        except ChangedMeanwhileError:
            log.debug("a value changed while it was used; retrying")
        except StoreError:
            raise
        except Exception:
            self._let_go()  # for the jobs that are now tried in other groups
            raise
        self._let_go()
        return self._is_applied

    def _run(self, job: Job) -> None:
        """A refused request is the job's own answer; a failing server is everybody's."""
        job.result = job.error = None
        if job.is_given_up():
            return
        events, before = self._rules.events.mark(), self._tables.num_changes
        try:
            job.result = getattr(self._rules, job.name)(*job.args, **job.kwargs)
        except (StoreError, ChangedMeanwhileError, MemoryError):
            raise
        except Exception as error:
            if self._tables.num_changes != before:
                raise
            job.error = error
            self._rules.events.back_to(events)

    def _let_go(self) -> None:
        try:
            self._tables.release(is_written=self._is_applied)
        except StoreError as error:
            log.info("locked rollouts will be released after a short delay: %s", error)

    def _apply(self, change: bytes) -> bool:
        self._number += 1
        answer: bytes = self._connection.run(COMMIT, self._tables.writer, self._number, change)
        return answer == b"DONE"


def _read_ahead(tables: RedisTables, jobs: Sequence[Job]) -> None:
    """What the jobs will ask for, in one trip."""
    wanted = _Wanted()
    for job in jobs:
        if not job.is_given_up():
            wanted.add(job)
    calls, see = list[tuple[Any, ...]](), list[Callable[[Any], Any]]()
    connection = tables.connection
    if wanted.claims:  # seen first: what is held has to be known before anything else can go wrong
        calls.append(tables.take_call("queued", "+inf", wanted.claims))
        see.append(tables.see_head)
    if wanted.rollouts:
        names = list(wanted.rollouts)
        calls.append(connection.script(ROWS, *names))
        see.append(lambda answer: tables.see_rows(names, answer))
    for attempt_id, span_ids in wanted.spans.items():
        calls.append(("HMGET", connection.key(f"spans:{attempt_id}"), *span_ids))
        see.append(lambda answer, name=attempt_id, ids=span_ids: tables.see_spans(name, ids, answer))  # type: ignore[misc]
    for request_id in wanted.requests:
        calls.append(tables.request_call(request_id))
        see.append(lambda answer, name=request_id: tables.see_request(name, answer))  # type: ignore[misc]
    for worker_id in wanted.workers:
        calls.append(connection.script(WORKER, worker_id))
        see.append(lambda answer, name=worker_id: tables.see_worker(name, answer))  # type: ignore[misc]
    if wanted.needs_resources:
        calls.append(("LLEN", connection.key("published")))
        see.append(tables.see_published)
    if calls:
        for look, answer in zip(see, connection.at_once(*calls), strict=True):
            look(answer)


class _Wanted:
    """The names of what some jobs will ask for. What is wrong with a call, the method itself will say."""

    def __init__(self) -> None:
        self.rollouts: dict[str, None] = {}
        self.spans: dict[str, list[str]] = {}
        self.requests: dict[str, None] = {}
        self.workers: dict[str, None] = {}
        self.claims = 0
        self.needs_resources = False

    def add(self, job: Job) -> None:
        given: Any = job.args[0] if job.args else None
        if job.name != "start_rollout":
            self.rollouts |= {name: None for name in named_rollouts(job) if is_text(name)}
        if job.name == CLAIM:
            self._claim(job.kwargs.get("limit", 1), job.kwargs.get("request_id"))
        elif job.name == "update_worker":
            worker_id = job.kwargs.get("worker_id", given)
            if is_text(worker_id):
                self.workers[worker_id] = None
        elif job.name == "enqueue_many_rollouts":
            self.needs_resources = True
        spans = job.kwargs.get("spans", given if job.name == "add_many_spans" else ())
        for span in spans if isinstance(spans, list | tuple) else ():
            if isinstance(span, Span) and is_text(span.attempt_id) and is_text(span.span_id):
                self.spans.setdefault(span.attempt_id, []).append(span.span_id)

    def _claim(self, limit: Any, request_id: Any) -> None:
        if request_id in self.requests:
            return  # both get the same
        if isinstance(limit, int | float) and limit > 0:
            self.claims += int(min(limit, MOST_CLAIMS))
        if is_text(request_id):
            self.requests[request_id] = None
