"""Reading and writing models: one thread at a time.

While transformers builds a model it changes torch for the whole process. Two threads at once leave models whose weights
are not tied, and torch changed for good.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .progress_bars import without_progress_bars

_lock = threading.RLock()


@contextmanager
def own_turn() -> Iterator[None]:
    """A block in which no other thread reads or writes a model; without progress bars."""
    with _lock, without_progress_bars():
        yield
