"""How signals to this process interrupt a run.

During a run the first Ctrl-C or SIGTERM ends it in order, a second one at once. A signal handler runs between two
steps of the main thread, which may hold any lock. So it takes none: it only posts the signal to the supervising loop.

A fork of a process that handles signals gets the handlers back that were there before: it shares the descriptor that
wakes the loop of its parent, so a SIGTERM meant for the fork would end the parent, and with our handlers the fork
would not die of the signal. Signals that reach a fork before its handlers are restored wait.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handlers = dict[signal.Signals, Any]


class Interrupts:
    """Catches the signals while it is entered, where that is possible: on the main thread.

    `on_signal` is called with the number of the signal, and whether it is not the first.
    """

    def __init__(self, on_signal: Callable[[int, bool], None]) -> None:
        self._on_signal = on_signal
        self._count = 0
        self._before: Handlers = {}
        self.may_raise = False
        """Whether a repeated signal raises `KeyboardInterrupt` in the main thread."""
        self._is_forced = False

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in SIGNALS}
            # Who ignores a signal (as under nohup) wants it ignored; None was not set by Python.
            self._before = {number: each for number, each in before.items() if each not in (signal.SIG_IGN, None)}
            for number in self._before:
                signal.signal(number, self._receive)
            if self._before:
                restore_in_forks(self._before)
        return self

    def __exit__(self, *error: object) -> None:
        self.may_raise = False
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._before in _replaced:
            _replaced.remove(self._before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._is_forced:
            self._count += 1
            self._on_signal(number, self._count > 1)
        if self.may_raise and (self._is_forced or self._count > 1):
            self.may_raise = False
            raise KeyboardInterrupt

    def force(self) -> None:
        """Raise `KeyboardInterrupt` in whatever the main thread does; called from another thread."""
        main = threading.main_thread().ident
        if self._before and self.may_raise and main is not None:
            self._is_forced = True
            signal.pthread_kill(main, next(iter(self._before)))


# -- forks -------------------------------------------------------------------------------------------

_replaced: list[Handlers] = []  # what our handlers stand in for, the latest last
_of_thread = threading.local()


def restore_in_forks(before: Handlers) -> None:
    """Have forks of this process, as long as a handler of ours replaces these, begin with these."""
    _replaced.append(before)


def _hold_signals() -> None:
    if _replaced:
        _of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let_signals_in() -> None:
    mask = _of_thread.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _restore() -> None:
    if _replaced:
        signal.set_wakeup_fd(-1)
    while _replaced:
        for number, handler in _replaced.pop().items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _let_signals_in()


os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_restore)
