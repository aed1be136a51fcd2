"""Ctrl-C and SIGTERM during a run: the first one ends it in order, a second one at once.

A signal handler runs between two steps of the main thread, which may hold any lock. So it takes none: it only tells
the supervising loop, which does the rest.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from . import forks
from .forks import SIGNALS, Handlers


class Interrupts:
    """Catches the signals while it is entered, where that is possible: on the main thread."""

    def __init__(self, tell: Callable[[int, bool], None]) -> None:
        self._tell = tell
        self._count = 0
        self._before: Handlers = {}
        self.may_raise = False
        self._is_forced = False

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                # Who ignores a signal (as under nohup) wants it ignored; None was not set by Python.
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._receive)
        if self._before:
            forks.begin(self._before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.may_raise = False
        if self._before:
            for number, before in self._before.items():
                signal.signal(number, before)
            forks.end(self._before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._is_forced:
            self._count += 1
            self._tell(number, self._count > 1)
        if self.may_raise and (self._is_forced or self._count > 1):
            self.may_raise = False
            raise KeyboardInterrupt

    def force(self) -> None:
        """Break into whatever the main thread does; called from another thread."""
        main = threading.main_thread().ident
        if self._before and self.may_raise and main is not None:
            self._is_forced = True
            signal.pthread_kill(main, next(iter(self._before)))
