"""Finished work that a store server cannot take now: a local file, and the sender that delivers it in order.

An entry is one line of JSON, synced before the call returns. A file is private to its user, bounded, and locked while
its worker lives, so that a later worker can tell the leftovers of a dead one from a file in use. Every entry can be
sent twice, as writes carry the caller's ids. A file belongs to one store, by its id or, where that was never known, by
the address of the server: what one store has not taken never reaches another one.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ..backoff import Backoff
from ..errors import AccessDeniedError, SharpenError, StoreError, StoreFileError, StoreUnavailableError
from .base import new_id
from .token_files import check_folder, state_folder

log = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20
_URL_KEY = "url-"


class Entry(msgspec.Struct, frozen=True):
    """One request that is still to be sent. One without a verb is a line that could not be read."""

    verb: str
    path: str
    body: str


class Unreachable(Exception):
    """The server gave no answer, or said that it cannot now; `kind` is the class of the error that it named."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class OtherStore(Unreachable):
    """Another store answers at the address."""


class Connection(Protocol):
    """What reaches the server."""

    url: str
    store_id: str | None

    async def send_surely(self, request: Entry, seconds: float) -> bytes | None: ...
    async def send(self, request: Entry, store_id: str | None = None) -> bytes | None: ...


class SpoolSender:
    """Delivers finished work to the server; while that is unreachable, to the spool, and from there later."""

    def __init__(self, connection: Connection, folder: Path, *, max_bytes: int, patience_seconds: float) -> None:
        self._connection, self._folder, self._max_bytes = connection, folder, max_bytes
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._own: Spool | None = None
        self._leftovers: list[Spool] = []
        self._adopted_for: str | None = None
        self._replaying: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """The number of entries that are still to be sent."""
        return sum(spool.count for spool in self._spools())

    def _spools(self) -> list["Spool"]:
        return [*self._leftovers, *([self._own] if self._own else [])]

    async def deliver(self, request: Entry) -> bytes | None:
        """Return the server's answer, or None when the work lies safely in the spool."""
        if self._own is None or self._own.count == 0:
            try:
                return await self._connection.send_surely(request, self._patience_seconds)
            except StoreUnavailableError as error:
                log.warning("%s; finished work is saved in %s until the server can be reached", error, self._folder)
        await asyncio.to_thread(self._spool().append, request)
        self._start_replay()
        return None

    def _spool(self) -> "Spool":
        """The spool for the store that answered last; work for an earlier one stays in its own."""
        with self._lock:
            store_id = self._connection.store_id
            if self._own is not None and self._own.store_id not in (None, store_id):
                self._leftovers.append(self._own)
                self._own = None
            if self._own is None:
                self._own = Spool(self._folder, _key_of(store_id, self._connection.url), max_bytes=self._max_bytes)
            return self._own

    def note_answer(self) -> None:
        """Called after every answer of the server: look once for what earlier workers left for this store."""
        url, store_id = self._connection.url, self._connection.store_id
        if self._adopted_for is None or store_id not in (None, self._adopted_for):
            self._adopted_for = store_id or url
            keys = {_key_of(store_id, url), _key_of(None, url)}
            self._leftovers += Spool.adopt_leftovers(self._folder, keys, max_bytes=self._max_bytes)
            if self._leftovers:
                log.info("sending %d spooled requests with finished work of earlier workers", self.count)
        if self._leftovers or (self._own is not None and self._own.count):
            self._start_replay()

    def _start_replay(self) -> None:
        """Replay in this loop, unless a replay is running; it may have ended with the loop of another thread."""
        with self._lock:
            task = self._replaying
            if task is None or task.done() or task.get_loop().is_closed():
                self._replaying = asyncio.get_running_loop().create_task(self._replay_until_done())

    async def _replay_until_done(self) -> None:
        backoff = Backoff(0.2, maximum=5.0, jitter=0.5)
        while self.count:
            try:
                await self._replay()
            except Unreachable:
                await backoff.wait_async()

    async def _replay(self) -> None:
        """Send everything, leftovers of earlier workers first; what belongs to another store stays."""
        stays: OtherStore | None = None
        for spool in self._spools():
            sent = 0
            try:
                while not spool.drop_sent(sent):
                    for entry in list(spool.entries(skip=sent)):
                        await self._replay_entry(spool, entry)
                        sent += 1
                if spool in self._leftovers:
                    self._leftovers.remove(spool)
            except OtherStore as error:
                stays = error
        if stays is not None:
            raise stays

    async def _replay_entry(self, spool: "Spool", entry: Entry) -> None:
        try:
            if not entry.verb:
                raise StoreError("the line is unreadable")
            await self._connection.send(entry, spool.store_id)
        except (AccessDeniedError, StoreFileError) as error:  # to be fixed on the server: the work is not at fault
            raise Unreachable(str(error)) from error
        except SharpenError as error:
            log.warning("the store refused spooled work, which was moved to %s: %s", spool.reject(entry, error), error)

    async def close(self) -> None:
        """Send what can be sent now; the rest stays for a later worker."""
        if self._replaying is not None:
            await _cancel(self._replaying)
        if self.count:
            try:
                await self._replay()
            except (Unreachable, StoreError) as error:
                log.warning("%d spooled requests with finished work stay in %s: %s", self.count, self._folder, error)
        for spool in self._spools():
            spool.close()


