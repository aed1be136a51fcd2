"""`RunCatalog`: the runs in a folder, read from their files alone.

No store is opened, so listing a thousand runs is quick. A running run holds the lock of its folder, which the kernel
releases however its process dies: a run without a lock and without a result was killed. Folders that fine-tuning and
simulators wrote without `sharpen train` have no lock: they count as running while their metrics grow.
"""

import logging
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from ..checks import nearest_names
from ..errors import InvalidInputError, UnknownIdError, describe
from ..runs import runs_root
from ..runs.folder import seconds_worked
from .run_files import RunFiles, RunKind, fields_of, metrics_of, number_in, text_in

RunState: TypeAlias = Literal["running", "succeeded", "failed", "interrupted", "killed", "ended"]
"""`killed`: how it ended was not recorded. `ended`: a store by itself, without other records."""

LAST = "last"
log = logging.getLogger(__name__)
_STAMP = re.compile(r"\d{8}-\d{6}-")  # comes before the name that the user gave
_ENDS: tuple[RunState, ...] = ("succeeded", "failed", "interrupted")
_REWARDS = (
    *("val/reward_mean", "val/reward", "train/reward_mean", "train/reward"),  # of an iteration
    *("run/val/reward_mean", "run/train/reward_mean", "run/reward_mean", "reward_mean", "reward"),  # of the whole run
)
_FRESH_SECONDS = 300.0  # a step of fine-tuning on a CPU may take minutes


class RunEntry(msgspec.Struct, frozen=True):
    """One run, as its files describe it."""

    name: str
    path: Path
    """Its folder; for a store by itself, the folder of the file."""
    kind: RunKind
    state: RunState
    started: float | None = None
    seconds: float | None = None
    """How long it took or has taken so far, over all starts of a resumed run."""
    algorithm: str | None = None
    agent: str | None = None
    model: str | None = None
    """The base model of fine-tuning."""
    metrics: dict[str, float] = {}
    """The last value of each metric."""
    error: str | None = None
    """With its traceback; `error_line` is without."""
    has_store: bool = False
    has_metrics: bool = False
    has_prompts: bool = False
    has_episodes: bool = False
    store_name: str = "store.db"

    @classmethod
    def of(cls, path: Path, *, now: float | None = None) -> "RunEntry":
        """Return the run in a folder, or a store file by itself."""
        files = RunFiles(path.absolute())
        if not files.is_run:
            raise UnknownIdError(
                f"{str(path)!r} is not a run: it has no metrics.jsonl, no store.db and no config.json of a run"
            )
        return _readable_entry(files, time.time() if now is None else now)

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def store_path(self) -> Path | None:
        return self.path / self.store_name if self.has_store else None

    @property
    def metrics_path(self) -> Path | None:
        return self.path / "metrics.jsonl" if self.has_metrics else None

    @property
    def has_files(self) -> bool:
        """Whether the other files in its folder belong to this run; those beside a store by itself do not."""
        return self.kind != "store"

    @property
    def log_path(self) -> Path | None:
        """Runs of an agent trainer have one."""
        path = self.path / "run.log"
        return path if self.has_files and path.is_file() else None

    @property
    def rollouts(self) -> int | None:
        return self._count("rollouts")

    @property
    def steps(self) -> int | None:
        """The number of simulator steps that the training of a policy took."""
        return self._count("run/steps")

    def _count(self, metric: str) -> int | None:
        value = self.metrics.get(metric)
        return None if value is None or not math.isfinite(value) else int(value)

    @property
    def reward(self) -> float | None:
        """The last reward, of validation if there was any."""
        name = self.reward_name
        return None if name is None else self.metrics[name]

    @property
    def reward_name(self) -> str | None:
        return next((name for name in _REWARDS if name in self.metrics), None)

    @property
    def error_line(self) -> str | None:
        """The error without its traceback."""
        return None if self.error is None else _without_traceback(self.error)

    def config(self) -> dict[str, Any]:
        """Return the recorded configuration of the run; empty if there is none."""
        return RunFiles(self.path).settings() if self.has_files else {}

    def stages(self) -> list[Path]:
        """Return the folders of the stages of a sequence, in their order."""
        return RunFiles(self.path).stages() if self.has_files else []

    def prompt_folders(self) -> list[Path]:
        """Return the folders with candidates of prompt searches: `prompts/` of the run, or of its stages."""
        return RunFiles(self.path).prompt_folders() if self.has_files else []


