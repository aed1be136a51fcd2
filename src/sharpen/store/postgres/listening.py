"""The connection on which a store hears of what others did. It is opened when somebody waits for the first time."""

import logging
import os
import select
import threading
import time

import psycopg

from ...errors import StoreError
from ..checks import new_id
from ..local import BroadcastWaiters
from . import waiters
from .address import Address
from .session import Lost, Session, Statement
from .waiters import RemoteWaiters

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
IDLE_BEATS = 10  # then a store in which nobody waits is no longer in the table
FORGOTTEN = "seen < now() - interval '1 minute'"

_BEAT = Statement(
    "UPDATE waiters SET seen = now(), awaits_finish = $2, seats = greatest(seats - $3::int, 0) WHERE listener = $1"
)
_GONE = Statement("DELETE FROM waiters WHERE listener = $1")
# Not where somebody has sat down at this moment.
_LEFT = Statement("DELETE FROM waiters WHERE listener = $1 AND seats <= $2::int")


class Listener:
    """A thread that hears messages for this store and wakes those who wait for them."""

    def __init__(self, address: Address, line: RemoteWaiters, crowd: BroadcastWaiters, *, busy_seconds: float) -> None:
        self.name = new_id("li")
        self._address, self._line, self._crowd = address, line, crowd
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_listening = threading.Event()
        self._has_listened = False
        self._is_stopped = False
        self._awaits_finish = False
        self._idle_beats = 0
        self._bell: tuple[int, int] | None = None
        self._bell_lock = threading.Lock()
        line.on_unused = self._ring

    def ensure(self) -> None:
        """Return when messages are heard, or after a while: then the slow look around has to do."""
        if self._is_listening.is_set():
            return
        with self._lock:
            if self._thread is None and not self._is_stopped:
                self._bell = os.pipe()
                self._thread = threading.Thread(target=self._run, name="sharpen-postgres-listener", daemon=True)
                self._thread.start()
        self._is_listening.wait(min(self._busy_seconds, 2 * BEAT_SECONDS))

    @property
    def is_finish_awaited(self) -> bool:
        return len(self._crowd) > 0

    def take_gone(self) -> int:
        """How many have left their seats since the last call."""
        return self._line.take_gone()

    def ensure_finish(self, session: Session) -> None:
        """The same, and others tell us when rollouts finish."""
        self.ensure()
        with self._lock:
            if not self._awaits_finish:
                session.ask([waiters.await_finish(self.name)])
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
            self._listen_on()
        finally:
            with self._bell_lock:
                bell, self._bell = self._bell, None
            for end in bell or ():
                os.close(end)

    def _listen_on(self) -> None:
        pause = 0.05
        while not self._is_stopped:
            try:
                self._listen()
                pause = 0.05
            except (psycopg.Error, Lost, StoreError) as error:
                log.debug("the store receives no notifications at the moment: %s", self._address.words(error))
            self._is_listening.clear()
            if not self._is_stopped:
                self._rest(pause)
                pause = min(pause * 2, 1.0)

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
            session.ask([(_GONE, (self.name,)), (f"DELETE FROM waiters WHERE {FORGOTTEN}", ())])
            with self._lock:
                self._awaits_finish = False
            self._is_listening.set()
            if self._has_listened:
                # Nobody knows what was said meanwhile: everybody looks again.
                self._line.wake_seated(len(self._line))
                self._line.take_gone()
                self._crowd.wake_all()
            self._has_listened = True
            self._hear(session)
            session.ask([(_GONE, (self.name,))])
        finally:
            connection.close()

    def _hear(self, session: Session) -> None:
        poll = select.poll()
        poll.register(session.connection.pgconn.socket, select.POLLIN)
        bell = self._bell_end()
        poll.register(bell, select.POLLIN)
        next_beat = time.monotonic() + BEAT_SECONDS
        while not self._is_stopped:
            # Messages also come along with answers, after which nothing is left to be read.
            while self._take_messages(session) or self._pass_on(session):
                pass
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_SECONDS
                self._beat(session)
                continue
            ready = poll.poll(max(0.0, next_beat - time.monotonic()) * 1000)
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
                surplus += self._line.wake_seated(int(rest))
            elif rest == "*":
                self._crowd.wake_all()
            else:
                self._crowd.finished(rest.split(" "))
        if surplus > 0:
            session.ask([waiters.hand_on(self.name, surplus)])
        return any_came

    def _pass_on(self, session: Session) -> bool:
        """Wake-ups whose waiters gave up at the same moment go to others; whether there were any."""
        unused = self._line.take_unused()
        if unused:
            rows = session.rows(session.ask([waiters.wake(self.name, unused)])[0])
            self._line.hand_on(self._line.wake_seated(waiters.own_share(rows)))
        return unused > 0

    def _beat(self, session: Session) -> None:
        """Say that this store is alive and how many have left; a store where nobody waits is silent."""
        with self._lock:
            is_idle = not len(self._line) and not len(self._crowd)
            if is_idle and self._idle_beats > IDLE_BEATS:
                return
            self._idle_beats = self._idle_beats + 1 if is_idle else 0
            gone = self._line.take_gone()
            if self._idle_beats > IDLE_BEATS:
                self._awaits_finish = False
                session.ask([(_LEFT, (self.name, gone))])
            else:
                session.ask([(_BEAT, (self.name, self._awaits_finish, gone))])
