"""Removing a run: out of sight under another name first, then from the disk: no half of one ever looks like a run."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError, RunError, UnknownIdError, in_words
from ..runs import runs_root
from ..runs.lock import FolderLock, is_served
from ..store.sqlite_schema import open_files
from .catalog import RunEntry

# Every connection to a SQLite file in WAL mode holds a lock on some of these bytes from its first question to its end.
_SHARED_START, _SHARED_BYTES = 0x40000002, 510
_ASIDE = re.compile(r"\..+\.removed-(\d+)")


def remove_run(entry: RunEntry) -> None:
    """Remove the folder of a run with everything in it. A run that goes on, and a folder that may hold other things,
    are refused."""
    check_removable(entry)
    with _kept_from_others(entry.path), _store_kept_from_others(entry):
        aside = entry.path.with_name(f".{entry.path.name}.removed-{os.getpid()}")
        try:
            entry.path.rename(aside)
        except OSError as error:
            raise RunError(f"the run {entry.name!r} cannot be removed: {in_words(error)}") from error
    _delete(aside)
    _delete_leftovers(entry.path.parent)


def check_removable(entry: RunEntry) -> None:
    """Refuse what must not be removed, before anything is."""
    path = entry.path
    if not path.is_dir() or path.is_symlink():
        kind = "a link" if path.is_symlink() else "no folder"
        raise UnknownIdError(f"{str(path)!r} is {kind}, not the folder of a run: nothing was removed")
    now = RunEntry.of(path)  # the entry may be of a while ago
    if now.is_running:
        raise RunError(f"the run {entry.name!r} is running: {_how_to_wait(now)}")
    if is_served(path):
        raise RunError(f"the store of the run {entry.name!r} is being served: stop that server first")
    if Path.cwd().is_relative_to(path.resolve()):
        raise ConfigError(f"{str(path)!r} holds the working folder: leave it first")
    is_own_folder = now.kind in ("agents", "fine-tuning") or path.parent.resolve() == runs_root().resolve()
    if not is_own_folder or entry.store_name != now.store_name or (path / ".git").exists():
        raise ConfigError(f"{str(path)!r} may hold more than a run: remove it by hand, if nothing in it is needed")
    with _store_kept_from_others(now):
        pass


def _how_to_wait(entry: RunEntry) -> str:
    if (entry.path / ".lock").exists():
        return "stop it first"
    return "its files have changed within the last minutes; stop it, or wait a little"


@contextmanager
def _kept_from_others(path: Path) -> Iterator[None]:
    """Nobody goes on with a run while it is moved aside."""
    if not (path / ".lock").exists():
        yield
        return
    lock = FolderLock(path / ".lock")
    lock.take()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _store_kept_from_others(entry: RunEntry) -> Iterator[None]:
    """A store alone has no lock of its own, but whoever has it open holds one of SQLite's, however long it is idle."""
    path = entry.store_path
    if path is None or entry.kind != "store":
        yield
        return
    # Of a file that is open here nothing else may be asked: closing a second descriptor drops the locks of the first.
    handle = None if open_files.has(path) else _locked(path)
    if handle is None:
        raise RunError(
            f"the store {str(path)!r} is open somewhere, such as in a store server or a dashboard: stop that first"
        )
    try:
        yield
    finally:
        os.close(handle)


def _locked(path: Path) -> int | None:
    """A descriptor that keeps all others out; None where somebody has the file open."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(f"nobody can tell whether the store {str(path)!r} is in use: {in_words(error)}") from error
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_BYTES, _SHARED_START)
    except (BlockingIOError, PermissionError):  # which of the two, depends on the system
        os.close(handle)
        return None
    return handle


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise RunError(
            f"the run is out of the way, but {str(folder)!r} could not be deleted whole: {in_words(error)}"
        ) from error


def _delete_leftovers(root: Path) -> None:
    """Those of removals that were killed."""
    for path in root.glob(".*.removed-*"):
        match = _ASIDE.fullmatch(path.name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
