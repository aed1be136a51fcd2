"""How methods run in PostgreSQL: each as one transaction, again where that helps, and never twice.

Where two transactions got into each other's way, or the connection was lost before COMMIT was sent, a method is run
again. Where it was lost during COMMIT, the database is asked whether the mark of the transaction is there: then its
answer stands. Methods run on a few threads, each with a connection of its own.
"""

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg import errors

from ...backoff import Backoff
from ...errors import (
    InvalidInputError,
    StoreError,
    StoreFileError,
    StoreFullError,
    StoreUnavailableError,
    StoreWriteError,
)
from ..database import Job, named_rollouts
from ..lifecycle import Events
from ..rules import StoreRules
from .connection import Address, Lost, Query, Row, Session
from .listening import Listener, take_seats
from .tables import PostgresTables

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25
MOST_CLASHES = 50
ENDING_SECONDS = 5

# Two transactions got into each other's way: one of them is run again.
_CLASH = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
# May pass by itself: a lock, a full disk, too many connections, a standby before it takes over, a changed table.
_PASSING = (psycopg.OperationalError, errors.ReadOnlySqlTransaction, errors.FeatureNotSupported)
# A value that cannot be stored, or a name too long for an index.
_REFUSED = (psycopg.DataError, errors.ProgramLimitExceeded)
_BACKEND = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1::int AND backend_start = $2::timestamptz"
)
# One question each, which needs no view of its own; `finished_rollouts` has to see what is committed meanwhile.
_ONE_QUESTION = frozenset(
    {
        "get_rollout_by_id",
        "get_latest_attempt",
        "get_resources_by_id",
        "get_latest_resources",
        "finished_rollouts",
        "unfinished",
        "queue_length",
        "next_deadline",
    }
)


class PostgresJob(Job):
    """A method to run on some connection, for a task of an event loop or for a thread that waits."""

    __slots__ = ("began", "done", "is_read", "takes_seat")

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_read: bool) -> None:
        super().__init__(name, args, kwargs)
        self.is_read = is_read
        self.takes_seat = False
        self.began = time.monotonic()
        self.done: threading.Event | None = None

    def finish(self) -> None:
        """Give the answer to whoever waits for it."""
        if self.done is not None:
            self.done.set()
        elif self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(self.resolve)
            except RuntimeError:  # its loop has closed, and nobody waits any more
                return


class StoreHooks(Protocol):
    """What a runner of transactions needs of its store."""

    database: Address
    listener: Listener
    busy_seconds: float

    @property
    def is_read_only(self) -> bool: ...
    def make_rules(self, session: Session) -> tuple[PostgresTables, StoreRules]: ...
    def new_mark(self) -> str: ...
    def notifications(self, events: Events) -> list[Query]: ...
    def settle(self, events: Events, answers: Sequence[list[Row]]) -> None: ...


class UnconfirmedCommit(NamedTuple):
    """A transaction whose COMMIT was sent and not answered."""

    evidence: Query | None
    mark: str
    result: Any
    events: Events


class _Backend(NamedTuple):
    """The server's process of a connection."""

    pid: int
    started: str


