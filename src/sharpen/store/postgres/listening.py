"""Messages between the stores before one database: one wake-up for each item in the queue, and who has finished.

A store in which somebody waits for work has as many seats in the table `waiters`. Whoever queues items takes that many
seats and tells just the stores whose seats they were. A wake-up that finds nobody any more is handed on. What is lost
all the same (a store that died with a wake-up in its hands) is found by a slow look around.
"""

import asyncio
import logging
import os
import select
import threading
import time
from collections.abc import Callable

import psycopg

from ...backoff import Backoff
from ...errors import StoreError
from ..base import new_id
from ..local import BroadcastWaiters, FifoWaiters, Waiter
from .connection import Address, Lost, Query, Row, Session, Statement, prepared

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
IDLE_HEARTBEATS = 10  # then a store in which nobody waits is no longer in the table
PAYLOAD_BYTES = 7900  # PostgreSQL takes 8,000
ALIVE = "seen > now() - interval '5 seconds'"
FORGOTTEN = "seen < now() - interval '1 minute'"

_TAKE_SEATS = Statement(
    "INSERT INTO waiters (listener, seats, awaits_finish, seen) VALUES ($1, greatest($2::int, 0), false, now()) "
    "ON CONFLICT (listener) DO UPDATE SET seats = greatest(waiters.seats + $2::int, 0), seen = now()"
)
_AWAIT_FINISH = (
    "INSERT INTO waiters (listener, seats, awaits_finish, seen) VALUES (?, 0, true, now()) "
    "ON CONFLICT (listener) DO UPDATE SET awaits_finish = true, seen = now()"
)
_HEARTBEAT = (
    "UPDATE waiters SET seen = now(), awaits_finish = ?, seats = greatest(seats - ?::int, 0) WHERE listener = ?"
)
_FORGET = "DELETE FROM waiters WHERE listener = ?"
# Not where somebody has sat down at this moment.
_LEAVE = "DELETE FROM waiters WHERE listener = ? AND seats <= ?::int"
# Locked in one order; the store's own seats come first, since those need no message.
_WAKE = Statement(
    f"WITH free AS (SELECT listener, seats FROM waiters WHERE seats > 0 AND {ALIVE} ORDER BY listener FOR UPDATE), "
    "lined AS (SELECT listener, seats, sum(seats) OVER (ORDER BY listener <> $2, listener) - seats AS before FROM free "
    "WHERE listener <> $3), "
    "shares AS (SELECT listener, least(seats, $1::int - before)::int AS share FROM lined WHERE before < $1::int), "
    "taken AS (UPDATE waiters SET seats = waiters.seats - share FROM shares WHERE waiters.listener = shares.listener "
    "RETURNING waiters.listener, share) "
    "SELECT share, CASE WHEN listener <> $2 THEN pg_notify('sharpen_' || listener, 'w ' || share)::text END FROM taken "
    "ORDER BY listener <> $2"
)
_TELL_FINISHED = (
    f"SELECT pg_notify('sharpen_' || listener, ?)::text FROM waiters WHERE awaits_finish AND listener <> ? AND {ALIVE}"
)


def take_seats(listener: str, change: int) -> Query:
    """So many more seats, or fewer."""
    return _TAKE_SEATS, (listener, change)


def wake(listener: str, count: int, *, others: bool = False) -> Query:
    """Take seats for so many items and tell whose they were, or only those of others; see `own_share`."""
    return _WAKE, (count, listener, listener if others else "")


def own_share(rows: list[Row]) -> int:
    """Return how many of the seats that `wake` took are in the store itself."""
    return sum(share for share, told in rows if told is None)


def tell_finished(listener: str, rollout_ids: list[str]) -> Query:
    """Tell the other stores in which somebody waits for rollouts to finish."""
    payload = f"f {' '.join(rollout_ids)}"
    return prepared(_TELL_FINISHED), (payload if len(payload.encode()) <= PAYLOAD_BYTES else "f *", listener)


