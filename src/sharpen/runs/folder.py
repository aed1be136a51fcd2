"""`RunFolder`: the folder of one run.

A new run never shares a folder with another, and a folder is worked on by one process at a time. What is in it:

    store.db         rollouts, attempts, spans, resources (where the run has the default store)
    config.json      the resolved configuration
    run.log          the log of all processes
    metrics.jsonl    progress over time
    checkpoints/     what the algorithm needs to go on
    result.json      how it ended
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..files import append_json, last_json_line, read_json, write_json
from .history import EARLIER, START, is_of_last_start, moment, number_of_starts, seconds_worked
from .lock import FolderLock

VARIABLE = "SHARPEN_RUNS"
_NAME = re.compile(r"[\w][\w.+-]{0,99}")
_LOCK = ".lock"
# What a start leaves that ended before it wrote config.json: no rollout has run by then.
_FIRST_FILES = re.compile(r"\.lock|checkpoints|run\.log|train\.yaml|store\.db(-wal|-shm)?|\..+\.tmp")


def runs_root() -> Path:
    """Where runs lie: `SHARPEN_RUNS`, else `runs` in the working directory."""
    return Path(os.environ.get(VARIABLE) or "runs")


class RunFolder:
    """The folder of one run, locked while this object holds it."""

    def __init__(self, path: Path, lock: FolderLock) -> None:
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
        """A new folder: exactly `run_dir`, or `<date>-<time>-<name>` below `root`."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"the name of the run is {name!r}: use letters, digits, and . _ + - (it names a folder)")
        if run_dir is not None:
            path = _make_exactly(Path(run_dir))
        else:
            stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
            path = _make_next(Path(root) if root is not None else runs_root(), f"{stamp}-{name}")
        return cls._locked(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """The folder of an earlier run, to go on with it."""
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
        """The folder of the newest run, of those in which anything happened."""
        below = Path(root) if root is not None else runs_root()
        found = [path.parent for path in below.glob("*/config.json") if (path.parent / _LOCK).is_file()]
        if not found:
            raise ConfigError(f"there is no run to resume in {str(below)!r}: give the folder of the run, or start one")
        worth_it = [path for path in found if not _came_to_nothing(path)]
        return cls.open(max(worth_it or found, key=_made_at))

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
        return self.path / "metrics.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        return self.path / "checkpoints" / "algorithm.json"

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_json(self.path / "config.json", config)

    def read_config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json", kind=dict)

    def resumed_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a run that is resumed now: when it began, every resume, and the seconds before it."""
        before = self.read_config()
        resumed = [*before.get("resumed", []), config["started"]]
        return {**config, "started": before.get("started"), "resumed": resumed, EARLIER: self._seconds_worked(before)}

    def _seconds_worked(self, config: Mapping[str, Any]) -> float:
        result, last = self.read_result() or {}, self.last_metrics()
        progress = self.last_metrics(lambda line: "step" not in line)
        is_ended = bool(result) and is_of_last_start(config, result, progress, last.get("status"))
        return seconds_worked(config, result if is_ended else None, last.get("time")) or 0.0

    def write_result(self, result: Mapping[str, Any]) -> None:
        """How the last start of the run ended."""
        has_config = (self.path / "config.json").exists()  # it may have failed before it was written
        start = number_of_starts(self.read_config() if has_config else {})
        write_json(self.path / "result.json", {**result, START: start})

    def read_result(self) -> dict[str, Any] | None:
        path = self.path / "result.json"
        return read_json(path, kind=dict) if path.exists() else None

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        append_json(self.metrics_path, metrics, is_private=True)

    def last_metrics(self, is_wanted: Callable[[dict[str, Any]], bool] | None = None) -> dict[str, Any]:
        """The newest line that is whole, of those that are wanted."""
        return last_json_line(self.metrics_path, is_wanted)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        write_json(self.checkpoint_path, state)

    def load_checkpoint(self) -> dict[str, Any] | None:
        return read_json(self.checkpoint_path, kind=dict) if self.checkpoint_path.exists() else None


def _came_to_nothing(path: Path) -> bool:
    """Whether a run failed before it had a rollout or a checkpoint, for a wrong setting mostly: nobody means to go on
    with it."""
    result = path / "result.json"
    found = read_json(result, kind=dict) if result.exists() else {}
    if (path / "checkpoints" / "algorithm.json").exists():
        return False
    return found.get("status") == "failed" and not (found.get("metrics") or {}).get("rollouts")


def _made_at(path: Path) -> tuple[float, int]:
    """When a run began; of several within one second the lock that was made last."""
    made = (path / _LOCK).stat().st_mtime_ns
    started = moment(read_json(path / "config.json", kind=dict).get("started"))
    return (made / 1e9 if started is None else started), made


def _make_exactly(path: Path) -> Path:
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = {each.name for each in path.iterdir()}
        if found and not _is_unused(path, found):
            raise ConfigError(
                f"run_dir={str(path)!r} is not empty: give a new folder, or fit(..., resume={str(path)!r}) to resume "
                "the run that is in it"
            )
        with contextlib.suppress(PermissionError):  # a mounted folder of somebody else: its files are private
            path.chmod(0o700)  # prompts and answers are nobody else's business
    except OSError as error:
        raise ConfigError(f"run_dir={str(path)!r} cannot be made: {error.strerror}") from error
    return path


def _is_unused(path: Path, names: set[str]) -> bool:
    """Whether a start of a run made the folder and ended before anything happened in it."""
    is_ours = _LOCK in names and all(map(_FIRST_FILES.fullmatch, names))
    return is_ours and not any((path / "checkpoints").glob("[!.]*"))


def _make_next(root: Path, name: str) -> Path:
    """Making a folder is atomic, so of two runs that want one name the second sees it and takes the next."""
    number = 1
    while True:
        path = (root / (name if number == 1 else f"{name}-{number}")).absolute()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)  # prompts and answers are nobody else's business
        except FileExistsError:
            if root.exists() and not root.is_dir():
                raise ConfigError(f"runs cannot be kept in {str(root)!r}: it is not a folder") from None
            number += 1
        except OSError as error:
            raise ConfigError(f"the folder of the run cannot be made at {str(path)!r}: {error.strerror}") from error
        else:
            return path
