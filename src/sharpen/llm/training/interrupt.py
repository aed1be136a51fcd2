"""Ctrl-C in the middle of training: the step is finished and a checkpoint written; a second one stops at once."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

log = logging.getLogger(__name__)


class Stoppable(Protocol):
    """A loop that ends after its step."""

    should_stop: bool


class Interrupt:
    """Whether Ctrl-C was pressed."""

    is_asked = False


@contextmanager
def asking_to_stop(loop: Stoppable) -> Iterator[Interrupt]:
    """Let the first Ctrl-C ask the loop to stop, where nobody else has taken the signal over."""
    interrupt = Interrupt()
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield interrupt
        return

    def ask(number: int, frame: FrameType | None) -> None:
        interrupt.is_asked = loop.should_stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log.warning(
            "stopping after this step and writing a checkpoint; press Ctrl-C again to stop now and lose the step"
        )

    signal.signal(signal.SIGINT, ask)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
