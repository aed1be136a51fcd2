"""`RunFolder`: the folder of one run, its starts, its lock, and what happens when its disk is full.

A new run never shares a folder with another, and one process at a time works in a folder: the kernel releases its lock
when the process dies, however it dies. What is in it:

    store.db         rollouts, attempts, spans, resources (if the run has the default store)
    config.json      the resolved configuration
    run.log          the log of all processes
    metrics.jsonl    progress over time
    checkpoints/     what the algorithm needs to continue
    result.json      how it ended

A run is started once and resumed any number of times. `config.json` names every start (`started`, `resumed`) and the
seconds that the earlier ones took; `result.json` holds the number of the start that it ended. File times are never
used for that, as they change when a folder is copied.
"""

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ..checks import is_number
from ..errors import ConfigError, DiskFullError
from ..files import append_json, is_disk_full, last_json_line, read_json, write_json

log = logging.getLogger(__name__)
VARIABLE = "SHARPEN_RUNS"
METRICS, CHECKPOINT = "metrics.jsonl", "checkpoints/algorithm.json"
MOMENT, EARLIER, START = "%Y-%m-%dT%H:%M:%S%z", "earlier_seconds", "start"
_NAME = re.compile(r"[\w][\w.+-]{0,99}")
_LOCK = ".lock"
# Locked while the store of a finished run is served: the run does not continue, but its files are in use.
SERVED = ".served"
# A process that lists runs holds the lock of each for a moment, to see whether it is free.
LOCK_WAIT_SECONDS = 0.2
WARN_SECONDS = 60.0
# The files of a start that ended before it wrote config.json: no rollout has run by then.
_FIRST_FILES = re.compile(r"\.lock|checkpoints|run\.log|train\.yaml|store\.db(-wal|-shm)?|\..+\.tmp")


def runs_root() -> Path:
    """Return the folder of all runs: `SHARPEN_RUNS`, or `runs` in the working directory."""
    return Path(os.environ.get(VARIABLE) or "runs")


