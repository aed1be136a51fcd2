"""Threads, each with a connection of its own, that run jobs in the order in which they came."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from .hand import Hand
from .jobs import PostgresJob


class Pool:
    """At most so many threads; each is started when all others are at work."""

    def __init__(self, size: int, *, make_hand: Callable[[], Hand], run: Callable[[Hand, PostgresJob], None]) -> None:
        self._size = size
        self._make_hand, self._run = make_hand, run
        self._jobs: SimpleQueue[PostgresJob | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._is_stopped = False

    def submit(self, job: PostgresJob) -> bool:
        """Whether it will be run: not once the pool has been stopped."""
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
        hand = self._make_hand()
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    self._run(hand, job)
                finally:
                    with self._lock:
                        self._unfinished -= 1
        finally:
            hand.close()

    def stop(self) -> None:
        """Run what is there, and end."""
        with self._lock:
            self._is_stopped = True
            threads = list(self._threads)
            for _ in threads:
                self._jobs.put(None)
        for thread in threads:
            thread.join()

    def end(self) -> None:
        """Without a word, a lock or a wait: nobody has the store any more."""
        for _ in range(self._size):
            self._jobs.put(None)