class TransactionRunner:
    """Runs methods on a connection of its own, which it opens again when it is lost."""

    def __init__(self, store: StoreHooks) -> None:
        self._store = store
        self._session: Session | None = None
        self._tables: PostgresTables
        self._rules: StoreRules
        self._backend: _Backend | None = None
        self._lost: _Backend | None = None
        self._unconfirmed: UnconfirmedCommit | None = None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def perform(self, job: PostgresJob) -> Any:
        """Return the answer of the method; raise what it raises, or that the database cannot be reached."""
        end, clashes = job.began + self._store.busy_seconds, 0
        backoff = Backoff(FIRST_PAUSE, maximum=LONGEST_PAUSE, jitter=0.5)
        self._unconfirmed = None
        while True:
            try:
                session = self._connect()
                if self._unconfirmed is not None and self._is_done(session, self._unconfirmed):
                    return self._unconfirmed.result
                self._unconfirmed = None
                if job.is_given_up():
                    return None
                return self._read(job, session) if job.is_read else self._write(job, session)
            except Lost as lost:
                self._drop()
                problem: Exception = lost
            except psycopg.Error as error:
                clashes += isinstance(error, _CLASH)
                self._recover(error, clashes)
                problem = error
            pause = next(backoff)
            if time.monotonic() + pause > end:
                raise self._gave_up(job, problem) from problem
            time.sleep(pause)

    def check_worth_trying(self, job: PostgresJob) -> None:
        """Whoever has waited too long behind others that could not connect need not try that once more."""
        failure, end = self._store.database.failure, job.began + self._store.busy_seconds
        if self._session is None and failure is not None and failure[0] > job.began and time.monotonic() > end:
            raise self._gave_up(job, failure[1])

    # -- methods -------------------------------------------------------------------------------------

    def _read(self, job: PostgresJob, session: Session) -> Any:
        tables = self._tables
        if job.name in ("unfinished", "finished_rollouts") and not self._store.is_read_only:
            self._store.listener.ensure_finish(session)
        tables.begin_reading(one_question=job.name in _ONE_QUESTION)
        try:
            _ask_ahead(tables, job)
            return getattr(self._rules, job.name)(*job.args, **job.kwargs)
        finally:
            if session.is_alive:
                session.rollback()

    def _write(self, job: PostgresJob, session: Session) -> Any:
        tables, rules = self._tables, self._rules
        rules.take_events()
        self._take_seat(job, session)
        tables.begin(mark=self._store.new_mark())
        try:
            _ask_ahead(tables, job)
            result = getattr(rules, job.name)(*job.args, **job.kwargs)
            events = rules.take_events()
            if job.is_given_up():
                session.rollback()
                return None
            answers = tables.commit(self._store.notifications(events))
        except Lost:
            if tables.is_committing:
                self._unconfirmed = UnconfirmedCommit(tables.evidence, tables.mark, result, events)
            raise
        except psycopg.Error:
            raise
        except Exception:
            session.rollback()  # what a request raises is its own answer, and no row may stay locked
            raise
        self._store.settle(events, answers)
        return result

    def _take_seat(self, job: PostgresJob, session: Session) -> None:
        """Whoever waits for work looks for it once its seat is known to those who bring some.

        It has a trip of its own: statements before a BEGIN in the same pipeline would be committed only with the look.
        """
        if job.takes_seat:
            listener = self._store.listener
            listener.ensure()
            session.ask([take_seats(listener.name, 1 - listener.take_gone())])
            job.takes_seat = False

    # -- the connection ------------------------------------------------------------------------------

    def _connect(self) -> Session:
        if self._session is not None:
            return self._session
        store = self._store
        session = Session(store.database.connect(lock_seconds=store.busy_seconds, read_only=store.is_read_only))
        try:
            ((pid, started),) = session.query(_BACKEND)
            if self._lost is not None:
                self._end_lost(session, self._lost)
        except BaseException:
            session.close()
            raise
        self._session, self._backend, self._lost = session, _Backend(pid, started), None
        self._tables, self._rules = store.make_rules(session)
        return session

    def _end_lost(self, session: Session, lost: _Backend) -> None:
        """Where the server has not noticed yet that a connection is gone, its transaction might still be done."""
        end = time.monotonic() + ENDING_SECONDS
        while session.query(_TERMINATE, *lost):
            if time.monotonic() > end:
                raise psycopg.OperationalError("the server did not terminate a lost connection")
            time.sleep(0.01)

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session, self._lost = None, self._backend

    def _is_done(self, session: Session, commit: UnconfirmedCommit) -> bool:
        """Whether the transaction was committed; then others are notified of it again."""
        if commit.evidence is None:
            return False
        found = session.rows(session.ask([commit.evidence])[0])
        if not found or commit.mark not in found[0][0].split(" "):
            return False
        notifications = self._store.notifications(commit.events)
        answers = session.ask(notifications) if notifications else []
        self._store.settle(commit.events, [session.rows(answer) for answer in answers])
        return True

    def _recover(self, error: psycopg.Error, clashes: int) -> None:
        """Make ready for another try, or say why there is none."""
        if isinstance(error, errors.FeatureNotSupported):
            self._drop()  # a prepared statement that another version of the table has made invalid
        elif self._session is not None:
            try:
                self._session.rollback()
            except Lost:
                self._drop()
        label, words = self._store.database.label, self._store.database.words(error)
        if isinstance(error, _CLASH) and clashes > MOST_CLASHES:
            raise StoreWriteError(
                f"gave up after {clashes} conflicting transactions in the database {label}: {words}"
            ) from error
        if isinstance(error, _REFUSED):
            raise InvalidInputError(f"the database {label} cannot store this value: {words}") from error
        if not isinstance(error, (*_CLASH, *_PASSING)):
            raise StoreFileError(f"the database {label} cannot be used: {words}") from error

    def _gave_up(self, job: PostgresJob, problem: Exception) -> StoreError:
        label, words = self._store.database.label, self._store.database.words(problem)
        if job.is_read:
            return StoreUnavailableError(f"the database {label} did not respond in time: {words}")
        kind = StoreFullError if isinstance(problem, errors.DiskFull) else StoreWriteError
        return kind(f"the database {label} cannot be written at the moment: {words}")


# -- asking ahead: rows that a method will want, locked in one order, and with one question -----------


def _ask_ahead(tables: PostgresTables, job: Job) -> None:
    if job.name == "dequeue_many_rollouts":
        limit, request_id = job.kwargs.get("limit", 1), job.kwargs.get("request_id")
        if type(limit) is int and 0 < limit < 2**31 and (request_id is None or _is_plain(request_id)):
            tables.load_claim(limit, request_id)
    elif (rollout_ids := named_rollouts(job)) and all(_is_plain(rollout_id) for rollout_id in rollout_ids):
        tables.load(rollout_ids)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


# -- threads -----------------------------------------------------------------------------------------


class TransactionPool:
    """At most `size` threads, each with a runner of its own; each is started when all others are at work."""

    def __init__(
        self,
        size: int,
        *,
        make_runner: Callable[[], TransactionRunner],
        run: Callable[[TransactionRunner, PostgresJob], None],
    ) -> None:
        self._size = size
        self._make_runner, self._run = make_runner, run
        self._jobs: SimpleQueue[PostgresJob | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._is_stopped = False

    def submit(self, job: PostgresJob) -> bool:
        """Return whether it will be run: not once the pool has been stopped."""
        with self._lock:
            if self._is_stopped:
                return False
            self._unfinished += 1
            if self._unfinished > len(self._threads) < self._size:
                name = f"sharpen-postgres-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._jobs.put(job)
        return True

    def _work(self) -> None:
        runner = self._make_runner()
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    self._run(runner, job)
                finally:
                    with self._lock:
                        self._unfinished -= 1
        finally:
            runner.close()

    def stop(self) -> None:
        """Run what is there, and end."""
        with self._lock:
            self._is_stopped = True
        self.end()
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """End without a lock or a wait: nobody has the store any more."""
        for _ in range(self._size):
            self._jobs.put(None)
