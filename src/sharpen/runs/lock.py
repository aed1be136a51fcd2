"""One process at a time: a lock that the kernel releases when its holder dies, however it dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError

# Whoever looks at the runs holds the lock of each for a moment, to see whether it is free.
PATIENCE_SECONDS = 0.2


# Held by whoever serves the store of a run that has ended: the run does not go on, but its files are in use.
SERVED = ".served"


class FolderLock:
    """Held from `take` to `release`. The file itself is made once and never written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(handle)
        except BlockingIOError:
            os.close(handle)
            raise ConfigError(
                f"the run in {str(self._path.parent)!r} is in use: another process, or another fit of this one, works "
                "on it; wait for its end, or start a new run"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _lock(handle: int) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.005)


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """Tell others that the store in this folder is being served. Several servers may do so."""
    handle = os.open(folder / SERVED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_served(folder: Path) -> bool:
    """Whether a live process serves the store in this folder."""
    try:
        handle = os.open(folder / SERVED, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