class RemoteWaiters(FifoWaiters):
    """Waiters for work in one store, of whom the database knows the number."""

    def __init__(self) -> None:
        super().__init__()
        self._unseated: dict[asyncio.Task[object] | None, Waiter] = {}
        self._gone = 0
        self._unused = 0
        self.on_unused: Callable[[], None] = lambda: None

    def join(self) -> Waiter:
        waiter = super().join()
        with self._lock:
            self._unseated[asyncio.current_task()] = waiter
        return waiter

    def takes_seat(self) -> bool:
        """Whether the running task has joined, and the look that it takes now has to be preceded by its seat."""
        if not self._unseated:
            return False
        with self._lock:
            return self._unseated.pop(asyncio.current_task(), None) is not None

    def leave(self, waiter: Waiter, *, used: bool) -> None:
        with self._lock:
            is_seated = self._unseated.pop(asyncio.current_task(), None) is None
            if not waiter.is_woken:
                self._waiting.remove(waiter)
                self._gone += is_seated
            elif not used:
                self._unused += 1
        if self._unused:
            self.on_unused()

    def wake(self, count: int) -> None:
        """Wake some whom nobody took a seat of."""
        with self._lock:
            self._gone += self._wake(count)

    def wake_seated(self, count: int) -> int:
        """Wake those whose seats were taken; how many of the wake-ups found nobody any more."""
        with self._lock:
            missing = count - self._wake(count)
            self._gone = max(0, self._gone - missing)  # they had left, and their seats are taken already
        return missing

    def _wake(self, count: int) -> int:
        woken = 0
        while woken < count and self._waiting:
            woken += self._waiting.popleft().wake()
        return woken

    def hand_on(self, count: int) -> None:
        """Wake-ups that found nobody are for others."""
        if count > 0:
            with self._lock:
                self._unused += count
            self.on_unused()

    def take_gone(self) -> int:
        """How many seats have been left since the last call."""
        with self._lock:
            gone, self._gone = self._gone, 0
        return gone

    def take_unused(self) -> int:
        """How many wake-ups have to be handed on."""
        with self._lock:
            unused, self._unused = self._unused, 0
        return unused