class RunFolder:
    """The folder of one run, locked while this object holds it."""

    def __init__(self, path: Path, lock: "FolderLock") -> None:
        self.path = path
        self._lock = lock

    # -- making and finding --------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        name: str = "run",
        *,
        run_dir: str | os.PathLike[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> "RunFolder":
        """Create a folder: exactly `run_dir`, or `<date>-<time>-<name>` below `root`."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"the name of the run is {name!r}: use letters, digits, and . _ + - (it is the name of a folder)"
            )
        if run_dir is not None:
            path = _make_exactly(Path(run_dir))
        else:
            stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
            path = _make_next(Path(root) if root is not None else runs_root(), f"{stamp}-{name}")
        return cls._locked(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """Open the folder of an earlier run, to resume it."""
        folder = Path(path).absolute()
        if not folder.is_dir():
            raise ConfigError(f"there is no run to resume at {str(path)!r}: no such folder")
        if not (folder / "config.json").is_file():
            is_unused = _is_unused(folder, {each.name for each in folder.iterdir()})
            hint = f": start it again with run_dir={str(path)!r} and without resume" if is_unused else ""
            raise ConfigError(f"{str(path)!r} is not the folder of a run: it has no config.json{hint}")
        return cls._locked(folder)

    @classmethod
    def last(cls, root: str | os.PathLike[str] | None = None) -> "RunFolder":
        """Open the folder of the newest run in which anything happened."""
        below = Path(root) if root is not None else runs_root()
        paths = [path.parent for path in below.glob("*/config.json")]
        found = [cls(path, FolderLock(path / _LOCK)) for path in paths if (path / _LOCK).is_file()]
        if not found:
            raise ConfigError(
                f"there is no run to resume in {str(below)!r}: pass the folder of the run, or start a new one"
            )
        worthwhile = [each for each in found if not each._did_nothing()]
        return cls.open(max(worthwhile or found, key=cls._made_at).path)

    @classmethod
    def _locked(cls, path: Path) -> "RunFolder":
        lock = FolderLock(path / _LOCK)
        lock.take()
        (path / "checkpoints").mkdir(exist_ok=True)
        return cls(path, lock)

    def release(self) -> None:
        """Let others work on the folder. Its files can still be read and written."""
        self._lock.release()

    # -- what is in it -------------------------------------------------------------------------------

    @property
    def store_path(self) -> Path:
        return self.path / "store.db"

    @property
    def log_path(self) -> Path:
        return self.path / "run.log"

    @property
    def metrics_path(self) -> Path:
        return self.path / METRICS

    @property
    def checkpoint_path(self) -> Path:
        return self.path / CHECKPOINT

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_json(self.path / "config.json", config)

    def read_config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json", kind=dict)

    def resumed_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a resumed run: when it began, every resume, and the seconds before this one."""
        before, result, last = self.read_config(), self.read_result(), self.last_metrics()
        progress = self.last_metrics(lambda line: "step" not in line)
        if result is not None and not is_of_last_start(before, result, progress, last.get("status")):
            result = None
        earlier = seconds_worked(before, result, last.get("time")) or 0.0
        resumed = [*before.get("resumed", []), config["started"]]
        return {**config, "started": before.get("started"), "resumed": resumed, EARLIER: earlier}

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Save how the last start of the run ended."""
        has_config = (self.path / "config.json").exists()  # the run may have failed before it was written
        starts = _starts(self.read_config() if has_config else {})
        write_json(self.path / "result.json", {**result, START: len(starts)})

    def read_result(self) -> dict[str, Any] | None:
        path = self.path / "result.json"
        return read_json(path, kind=dict) if path.exists() else None

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        append_json(self.metrics_path, metrics, is_private=True)

    def last_metrics(self, is_wanted: Callable[[dict[str, Any]], bool] | None = None) -> dict[str, Any]:
        """Return the newest complete line, of those that are wanted."""
        return last_json_line(self.metrics_path, is_wanted)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        write_json(self.checkpoint_path, state)

    def load_checkpoint(self) -> dict[str, Any] | None:
        return read_json(self.checkpoint_path, kind=dict) if self.checkpoint_path.exists() else None

    def _did_nothing(self) -> bool:
        """Whether the run failed before it had a rollout or a checkpoint, mostly for a wrong setting: there is nothing
        to resume."""
        result = self.read_result() or {}
        has_failed = result.get("status") == "failed" and not (result.get("metrics") or {}).get("rollouts")
        return has_failed and not self.checkpoint_path.exists()

    def _made_at(self) -> tuple[float, int]:
        """Return a sort key: when the run began, then when its lock was created."""
        made = (self.path / _LOCK).stat().st_mtime_ns
        started = moment(self.read_config().get("started"))
        return (made / 1e9 if started is None else started), made


def _make_exactly(path: Path) -> Path:
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = {each.name for each in path.iterdir()}
        if found and not _is_unused(path, found):
            raise ConfigError(
                f"run_dir={str(path)!r} is not empty: pass a new folder, or fit(..., resume={str(path)!r}) to resume "
                "the run in it"
            )
        with contextlib.suppress(PermissionError):  # a mounted folder with another owner: its files are private
            path.chmod(0o700)  # prompts and responses are private
    except OSError as error:
        raise ConfigError(f"run_dir={str(path)!r} cannot be created: {error.strerror}") from error
    return path


def _is_unused(path: Path, names: set[str]) -> bool:
    """Whether a run created the folder and ended before anything happened in it."""
    is_ours = _LOCK in names and all(map(_FIRST_FILES.fullmatch, names))
    return is_ours and not any((path / "checkpoints").glob("[!.]*"))


def _make_next(root: Path, name: str) -> Path:
    """Create a folder with the next free name; creation is atomic, so two runs never get the same one."""
    number = 1
    while True:
        path = (root / (name if number == 1 else f"{name}-{number}")).absolute()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)  # prompts and responses are private
        except FileExistsError:
            if root.exists() and not root.is_dir():
                raise ConfigError(f"runs cannot be kept in {str(root)!r}: it is not a folder") from None
            number += 1
        except OSError as error:
            raise ConfigError(f"the folder of the run cannot be created at {str(path)!r}: {error.strerror}") from error
        else:
            return path


# -- its starts ---------------------------------------------------------------------------------------


def moment(value: Any) -> float | None:
    """Return the seconds since 1970 of a time as `config.json` has it; None for anything else."""
    try:
        return datetime.strptime(value, MOMENT).timestamp()
    except (TypeError, ValueError):
        return None


def _starts(config: Mapping[str, Any]) -> list[Any]:
    """Return when the run was started, and every time it was resumed."""
    resumed = config.get("resumed")
    return [config.get("started"), *(resumed if isinstance(resumed, list) else [])]


def is_of_last_start(
    config: Mapping[str, Any], result: Mapping[str, Any], progress: Mapping[str, Any], status: str | None
) -> bool:
    """Whether a result says how the last start ended; otherwise that one was killed.

    Results of version 0.1 have no number. They are of the last start if they repeat its last line of progress or,
    without one, if the loggers recorded the same `status`.
    """
    starts, metrics = _starts(config), result.get("metrics")
    if START in result:
        return bool(result[START] == len(starts))
    if len(starts) == 1:
        return True
    if isinstance(metrics, dict) and "seconds" in metrics:
        return bool(metrics["seconds"] == progress.get("seconds"))
    return bool(status == result.get("status"))


def seconds_worked(config: Mapping[str, Any], result: Mapping[str, Any] | None, ended: float | None) -> float | None:
    """Return the seconds over all starts: from the result of the last one, or from its start to `ended`."""
    if result is not None and is_number(result.get("seconds")):
        return float(result["seconds"])
    began, earlier = moment(_starts(config)[-1]), config.get(EARLIER)
    if began is None or ended is None:
        return None
    return max(ended - began, 0.0) + (float(earlier) if is_number(earlier) else 0.0)


# -- the lock -----------------------------------------------------------------------------------------


class FolderLock:
    """A lock held from `take` to `release`. The file itself is created once and never written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> None:
        handle, end = _open_lock(self._path), time.monotonic() + LOCK_WAIT_SECONDS
        while not _try_lock(handle):
            if time.monotonic() >= end:
                os.close(handle)
                raise ConfigError(
                    f"the run in {str(self._path.parent)!r} is in use: another process, or another fit of this one, "
                    "is working on it; wait until it ends, or start a new run"
                )
            time.sleep(0.005)
        self._handle = handle

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """Mark the store in this folder as served during the block. Several servers may do so."""
    handle = _open_lock(folder / SERVED)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_served(folder: Path) -> bool:
    """Whether a live process serves the store in this folder."""
    if not (folder / SERVED).exists():
        return False
    handle = _open_lock(folder / SERVED)
    try:
        return not _try_lock(handle)
    finally:
        os.close(handle)


# -- a full disk --------------------------------------------------------------------------------------


class FullDisk:
    """Writes that a run can do without: while the disk is full they are skipped, with a warning once in a while."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_full = False
        self._next_warning = 0.0

    @contextmanager
    def tolerated(self, folder: Path) -> Iterator[None]:
        """Skip a write to the folder in this block if the disk is full."""
        try:
            yield
        except Exception as error:
            if not is_disk_full(error):
                raise
            now = time.monotonic()
            if not self._is_full or now >= self._next_warning:
                self._next_warning = now + WARN_SECONDS
                log.warning("%s cannot be written to %s: the disk is full, free some space there", self._what, folder)
            self._is_full = True
        else:
            if self._is_full:
                log.warning("%s can be written again in %s", self._what, folder)
            self._is_full = False


@contextmanager
def naming_full_disk(folder: Path | None) -> Iterator[None]:
    """Turn the error of a full disk in this block into one that says what to do."""
    try:
        yield
    except Exception as error:
        if folder is None or isinstance(error, DiskFullError) or not is_disk_full(error):
            raise
        full = getattr(error, "filename", None) or folder  # it may be on another disk than the run
        raise DiskFullError(
            f"the disk of {str(full)!r} is full ({error}): free some space, then resume the run in {str(folder)!r}"
        ) from error
