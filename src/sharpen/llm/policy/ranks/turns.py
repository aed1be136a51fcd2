"""One piece of work after the other, in a thread that nobody else uses.

Whoever waits may be broken off at any line. The work is not: half an order on its way to another rank, or one rank that
leaves the others in the middle, would be the end of them all. Work that nobody waits for ends where it asks `check`.

So the one who waits holds no lock that the work needs, not even inside the standard library.
"""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Works = SimpleQueue[Callable[[], None] | None]

_WAKE_SECONDS = 0.2  # a thread that waits in one long call cannot be broken off


class NotWanted(BaseException):
    """Nobody waits for this work any more."""


class _Turn:
    def __init__(self) -> None:
        self.is_wanted = True
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def finish(self) -> None:
        self._done.release()

    def is_done(self, seconds: float) -> bool:
        """Whether it is done, or is so within this time."""
        if not self._done.acquire(timeout=seconds):
            return False
        self._done.release()  # for others who ask
        return True


class Turns:
    """`surroundings` are entered for each piece of work. The thread ends when nobody holds this object any more."""

    def __init__(self, surroundings: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext) -> None:
        self._surroundings = surroundings
        self._now: _Turn | None = None
        self._works: Works = SimpleQueue()
        weakref.finalize(self, self._works.put, None)
        self._thread = threading.Thread(target=_do_all, args=(self._works,), name="sharpen-ranks", daemon=True)
        self._thread.start()

    def take(self, work: Callable[[], T]) -> T:
        """The result of the work, when its turn has come. Inside other work it is done at once."""
        if threading.get_ident() == self._thread.ident:
            return work()
        turn = _Turn()
        try:
            self._works.put(functools.partial(self._do, turn, work))
            while not turn.is_done(_WAKE_SECONDS):
                pass
        except BaseException:
            turn.is_wanted = False
            raise
        if turn.error is not None:
            raise turn.error
        found: T = turn.result
        return found

    def check(self) -> None:
        """Inside work: NotWanted where nobody waits for it."""
        now = self._now
        if now is not None and not now.is_wanted:
            raise NotWanted

    def abandon(self, seconds: float) -> None:
        """Nobody wants what is under way; wait so long for its end."""
        now = self._now
        if now is not None:
            now.is_wanted = False
            now.is_done(seconds)

    def _do(self, turn: _Turn, work: Callable[[], Any]) -> None:
        self._now = turn
        try:
            self.check()
            with self._surroundings():
                turn.result = work()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            turn.error = error
        self._now = None
        turn.finish()


def _do_all(works: Works) -> None:
    """Between two pieces of work the thread holds nothing but the queue."""
    while (work := works.get()) is not None:
        work()
        del work