class Spool:
    """An ordered file of entries. Nothing exists on disk until the first one."""

    def __init__(self, folder: Path, key: str, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._key, self._max_bytes = folder, key, max_bytes
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._file = -1
        self._size = 0
        self.count = 0

    @property
    def store_id(self) -> str | None:
        """The store that the entries belong to, where it was known."""
        return None if self._key.startswith(_URL_KEY) else self._key

    @classmethod
    def adopt_leftovers(cls, folder: Path, keys: set[str], *, max_bytes: int = MAX_BYTES) -> "list[Spool]":
        """Return the spools of workers that died before theirs was empty."""
        adopted: list[Spool] = []
        try:
            if folder.is_dir():
                _check_owner(folder)
        except PermissionError as error:
            log.warning("skipping the finished work of earlier workers: %s", error)
            return adopted
        for path in sorted(folder.glob("*.spool")):
            key = path.stem.rpartition(".")[0]
            if key in keys and (file := _lock_leftover(path)) is not None:
                spool = cls(folder, key, max_bytes=max_bytes)
                spool._path, spool._file, spool._size = path, file, os.fstat(file).st_size
                spool.count = sum(1 for _ in spool.entries())
                if not spool.drop_sent(0):
                    adopted.append(spool)
        return adopted

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
        _check_owner(self._folder)
        # Before it is locked, another worker may take the new file for an empty leftover and remove it.
        while self._file < 0 or os.fstat(self._file).st_nlink == 0:
            self._close_file()
            self._path = self._folder / f"{self._key}.{new_id('sp')}.spool"
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def entries(self, skip: int = 0) -> Iterator[Entry]:
        """Yield the entries in order. A last line that a crash cut short was never acknowledged and is left out."""
        if self._path is None:
            return
        with self._path.open("rb") as file:
            for number, line in enumerate(file):
                if number >= skip and line.endswith(b"\n"):
                    yield _parse(line)

    def reject(self, entry: Entry, reason: Exception) -> Path:
        """Set aside what the store will never take, so that it neither blocks the rest nor is lost."""
        assert self._path is not None
        aside = self._path.with_suffix(".rejected")
        with open(aside, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(msgspec.json.encode({"reason": str(reason), "entry": entry}) + b"\n")
        return aside

    def drop_sent(self, sent: int) -> bool:
        """All `sent` entries were delivered: remove the file unless more came in meanwhile."""
        with self._lock:
            if self.count > sent:
                return False
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            self._close_file()
            self._path, self._size, self.count = None, 0, 0
            return True

    def close(self) -> None:
        """Let go of the file; what is in it stays for the next worker."""
        if not self.drop_sent(0):
            with self._lock:
                self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def default_folder() -> Path:
    """Return where spools lie: `SHARPEN_SPOOL`, else the user's state folder."""
    return Path(os.environ.get("SHARPEN_SPOOL") or state_folder() / "spool")


def _check_owner(folder: Path) -> None:
    """Refuse a folder of somebody else, who could read finished work there or add to it."""
    check_folder(folder)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"the folder {folder} belongs to another user: set SHARPEN_SPOOL to a folder of yours")


def _key_of(store_id: str | None, url: str) -> str:
    """What a spool belongs to: the store by its id or, while that is unknown, the address."""
    return store_id or _URL_KEY + hashlib.sha256(url.encode()).hexdigest()[:16]


def _lock_leftover(path: Path) -> int | None:
    """Open and lock the file of a dead worker; None if its worker lives, it is not ours, or another one was faster."""
    with contextlib.suppress(OSError):  # it has gone, or may not be opened
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        with contextlib.suppress(OSError):  # a live worker holds it, or the disk has no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(file)
            if found.st_uid == os.getuid() and found.st_nlink:
                return file
        os.close(file)
    return None


def _parse(line: bytes) -> Entry:
    try:
        return msgspec.json.decode(line, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Entry("", "", line.decode("utf-8", "replace"))


async def _cancel(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end, also where it runs in the loop of another thread."""
    loop = task.get_loop()
    if loop is asyncio.get_running_loop():
        task.cancel()
        await asyncio.wait([task])
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_cancel(task), loop))
