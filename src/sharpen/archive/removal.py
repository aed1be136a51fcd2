"""Remove a run: its folder is renamed first and deleted then, so that a half-deleted one never looks like a run."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError, RunError, UnknownIdError, describe
from ..runs import runs_root
from ..runs.folder import FolderLock, is_served
from ..store.sqlite.schema import open_files
from .catalog import RunEntry

# Every connection to a SQLite file in WAL mode locks some of these bytes from its first query until it closes.
_SHARED_START, _SHARED_BYTES = 0x40000002, 510
_RENAMED = re.compile(r"\..+\.removed-(\d+)")


def remove_run(entry: RunEntry) -> None:
    """Remove the folder of a run with everything in it.

    Raises:
        RunError: The run is running, or its store is in use.
        ConfigError: The folder may hold other things.
    """
    check_removable(entry)
    with _locked_folder(entry.path), _locked_store(entry):
        renamed = entry.path.with_name(f".{entry.path.name}.removed-{os.getpid()}")
        try:
            entry.path.rename(renamed)
        except OSError as error:
            raise RunError(f"cannot remove run {entry.name!r}: {describe(error)}") from error
    _delete(renamed)
    _delete_leftovers(entry.path.parent)


def check_removable(entry: RunEntry) -> None:
    """Raise if a run must not be removed."""
    path = entry.path
    if not path.is_dir() or path.is_symlink():
        kind = "a symbolic link" if path.is_symlink() else "not a folder"
        raise UnknownIdError(f"nothing was removed: {str(path)!r} is {kind}")
    now = RunEntry.of(path)  # the entry may be outdated
    if now.is_running:
        has_lock = (now.path / ".lock").exists()
        hint = "stop it first" if has_lock else "its files changed within the last minutes; stop it, or wait a little"
        raise RunError(f"run {entry.name!r} is running: {hint}")
    if is_served(path):
        raise RunError(f"the store of run {entry.name!r} is being served; stop that server first")
    if Path.cwd().is_relative_to(path.resolve()):
        raise ConfigError(f"{str(path)!r} contains the working directory; leave it first")
    is_own_folder = now.kind in ("agents", "fine-tuning") or path.parent.resolve() == runs_root().resolve()
    if not is_own_folder or entry.store_name != now.store_name or (path / ".git").exists():
        raise ConfigError(f"{str(path)!r} may hold more than a run; delete it manually if nothing in it is needed")
    with _locked_store(now):
        pass


@contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Prevent a resume of the run while it is renamed."""
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
def _locked_store(entry: RunEntry) -> Iterator[None]:
    """Lock a store by itself: it has no lock file, but an open connection holds one of SQLite's locks, even if idle."""
    path = entry.store_path
    if path is None or entry.kind != "store":
        yield
        return
    # A file that is open in this process must not be opened again: closing a second descriptor drops the locks.
    handle = None if open_files.has(path) else _exclusive_lock(path)
    if handle is None:
        raise RunError(
            f"the store {str(path)!r} is open elsewhere, such as in a store server or a dashboard; stop that first"
        )
    try:
        yield
    finally:
        os.close(handle)


def _exclusive_lock(path: Path) -> int | None:
    """Return a descriptor that locks the file exclusively; None if another process has it open."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(f"cannot check whether the store {str(path)!r} is in use: {describe(error)}") from error
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_BYTES, _SHARED_START)
    except (BlockingIOError, PermissionError):  # which of the two depends on the system
        os.close(handle)
        return None
    return handle


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise RunError(
            f"the run was renamed to {str(folder)!r}, but could not be deleted completely: {describe(error)}"
        ) from error


def _delete_leftovers(root: Path) -> None:
    """Delete what killed removals left behind."""
    for path in root.glob(".*.removed-*"):
        match = _RENAMED.fullmatch(path.name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
