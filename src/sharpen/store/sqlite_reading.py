"""A store file that is only read: beside a live writer, or where nothing may be written.

Beside a writer SQLite itself keeps the readers' view whole, with the help of two files next to the store. While there
is no log with anything in it, nobody writes: then the file is read as one that stands still, which leaves nothing
beside it. Whoever reads so asks afterwards whether the file has changed, and if it has, reads again.
"""

import os
import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

from ..errors import StoreFileError
from .sqlite_schema import check_head, set_up, version_of


class ReadOnlyFile:
    """How connections to a file that is only read are opened."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        # As texts: they are asked for at every question, and making a `Path` would take longer than the answer.
        self._file, self._log_file = str(path), str(self._beside("-wal"))
        check_readable(path)
        self._state = self._state_now()
        self._is_still = self._stands_still()

    def connect(self) -> sqlite3.Connection:
        options = "immutable=1" if self._is_still else "mode=ro"
        address = f"file:{quote(str(self.path.absolute()))}?{options}"
        connection = sqlite3.connect(
            address, uri=True, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            set_up(connection)
            connection.execute("PRAGMA query_only = ON")
            if version_of(connection, self.path) < 1:
                raise StoreFileError(
                    f"{str(self.path)!r} is empty and not a store yet: choose a store file that has been used"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def has_changed(self) -> bool:
        """Whether someone has written to a file that was taken to stand still: its connections are outdated."""
        if not self._is_still:
            return False
        state = self._state_now()
        if state == self._state:
            return False
        self._state, self._is_still = state, self._stands_still()
        return True

    def _stands_still(self) -> bool:
        if not self._log_bytes():
            return True
        if self._beside("-shm").exists() or os.access(self.path.parent, os.W_OK | os.X_OK):
            return False
        raise StoreFileError(
            f"{str(self.path)!r} has a write-ahead log that was not merged, and its folder is not writable: "
            f"copy both files ({self.path.name} and {self.path.name}-wal) to a writable folder and open the copy"
        )

    def _state_now(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            raise StoreFileError(f"the store file {str(self.path)!r} no longer exists") from None
        return found.st_mtime_ns, found.st_size, self._log_bytes()

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._log_file).st_size
        except FileNotFoundError:
            return 0

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)


def check_readable(path: Path) -> None:
    """Refuse a file that cannot be read as a store."""
    if not path.exists():
        raise StoreFileError(f"the store file {str(path)!r} does not exist")
    if not stat.S_ISREG(path.stat().st_mode):
        raise StoreFileError(f"{str(path)!r} is not a regular file")
    if not os.access(path, os.R_OK):
        raise StoreFileError(f"{str(path)!r} is not readable by this user: change its permissions")
    check_head(path)
