"""One process at a time: a lock that the kernel releases when its holder dies, however it dies."""

import fcntl
import os
from pathlib import Path

from ..errors import ConfigError


class FolderLock:
    """Held from `take` to `release`. The file itself is made once and never written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
