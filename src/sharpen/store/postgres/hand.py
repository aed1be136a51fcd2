"""One thread's connection, on which methods are run: again where that helps, and never twice.

A method is one transaction. Where two of them got into each other's way, or the connection was lost before COMMIT was
sent, it is run again. Where it was lost during COMMIT, the database is asked whether the mark of the transaction is
there: then its answer stands.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg import errors

from ...errors import (
    InvalidInputError,
    StoreError,
    StoreFileError,
    StoreFullError,
    StoreUnavailableError,
    StoreWriteError,
)
from ..lifecycle import Events
from ..rules import StoreRules
from .address import Address
from .jobs import ONE_QUESTION, PostgresJob, preload
from .listening import Listener
from .session import Lost, Query, Row, Session
from .tables import PostgresTables
from .waiters import sit

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25
MOST_CLASHES = 50
ENDING_SECONDS = 5

# Two transactions got into each other's way: one of them is run again.
_CLASH = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
# May pass by itself: a lock, a full disk, too many connections, a standby before it takes over, a changed table.
_PASSING = (psycopg.OperationalError, errors.ReadOnlySqlTransaction, errors.FeatureNotSupported)
_BACKEND = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1::int AND backend_start = $2::timestamptz"
)


class Desk(Protocol):
    """What a hand needs of its store."""

    database: Address
    listener: Listener
    busy_seconds: float
    is_read_only: bool

    def make_ledger(self, session: Session) -> tuple[PostgresTables, StoreRules]: ...
    def new_mark(self) -> str: ...
    def wakes(self, events: Events) -> list[Query]: ...
    def settle(self, events: Events, answers: Sequence[list[Row]]) -> None: ...


class Doubt(NamedTuple):
    """A transaction whose COMMIT was sent and not answered."""

    evidence: Query | None
    mark: str
    result: Any
    events: Events


class _Backend(NamedTuple):
    """The server's process of a connection."""

    pid: int
    started: str


class Hand:
    """Runs methods on a connection of its own, which it opens again when it is lost."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._session: Session | None = None
        self._tables: PostgresTables
        self._ledger: StoreRules
        self._backend: _Backend | None = None
        self._lost: _Backend | None = None
        self._doubt: Doubt | None = None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def perform(self, job: PostgresJob) -> Any:
        """The answer of the method; raises what it raises, or that the database cannot be reached."""
        return self._repeat(job, self._read if job.is_read else self._write)

    def _repeat(self, job: PostgresJob, run: Callable[[PostgresJob], Any]) -> Any:
        end, pause, clashes = job.began + self._desk.busy_seconds, FIRST_PAUSE, 0
        self._doubt = None
        while True:
            try:
                self._connect()
                if self._doubt is not None and self._is_done(self._doubt):
                    return self._doubt.result
                self._doubt = None
                return None if job.is_given_up() else run(job)
            except Lost as lost:
                self._drop()
                problem: Exception = lost
            except psycopg.Error as error:
                clashes += isinstance(error, _CLASH)
                self._recover(error, clashes)
                problem = error
            if time.monotonic() + pause > end:
                raise self._gave_up(job, problem) from problem
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    def check_worth_trying(self, job: PostgresJob) -> None:
        """Whoever has waited too long behind others that could not connect need not try that once more."""
        failure, end = self._desk.database.failure, job.began + self._desk.busy_seconds
        if self._session is None and failure is not None and failure[0] > job.began and time.monotonic() > end:
            raise self._gave_up(job, failure[1])

    # -- methods -------------------------------------------------------------------------------------

    def _read(self, job: PostgresJob) -> Any:
        tables = self._tables
        if job.name in ("unfinished", "finished_rollouts") and not self._desk.is_read_only:
            self._hear_of_finishing()
        tables.begin_reading(one_question=job.name in ONE_QUESTION)
        try:
            preload(tables, job)
            return getattr(self._ledger, job.name)(*job.args, **job.kwargs)
        finally:
            if tables.session.is_alive:
                tables.session.rollback()

    def _hear_of_finishing(self) -> None:
        assert self._session is not None
        if self._desk.listener.is_finish_awaited:
            self._desk.listener.ensure_finish(self._session)

    def _write(self, job: PostgresJob) -> Any:
        tables, ledger, session = self._tables, self._ledger, self._session
        assert session is not None
        ledger.take_events()
        self._take_seat(job, session)
        tables.begin(mark=self._desk.new_mark())
        try:
            preload(tables, job)
            result = getattr(ledger, job.name)(*job.args, **job.kwargs)
        except (Lost, psycopg.Error):
            raise
        except Exception:
            session.rollback()  # whatever a request raises is its own answer
            raise
        events = ledger.take_events()
        if job.is_given_up():
            session.rollback()
            return None
        try:
            answers = tables.commit(self._desk.wakes(events))
        except Lost:
            if tables.is_committing:
                self._doubt = Doubt(tables.evidence, tables.mark, result, events)
            raise
        except psycopg.Error:
            raise
        except Exception:
            session.rollback()  # a value that cannot be sent: its rows must not stay locked
            raise
        self._desk.settle(events, answers)
        return result

    def _take_seat(self, job: PostgresJob, session: Session) -> None:
        """Whoever waits for work looks for it once its seat is known to those who bring some.

        It has a trip of its own: statements before a BEGIN in the same pipeline would be committed only with the look.
        """
        if job.takes_seat:
            listener = self._desk.listener
            listener.ensure()
            session.ask([sit(listener.name, 1 - listener.take_gone())])
            job.takes_seat = False

    # -- the connection ------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._session is not None:
            return
        desk = self._desk
        session = Session(desk.database.connect(lock_seconds=desk.busy_seconds, read_only=desk.is_read_only))
        try:
            ((pid, started),) = session.query(_BACKEND)
            if self._lost is not None:
                self._end_lost(session, self._lost)
        except BaseException:
            session.close()
            raise
        self._session, self._backend, self._lost = session, _Backend(pid, started), None
        self._tables, self._ledger = desk.make_ledger(session)

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

    def _is_done(self, doubt: Doubt) -> bool:
        """Whether the transaction was committed; then others are told of it once more."""
        session = self._session
        assert session is not None
        if doubt.evidence is None:
            return False
        found = session.rows(session.ask([doubt.evidence])[0])
        if not found or doubt.mark not in found[0][0].split(" "):
            return False
        wakes = self._desk.wakes(doubt.events)
        self._desk.settle(doubt.events, [session.rows(answer) for answer in session.ask(wakes)] if wakes else [])
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
        label, words = self._desk.database.label, self._desk.database.words(error)
        if isinstance(error, _CLASH) and clashes > MOST_CLASHES:
            raise StoreWriteError(
                f"gave up after {clashes} conflicting transactions in the database {label}: {words}"
            ) from error
        if isinstance(
            error, (psycopg.DataError, errors.ProgramLimitExceeded)
        ):  # a value, or a name too long for an index
            raise InvalidInputError(f"the database {label} cannot store this value: {words}") from error
        if not isinstance(error, (*_CLASH, *_PASSING)):
            raise StoreFileError(f"the database {label} cannot be used: {words}") from error

    def _gave_up(self, job: PostgresJob, problem: Exception) -> StoreError:
        label, words = self._desk.database.label, self._desk.database.words(problem)
        if job.is_read:
            return StoreUnavailableError(f"the database {label} did not respond in time: {words}")
        kind = StoreFullError if isinstance(problem, errors.DiskFull) else StoreWriteError
        return kind(f"the database {label} cannot be written at the moment: {words}")
