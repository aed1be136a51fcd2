"""Commands that serve until a signal stops them: the signal as an exit code."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from .exit_codes import INTERRUPTED, OK, TERMINATED

_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class Ended:
    """How a server was stopped: `code` is that of the first signal, or 0."""

    def __init__(self) -> None:
        self.code = OK


@contextlib.contextmanager
def ended_by_signals(stop: Callable[[], object]) -> Iterator[Ended]:
    """Call `stop` on Ctrl-C and SIGTERM (on the main thread); a second signal ends the process at once.

    An ignored signal, as in a background process of a shell, stays ignored.
    """
    ended, before = Ended(), _handlers()

    def receive(number: int, frame: FrameType | None) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        ended.code = _CODES[signal.Signals(number)]
        stop()

    for number in before:
        signal.signal(number, receive)
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handlers() -> dict[signal.Signals, Callable[[int, FrameType | None], object] | int]:
    """Return the handlers that can be replaced and restored: only on the main thread, and set by Python."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in _CODES}
    return {number: each for number, each in found.items() if each is not None and each is not signal.SIG_IGN}
