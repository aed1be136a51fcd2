"""Finished work that the server could not take: a local file of the worker's own, replayed in order.

Each entry is one line of JSON, synced before the call returns. The file is private to its user, bounded, and
locked while its worker lives, so that a later worker can tell the leftovers of a dead one from a file in use.
Every entry can be sent twice: writes carry the caller's ids.
"""

import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import StoreUnavailableError
from .checks import new_id
from .token_files import check_folder, state_folder

log = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20
URL_KEY = "url-"


class Entry(msgspec.Struct, frozen=True):
    """One request that is still to be sent. One without a verb is a line that could not be read."""

    verb: str
    path: str
    body: str


def default_folder() -> Path:
    """Where spools lie: `SHARPEN_SPOOL`, else the user's state folder."""
    if folder := os.environ.get("SHARPEN_SPOOL"):
        return Path(folder)
    return state_folder() / "spool"


def check_owner(folder: Path) -> None:
    """Refuse a folder of somebody else, who could read finished work there or add to it."""
    check_folder(folder)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"the folder {folder} belongs to another user: set SHARPEN_SPOOL to a folder of yours")


def key_of(store_id: str | None, url: str) -> str:
    """What a spool belongs to: the store by its id or, while that is unknown, the address."""
    return store_id or URL_KEY + hashlib.sha256(url.encode()).hexdigest()[:16]


class Spool:
    """An ordered file of entries. Nothing exists on disk until the first one."""

    def __init__(self, folder: Path, key: str, *, max_bytes: int = MAX_BYTES, path: Path | None = None) -> None:
        self._folder, self._key, self._max_bytes = folder, key, max_bytes
        self._lock = threading.Lock()
        self._path = path
        self._file = -1
        self._size = 0
        self.count = 0

    @property
    def store_id(self) -> str | None:
        """The store that the entries belong to, where it was known."""
        return None if self._key.startswith(URL_KEY) else self._key

    @classmethod
    def adopt_leftovers(cls, folder: Path, keys: set[str], *, max_bytes: int = MAX_BYTES) -> "list[Spool]":
        """The spools of workers that died before theirs was empty."""
        adopted: list[Spool] = []
        if not folder.is_dir():
            return adopted
        try:
            check_owner(folder)
        except PermissionError as error:
            log.warning("skipping the finished work of earlier workers: %s", error)
            return adopted
        for path in sorted(folder.glob("*.spool")):
            key = path.stem.rpartition(".")[0]
            if key in keys:
                spool = cls(folder, key, max_bytes=max_bytes, path=path)
                if spool._claim():
                    adopted.append(spool)
        return adopted

    def _claim(self) -> bool:
        """Lock the file of a dead worker; False where its worker lives, or another one was faster."""
        assert self._path is not None
        try:
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        except OSError:  # it has gone, or is not ours
            return False
        if os.fstat(file).st_uid != os.getuid():
            os.close(file)
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        if not os.path.exists(self._path):
            os.close(file)
            return False
        self._file, self._size = file, os.fstat(file).st_size
        self.count = sum(1 for _ in self.entries())
        if self.count == 0:
            self.close()
        return self.count > 0

    def append(self, entry: Entry) -> None:
        """Keep an entry: on disk, synced, before this returns."""
        line = msgspec.json.encode(entry) + b"\n"
        with self._lock:
            if self._size + len(line) > self._max_bytes:
                raise StoreUnavailableError(
                    f"the store server cannot be reached and the spool {self._path} is full ({self._size} bytes): "
                    "finished work is lost"
                )
            try:
                self._open()
                self._write(line)
            except OSError as error:
                raise StoreUnavailableError(
                    f"the store server cannot be reached and {self._folder} cannot be written ({error}): "
                    "finished work is lost"
                ) from error
            self._size += len(line)
            self.count += 1

    def _write(self, line: bytes) -> None:
        """The whole line or, where the disk is full, nothing of it."""
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise

    def _open(self) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.mkdir(exist_ok=True, mode=0o700)
        check_owner(self._folder)
        # Before it is locked, another worker may take the new file for an empty leftover and remove it.
        while self._file < 0 or os.fstat(self._file).st_nlink == 0:
            if self._file >= 0:
                os.close(self._file)
            self._path = self._folder / f"{self._key}.{new_id('sp')}.spool"
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def entries(self, skip: int = 0) -> Iterator[Entry]:
        """The entries in order. A last line that a crash cut short was never acknowledged and is left out."""
        if self._path is None:
            return
        with self._path.open("rb") as file:
            for number, line in enumerate(file):
                if number >= skip and line.endswith(b"\n"):
                    yield _parse(line)

    def reject(self, entry: Entry, reason: str) -> Path:
        """Set aside what the store will never take, so that it neither blocks the rest nor is lost."""
        assert self._path is not None
        aside = self._path.with_suffix(".rejected")
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, msgspec.json.encode({"reason": reason, "entry": entry}) + b"\n")
        finally:
            os.close(file)
        return aside

    def drop_sent(self, sent: int) -> bool:
        """All `sent` entries were delivered: forget the file unless more came in meanwhile."""
        with self._lock:
            if self.count > sent:
                return False
            self._remove()
            return True

    def _remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)
        self._path, self._file, self._size, self.count = None, -1, 0, 0

    def close(self) -> None:
        """Let go of the file; what is in it stays for the next worker."""
        with self._lock:
            if self.count == 0:
                self._remove()
            elif self._file >= 0:
                os.close(self._file)
                self._file = -1


def _parse(line: bytes) -> Entry:
    try:
        return msgspec.json.decode(line, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Entry("", "", line.decode("utf-8", "replace"))