class RunCatalog:
    """The runs directly below a folder, by default the folder for runs (`runs/`, or SHARPEN_RUNS)."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = runs_root() if root is None else root

    def entries(self) -> list[RunEntry]:
        """Return all runs, the newest first."""
        now = time.time()
        found = [(files, _readable_entry(files, now)) for files in self._folders()]
        found.sort(key=_sort_key, reverse=True)
        return [entry for _, entry in found]

    def named(self, name: str) -> RunEntry:
        """Return the run of exactly this name; nothing outside the folder is ever read."""
        # A name from a listing of the folder cannot lead outside of it.
        is_name = _is_text(name) and not name.startswith(".")
        is_there = is_name and self.root.is_dir() and name in os.listdir(self.root)
        if not is_there or not RunFiles(self.root / name).is_run:
            raise UnknownIdError(self._unknown(name, self._names()))
        return RunEntry.of(self.root / name)

    def unreadable(self) -> dict[str, str]:
        """Return the folders that may be runs, but cannot be read or have a name that is not text, and why."""
        found = {}
        for path in sorted(self._subfolders()):
            files = RunFiles(path)
            if (problem := files.problem) is not None:
                found[_printable(path.name)] = problem.strerror or describe(problem)
            elif not _is_text(path.name) and files.is_run:
                found[_printable(path.name)] = "its name is not valid UTF-8; rename it"
        return found

    def find(self, text: str, *, must_be_unique: bool = False) -> RunEntry:
        """Return the run with this name, name without time stamp, unique part of a name, or path; or the `last` one.

        If several have the name without its time stamp, it is the newest, with a warning, unless it `must_be_unique`.
        """
        if not text.strip():
            raise InvalidInputError("the run is an empty string; give its name, a part of it, a path, or 'last'")
        if text == LAST:
            return self._last()
        names = self._names()
        if text in names:
            return RunEntry.of(self.root / text)
        given = Path(text).expanduser()
        if os.path.exists(given) and RunFiles(given.absolute()).is_run:
            return RunEntry.of(given)
        alike = [name for name in names if _STAMP.sub("", name, count=1) == text]
        if len(alike) > 1 and not must_be_unique:
            log.warning("%d runs are named %r; using the newest, %s", len(alike), text, alike[0])
        if alike and (len(alike) == 1 or not must_be_unique):
            return RunEntry.of(self.root / alike[0])
        return RunEntry.of(self.root / self._by_part(text, names))

    def _last(self) -> RunEntry:
        entries = self.entries()
        if not entries:
            raise UnknownIdError(
                self._hidden(f"there is no run in {str(self.root)!r} that can be read")
                or f"there are no runs in {str(self.root)!r}; give the path of a run, or set SHARPEN_RUNS"
            )
        return entries[0]

    def _by_part(self, text: str, names: list[str]) -> str:
        starting = [name for name in names if name.startswith(text)]
        matching = starting or [name for name in names if text in name]
        if len(matching) == 1:
            return matching[0]
        if matching:
            shown = ", ".join(matching[:5]) + (", ..." if len(matching) > 5 else "")
            raise UnknownIdError(f"{len(matching)} runs match {text!r}: {shown}; give more of the name")
        raise UnknownIdError(self._unknown(text, names))

    def _hidden(self, what: str, part: str = "") -> str | None:
        """Return a message that lists the unreadable folders with `part` in their name, or None if there are none."""
        found = {name: why for name, why in self.unreadable().items() if part in name}
        if not found:
            return None
        shown = ", ".join(f"{name} ({why})" for name, why in list(found.items())[:5])
        return f"{what}: {shown}{', ...' if len(found) > 5 else ''}"

    def _unknown(self, text: str, names: list[str]) -> str:
        if (hidden := self._hidden(f"there is no run {text!r} that can be read", text)) is not None:
            return hidden
        nearest = nearest_names(text, names, cutoff=0.4) or names[:3]
        hint = f"the nearest are {', '.join(nearest)}" if nearest else "there are none"
        return f"there is no run {text!r} in {str(self.root)!r}: {hint}"

    def _names(self) -> list[str]:
        return sorted((files.path.name for files in self._folders()), reverse=True)

    def _folders(self) -> Iterator[RunFiles]:
        for path in self._subfolders():
            if _is_text(path.name) and (files := RunFiles(path)).is_run:
                yield files

    def _subfolders(self) -> Iterator[Path]:
        if not self.root.is_dir():
            return
        for path in self.root.absolute().iterdir():
            if not path.name.startswith(".") and path.is_dir():
                yield path


def _is_text(name: str) -> bool:
    """Return whether a name can be written in a URL, a page or a file; bytes that are not UTF-8 cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    """Return a name with invalid bytes written as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _sort_key(pair: tuple[RunFiles, RunEntry]) -> tuple[float, int, str]:
    files, entry = pair
    return (files.made_at / 1e9 if entry.started is None else entry.started), files.made_at, entry.name


def size_of(entry: RunEntry) -> int:
    """Return the size in bytes of all files of a run. It walks the folder."""
    paths = [entry.store_path] if entry.kind == "store" and entry.store_path else entry.path.rglob("*")
    return sum(_size(path) for path in paths)


def _size(path: Path) -> int:
    try:
        return 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
    except FileNotFoundError:
        return 0  # a running run replaces files


# -- an entry from files -----------------------------------------------------------------------------


def _readable_entry(files: RunFiles, now: float) -> RunEntry:
    """Return the entry of a folder; one that cannot be read, such as another user's, must not hide all others."""
    try:
        return _entry(files, now)
    except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        problem = f"its files cannot be read: {describe(error) if isinstance(error, OSError) else error!r}"
        has_store = files.has_store
        return RunEntry(files.name, files.path, "store", "ended", error=problem, has_store=has_store)


