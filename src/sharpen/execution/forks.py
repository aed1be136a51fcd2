"""Forks of this process while a run handles its signals: they get the handlers back that were there before.

A fork shares the descriptor that wakes the loop of its parent, so a SIGTERM that is meant for it would end the runner;
and with our handlers it would not die of the signal. Signals that reach a fork before it is set right wait.
"""

import os
import signal
import threading
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handlers = dict[signal.Signals, Any]

_replaced: list[Handlers] = []  # what our handlers stand in for, the latest last
_of_thread = threading.local()


def begin(before: Handlers) -> None:
    """Our handlers stand in for these from now on."""
    _replaced.append(before)


def end(before: Handlers) -> None:
    """They have been set again."""
    _replaced.remove(before)


def _hold_signals() -> None:
    if _replaced:
        _of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let_signals_in() -> None:
    mask = getattr(_of_thread, "mask", None)
    if mask is not None:
        _of_thread.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _restore() -> None:
    if _replaced:
        signal.set_wakeup_fd(-1)
    while _replaced:
        for number, handler in _replaced.pop().items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _let_signals_in()


os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_restore)
