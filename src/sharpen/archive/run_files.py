"""`RunFiles`: the files in the folder of a run, and which kind of run they belong to.

A damaged or missing file counts as empty, so that the others can still be read.
"""

import fcntl
import math
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import ConfigError
from ..files import read_json
from ..runs.folder import is_of_last_start, moment
from .curves import as_number, decode_line, metrics_in

RunKind = Literal["agents", "simulator", "fine-tuning", "store"]
_KINDS: tuple[RunKind, ...] = get_args(RunKind)
_STAGE = re.compile(r"(\d+)-.+")
_TAIL_BYTES, _TAIL_LINES, _LINE_BYTES = 65_536, 200, 10_000_000
_STORE = "store.db"


class RunFiles:
    """The files of a folder, listed once. A store file by itself counts as a folder with nothing else in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.store_name = path, path.name, _STORE
        self.problem: OSError | None = None
        """Why the folder cannot be listed."""
        self.names = self._listing()
        if path.is_file():
            self.path = path.parent
            beside = RunFiles(path.parent) if path.name == _STORE else None
            if beside is not None and beside.is_run_with_records:
                self.name, self.names = beside.name, beside.names
            else:
                self.store_name, self.names = path.name, {path.name} if is_sqlite_file(path) else set()

    def _listing(self) -> set[str]:
        try:
            return set(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            self.problem = error
            return set()

    # -- kind ----------------------------------------------------------------------------------------

    @property
    def is_run(self) -> bool:
        return self.has_store or self.is_run_with_records

    @cached_property
    def is_run_with_records(self) -> bool:
        """Whether there is more than a store. The config.json of a model does not count."""
        return "metrics.jsonl" in self.names or (
            "config.json" in self.names and (".lock" in self.names or "components" in self._config)
        )

    @property
    def has_store(self) -> bool:
        return self.store_name in self.names

    @cached_property
    def kind(self) -> RunKind:
        if not self.is_run_with_records:
            return "store"
        if (kind := self._config.get("kind")) in _KINDS:
            return kind  # type: ignore[no-any-return]
        if "settings.json" in self.names and "components" not in self._config:
            return "fine-tuning"
        return "agents" if "config.json" in self.names or ".lock" in self.names else "simulator"

    @property
    def is_recorded(self) -> bool:
        """Whether config.json holds its configuration and result.json how it ended: true for runs of agents, and for
        all runs of `sharpen train`."""
        return self.kind == "agents" or "kind" in self._config

    # -- small files ---------------------------------------------------------------------------------

    @cached_property
    def _config(self) -> dict[str, Any]:
        return _dict_in(self.path / "config.json") if "config.json" in self.names else {}

    def settings(self) -> dict[str, Any]:
        """Return the configuration of the run."""
        if self.is_recorded:
            return self._config
        if self.kind == "fine-tuning":
            return _dict_in(self.path / "settings.json")
        return fields_of(self._first_line, "config") if self.kind == "simulator" else {}

    def result(self) -> dict[str, Any]:
        """Return how the run ended; empty if that was not written."""
        has_one = "result.json" in self.names and (self.is_recorded or self.kind == "fine-tuning")
        return _dict_in(self.path / "result.json") if has_one else {}

    def stages(self) -> list[Path]:
        """Return the folders `1-…`, `2-…` of a sequence."""
        found = [(int(match[1]), match[0]) for name in self.names if (match := _STAGE.fullmatch(name))]
        return [path for _, name in sorted(found) if (path := self.path / name).is_dir()]

    def prompt_folders(self) -> list[Path]:
        """Return the folders with candidates of a prompt search."""
        if self.kind != "agents":
            return []
        here = [self.path / "prompts"] if "prompts" in self.names else []
        places = [*here, *(stage / "prompts" for stage in self.stages())]
        return [place for place in places if (place / "candidates.json").is_file()]

    # -- metrics -------------------------------------------------------------------------------------

    @cached_property
    def _first_line(self) -> dict[str, Any]:
        if "metrics.jsonl" not in self.names:
            return {}
        try:
            with open(self.path / "metrics.jsonl", "rb") as file:
                return decode_line(file.readline(_LINE_BYTES)) or {}
        except FileNotFoundError:
            return {}  # the run was removed meanwhile

    @cached_property
    def _last_lines(self) -> list[bytes]:
        if "metrics.jsonl" not in self.names:
            return []
        try:
            with open(self.path / "metrics.jsonl", "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - _TAIL_BYTES, 0))
                # Text after the last newline was cut off, or is being written.
                return file.read().rsplit(b"\n", _TAIL_LINES + 1)[-_TAIL_LINES - 1 : -1]
        except FileNotFoundError:
            return []

    @cached_property
    def _last_line(self) -> dict[str, Any]:
        return next((line for line in map(decode_line, reversed(self._last_lines)) if line is not None), {})

    def last_metrics(self) -> dict[str, float]:
        """Return the last value of each metric; that of an iteration replaces the mean over the run of the same name.

        A line with the same names as a later one adds nothing, and is not decoded.
        """
        progress: dict[str, float] = {}
        iterations: dict[str, float] = {}
        seen: set[tuple[bytes, ...]] = set()
        for data in reversed(self._last_lines):
            names = tuple(data.split(b'"')[1::2])
            line = None if names in seen else decode_line(data)
            if line is not None:
                seen.add(names)
                found = iterations if "step" in line else progress
                found |= metrics_in(line) | found
        return progress | iterations

    def last_status(self) -> str | None:
        """Return the final status that was logged, if it is the last line."""
        return text_in(self._last_line, "status")

    # -- times ---------------------------------------------------------------------------------------

    def started(self, settings: dict[str, Any]) -> float | None:
        recorded = moment(settings.get("started"))
        if recorded is not None or self.is_recorded:
            return recorded
        return _finite(self._first_line.get("time"))

    def last_time(self) -> float | None:
        """Return the time of the last line of the metrics."""
        return _finite(self._last_line.get("time"))

    @property
    def made_at(self) -> int:
        """The time that orders runs started within one second; for a store by itself, when it was last written."""
        return _mtime_ns(self.path / (".lock" if ".lock" in self.names else self.store_name))

    def is_of_last_start(self, result: dict[str, Any], settings: dict[str, Any]) -> bool:
        """Return whether the result belongs to the last start or resume of the run."""
        lines = (line for line in map(decode_line, reversed(self._last_lines)) if line is not None)
        progress = next((line for line in lines if "step" not in line), {})
        return is_of_last_start(settings, result, progress, self.last_status())

    def changed_within(self, now: float, seconds: float) -> bool:
        """Return whether a line of metrics is this recent; for a store by itself, its files."""
        if self.kind != "store":
            return now - (self.last_time() or 0.0) < seconds
        watched = (self.store_name, f"{self.store_name}-wal")
        return now - max(_mtime_ns(self.path / name) for name in watched) / 1e9 < seconds

    def is_locked(self) -> bool:
        """Return whether a process is running the run. A shared lock is tried, and released at once."""
        if ".lock" not in self.names:
            return False
        try:
            handle = os.open(self.path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False  # removed meanwhile, or another user's
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False


def metrics_of(result: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a result."""
    return metrics_in(fields_of(result, "metrics") or fields_of(result, "final_metrics"))


def fields_of(value: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object under a name; empty if there is none."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def text_in(value: dict[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def number_in(value: dict[str, Any], name: str) -> float | None:
    return as_number(value.get(name))


def is_sqlite_file(path: Path) -> bool:
    from ..store.sqlite.schema import HEADER, open_files

    if open_files.has(path):
        return True  # closing a second descriptor of it would drop the locks of the first
    with open(path, "rb") as file:
        return file.read(len(HEADER)) == HEADER


def _dict_in(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, kind=dict)
    except (OSError, ConfigError):
        return {}


def _finite(value: Any) -> float | None:
    found = as_number(value)
    return found if found is not None and math.isfinite(found) else None


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