def _entry(files: RunFiles, now: float) -> RunEntry:
    result, settings = files.result(), files.settings()
    state = _state(files, result, settings, now)
    metrics = metrics_of(result) if state in _ENDS else {}
    started = files.started(settings)
    return RunEntry(
        name=files.name,
        path=files.path,
        kind=files.kind,
        state=state,
        started=started,
        seconds=_seconds(files, state, result, settings, started, now),
        algorithm=_algorithm(files.kind, settings),
        agent=text_in(fields_of(settings, "agent"), "name"),
        model=text_in(settings, "model_name") if files.kind == "fine-tuning" else None,
        metrics=metrics or files.last_metrics(),
        error=text_in(result, "error") if state in _ENDS else None,
        has_store=files.has_store,
        has_metrics="metrics.jsonl" in files.names,
        has_prompts=bool(files.prompt_folders()),
        has_episodes="episodes.jsonl" in files.names,
        store_name=files.store_name,
    )


def _state(files: RunFiles, result: dict[str, Any], settings: dict[str, Any], now: float) -> RunState:
    if files.is_locked():
        return "running"
    if files.is_recorded:
        status = result.get("status")
        return status if status in _ENDS and files.is_of_last_start(result, settings) else "killed"
    if files.kind == "fine-tuning" and result:
        return "succeeded"
    if files.kind == "store":
        return "running" if files.changed_within(now, 10) else "ended"
    status = files.last_status()
    if status in _ENDS:
        return status
    return "running" if files.changed_within(now, _FRESH_SECONDS) else "killed"


def _seconds(
    files: RunFiles,
    state: RunState,
    result: dict[str, Any],
    settings: dict[str, Any],
    started: float | None,
    now: float,
) -> float | None:
    ended = now if state == "running" else files.last_time()
    if not files.is_recorded:
        recorded = number_in(result, "seconds") if state in _ENDS else None
        return recorded if recorded is not None or started is None or ended is None else max(ended - started, 0.0)
    return seconds_worked(settings, result if state in _ENDS else None, ended)


def _algorithm(kind: RunKind, settings: dict[str, Any]) -> str | None:
    if kind == "fine-tuning":
        name = text_in(settings, "algorithm")
        return None if name is None else name.upper()
    described = fields_of(fields_of(settings, "components"), "algorithm")
    stages = [text_in(stage, "class") for stage in _list_in(described, "stages") if isinstance(stage, dict)]
    names = [path.rpartition(".")[2] for path in stages or [text_in(described, "class")] if path]
    return ", then ".join("@algo" if name == "FunctionalAlgorithm" else name for name in names) or None


def _list_in(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []


def _without_traceback(text: str) -> str:
    """Return the text from the last exception on: the first line that is not indented after the last frame."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = range(frames[-1] + 1, len(lines)) if frames else range(0)
    start = next((number for number in after if lines[number] and not lines[number].startswith(" ")), None)
    return (text if start is None else "\n".join(lines[start:])).strip()