class Listener:
    """A thread that receives messages for this store and wakes the waiters they are for."""

    def __init__(
        self, address: Address, workers: RemoteWaiters, finishers: BroadcastWaiters, *, busy_seconds: float
    ) -> None:
        self.name = new_id("li")
        self._address, self._workers, self._finishers = address, workers, finishers
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_listening = threading.Event()
        self._has_listened = False
        self._is_stopped = False
        self._awaits_finish = False
        self._idle_heartbeats = 0
        self._bell: tuple[int, int] | None = None
        self._bell_lock = threading.Lock()
        workers.on_unused = self._ring

    def ensure(self) -> None:
        """Return when messages are heard, or after a while: then the slow look around has to do."""
        if self._is_listening.is_set():
            return
        with self._lock:
            if self._thread is None and not self._is_stopped:
                self._bell = os.pipe()
                self._thread = threading.Thread(target=self._run, name="sharpen-postgres-listener", daemon=True)
                self._thread.start()
        self._is_listening.wait(min(self._busy_seconds, 2 * HEARTBEAT_SECONDS))

    def take_gone(self) -> int:
        """How many have left their seats since the last call."""
        return self._workers.take_gone()

    def ensure_finish(self, session: Session) -> None:
        """Where somebody waits for rollouts to finish: the same, and others tell us when they do."""
        if not len(self._finishers):
            return
        self.ensure()
        with self._lock:
            if not self._awaits_finish:
                session.ask([(prepared(_AWAIT_FINISH), (self.name,))])
                self._awaits_finish = True

    def stop(self) -> None:
        self.end()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def end(self) -> None:
        """The same, without waiting for it."""
        self._is_stopped = True
        self._ring()

    def _ring(self) -> None:
        """Have the thread look at once."""
        with self._bell_lock:
            if self._bell is not None:
                os.write(self._bell[1], b"x")

    def _bell_end(self) -> int:
        assert self._bell is not None  # there as long as the thread
        return self._bell[0]

    # -- in the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep_listening()
        finally:
            with self._bell_lock:
                bell, self._bell = self._bell, None
            for end in bell or ():
                os.close(end)

    def _keep_listening(self) -> None:
        backoff = Backoff(0.05, maximum=1.0)
        while not self._is_stopped:
            try:
                self._listen()
                backoff.reset()
            except (psycopg.Error, Lost, StoreError) as error:
                log.debug("the store receives no notifications at the moment: %s", self._address.words(error))
            self._is_listening.clear()
            if not self._is_stopped:
                self._rest(next(backoff))

    def _rest(self, seconds: float) -> None:
        """Pause before the next try; whoever rings meanwhile has to wait as well, unless it is for the end."""
        end = time.monotonic() + seconds
        while not self._is_stopped and (left := end - time.monotonic()) > 0:
            if select.select([self._bell_end()], [], [], left)[0]:
                os.read(self._bell_end(), 1024)

    def _listen(self) -> None:
        connection = self._address.connect(lock_seconds=self._busy_seconds)
        try:
            connection.execute(f'LISTEN "sharpen_{self.name}"'.encode())
            session = Session(connection)
            session.ask([(prepared(_FORGET), (self.name,)), (f"DELETE FROM waiters WHERE {FORGOTTEN}", ())])
            with self._lock:
                self._awaits_finish = False
            self._is_listening.set()
            if self._has_listened:
                # Nobody knows what was said meanwhile: everybody looks again.
                self._workers.wake_seated(len(self._workers))
                self._workers.take_gone()
                self._finishers.wake_all()
            self._has_listened = True
            self._receive(session)
            session.ask([(prepared(_FORGET), (self.name,))])
        finally:
            connection.close()

    def _receive(self, session: Session) -> None:
        poll = select.poll()
        poll.register(session.connection.pgconn.socket, select.POLLIN)
        bell = self._bell_end()
        poll.register(bell, select.POLLIN)
        next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
        while not self._is_stopped:
            # Messages also come along with answers, after which nothing is left to be read.
            while self._take_messages(session) or self._pass_on(session):
                pass
            if time.monotonic() >= next_heartbeat:
                next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
                self._send_heartbeat(session)
                continue
            ready = poll.poll(max(0.0, next_heartbeat - time.monotonic()) * 1000)
            if any(number == bell for number, _ in ready):
                os.read(bell, 1024)
            session.connection.pgconn.consume_input()

    def _take_messages(self, session: Session) -> bool:
        """Do what the messages say that have come; whether there were any."""
        pg, surplus, any_came = session.connection.pgconn, 0, False
        while (message := pg.notifies()) is not None:
            any_came = True
            kind, _, rest = message.extra.decode().partition(" ")
            if kind == "w":
                surplus += self._workers.wake_seated(int(rest))
            elif rest == "*":
                self._finishers.wake_all()
            else:
                self._finishers.finished(rest.split(" "))
        if surplus > 0:
            session.ask([wake(self.name, surplus, others=True)])
        return any_came

    def _pass_on(self, session: Session) -> bool:
        """Wake-ups whose waiters gave up at the same moment go to others; whether there were any."""
        unused = self._workers.take_unused()
        if unused:
            rows = session.rows(session.ask([wake(self.name, unused)])[0])
            self._workers.hand_on(self._workers.wake_seated(own_share(rows)))
        return unused > 0

    def _send_heartbeat(self, session: Session) -> None:
        """Say that this store is alive and how many have left; a store where nobody waits is silent."""
        with self._lock:
            is_idle = not len(self._workers) and not len(self._finishers)
            if is_idle and self._idle_heartbeats > IDLE_HEARTBEATS:
                return
            self._idle_heartbeats = self._idle_heartbeats + 1 if is_idle else 0
            gone = self._workers.take_gone()
            if self._idle_heartbeats > IDLE_HEARTBEATS:
                self._awaits_finish = False
                session.ask([(prepared(_LEAVE), (self.name, gone))])
            else:
                session.ask([(prepared(_HEARTBEAT), (self._awaits_finish, gone, self.name))])
