"""Hearing of what others did: one thread and connection for each channel, from when somebody first waits.

A message may be lost with a connection, so whoever waits looks again after every new one.
"""

import logging
import threading
import time
from collections.abc import Callable

import msgspec
import redis

from ..base import new_id
from ..local import BroadcastWaiters, FifoWaiters, Watchdog
from .connection import Connection
from .scripts import WAKE

log = logging.getLogger(__name__)

READY_SECONDS, NO_WAIT_SECONDS = 2.0, 60.0
LISTEN_SECONDS = 4.0  # below the time-out of the socket
PAUSE_SECONDS = 0.2


class Listener:
    """Listens to one channel. `on_message` and `on_connect` are called from its thread."""

    def __init__(
        self, connection: Connection, channel: str, on_message: Callable[[bytes], None], on_connect: Callable[[], None]
    ) -> None:
        self._connection, self._channel = connection, connection.key(channel)
        self._on_message, self._on_connect = on_message, on_connect
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._is_stopped = threading.Event()
        self._next_wait, self._why = 0.0, "the server has not responded"

    def ensure(self) -> None:
        """Listen from now on. Where that takes too long, the slow look around has to do meanwhile.

        Who comes soon after that does not wait for it again: where nobody may listen, every call would be slow.
        """
        if self._is_ready.is_set():
            return
        with self._lock:
            if self._thread is None and not self._is_stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="sharpen-redis-listener", daemon=True)
                self._thread.start()
        if time.monotonic() >= self._next_wait and not self._is_ready.wait(READY_SECONDS):
            self._next_wait = time.monotonic() + NO_WAIT_SECONDS
            log.warning("no notifications from Redis yet; waiting calls poll once a second: %s", self._why)

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                self._listen()
            except redis.RedisError as error:
                self._why = self._connection.words(error)
                if self._is_ready.is_set():
                    log.info("lost the connection for notifications from Redis; reconnecting: %s", self._why)
                self._is_ready.clear()
                self._is_stopped.wait(PAUSE_SECONDS)

    def _listen(self) -> None:
        with self._connection.client.pubsub() as channel:  # type: ignore[no-untyped-call]
            channel.subscribe(self._channel)
            while not self._is_stopped.is_set():
                message = channel.get_message(timeout=LISTEN_SECONDS)
                if message is None:
                    continue
                if message["type"] == "subscribe":
                    self._is_ready.set()
                    self._next_wait = 0.0
                    self._on_connect()
                elif message["type"] == "message" and message["data"]:
                    self._take(message["data"])

    def _take(self, message: bytes) -> None:
        try:
            self._on_message(message)
        except (ValueError, msgspec.DecodeError):
            log.warning("ignored a message on %s that no store sent", self._channel)

    def stop(self) -> None:
        """End the thread, with a message that says nothing."""
        self._is_stopped.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        if self._is_ready.is_set():
            try:
                self._connection.client.publish(self._channel, b"")
            except redis.RedisError:
                log.debug("the server cannot be reached; the listener stops by itself")
        thread.join(LISTEN_SECONDS + 1)


class SharedWaiters(FifoWaiters):
    """Waiters for work, of whom others have more: a wake-up that nobody here can use goes to them."""

    def __init__(self, hand_on: Callable[[int], None]) -> None:
        super().__init__()
        self._hand_on = hand_on

    def wake(self, count: int) -> None:
        left = self.wake_here(count)
        if left > 0:
            self._hand_on(left)

    def wake_here(self, count: int) -> int:
        """Wake up to so many, and return how many wake-ups are left over."""
        with self._lock:
            while count > 0 and self._waiting:
                count -= self._waiting.popleft().wake()
        return count


class Notifications:
    """Messages from Redis for the waiters of this process. It holds no reference to a store, so it keeps none alive."""

    def __init__(self, connection: Connection, finish_waiting: BroadcastWaiters, watchdog: Watchdog) -> None:
        self.name = new_id("li")
        self._connection, self._finish_waiting, self._watchdog = connection, finish_waiting, watchdog
        self.workers = SharedWaiters(self._hand_on)
        self._lock, self._to_hand_on = threading.Lock(), 0
        self._finish_seen, self._has_heard = -1, False
        self._work = Listener(connection, f"work:{self.name}", self._hear_work, self._look_for_work)
        self._finishes = Listener(connection, "finished", self._hear_finished, finish_waiting.wake_all)

    def before_claiming(self) -> None:
        """Listen before the look where somebody waits, so that no wake-up falls between the two."""
        if len(self.workers):
            self._work.ensure()

    def before_reading(self) -> None:
        """The same for those who wait for rollouts to finish."""
        if len(self._finish_waiting):
            self._finishes.ensure()

    def _hear_work(self, message: bytes) -> None:
        self.workers.wake(int(message))

    def _look_for_work(self) -> None:
        self.workers.wake_here(len(self.workers))

    def _hear_finished(self, message: bytes) -> None:
        self._has_heard = True
        self._finish_waiting.finished(msgspec.json.decode(message, type=list[str]))

    def _hand_on(self, count: int) -> None:
        """Nobody here waits for these items any more: the watchdog wakes somebody elsewhere."""
        with self._lock:
            self._to_hand_on += count
        self._watchdog.hurry()

    def wake_elsewhere(self) -> None:
        with self._lock:
            count, self._to_hand_on = self._to_hand_on, 0
        if count:
            self._connection.run(WAKE, count)

    def catch_up(self, queued: int, finish: int) -> None:
        """Wake waiters for what no message announced: queued work, and rollouts that have finished."""
        if queued and len(self.workers):
            self.workers.wake_here(queued)
        if finish != self._finish_seen and not self._has_heard and len(self._finish_waiting):
            self._finish_waiting.wake_all()
        self._finish_seen, self._has_heard = finish, False

    def stop(self) -> None:
        self._work.stop()
        self._finishes.stop()
