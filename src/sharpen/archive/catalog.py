"""`RunCatalog`: the runs below a folder, told from their files alone.

No store is opened, so a thousand runs are listed in a moment. A run that works holds the lock of its folder, which the
kernel releases when its process dies, however it dies: a run without a lock and without a result was killed. Folders
that fine-tuning and simulators wrote without `sharpen train` hold no lock: they count as running while their metrics
grow.
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
from ..errors import InvalidInputError, UnknownIdError, in_words
from ..runs import runs_root
from ..runs.history import seconds_worked
from .run_files import RunFiles, fields_of, metrics_of, number_in, text_in

RunKind: TypeAlias = Literal["agents", "simulator", "fine-tuning", "store"]
RunState: TypeAlias = Literal["running", "succeeded", "failed", "interrupted", "killed", "ended"]
"""`killed`: nobody wrote how it ended. `ended`: a store alone, whose runs wrote nothing else."""

LAST = "last"
log = logging.getLogger(__name__)
_STAMP = re.compile(r"\d{8}-\d{6}-")  # what stands before the name that somebody gave
_ENDS: tuple[RunState, ...] = ("succeeded", "failed", "interrupted")
_REWARDS = (
    *("val/reward_mean", "val/reward", "train/reward_mean", "train/reward"),  # of an iteration
    *("run/val/reward_mean", "run/train/reward_mean", "run/reward_mean", "reward_mean", "reward"),  # of the whole run
)
_FRESH_SECONDS = 300.0  # a step of fine-tuning on a CPU may take minutes


class RunEntry(msgspec.Struct, frozen=True):
    """One run, as its files tell."""

    name: str
    path: Path
    """Its folder; that of the file where it is a store alone."""
    kind: RunKind
    state: RunState
    started: float | None = None
    seconds: float | None = None
    """How long it took or has taken; of a run that was resumed, over all its starts."""
    algorithm: str | None = None
    agent: str | None = None
    model: str | None = None
    """What fine-tuning began with."""
    metrics: dict[str, float] = {}
    """The last value of each."""
    error: str | None = None
    """With its traceback; `error_line` is for people in a hurry."""
    has_store: bool = False
    has_metrics: bool = False
    has_prompts: bool = False
    has_episodes: bool = False
    store_name: str = "store.db"

    @classmethod
    def of(cls, path: Path, *, now: float | None = None) -> "RunEntry":
        """The run in a folder, or a store file by itself."""
        files = RunFiles(path.absolute())
        if not files.is_run:
            raise UnknownIdError(
                f"{str(path)!r} is no run: it has no metrics.jsonl, no store.db and no config.json of a run"
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
        """Whether what else lies in the folder is of this run: what lies beside a store alone belongs to others."""
        return self.kind != "store"

    @property
    def log_path(self) -> Path | None:
        """There is one where the run was made by a trainer of agents."""
        path = self.path / "run.log"
        return path if self.has_files and path.is_file() else None

    @property
    def rollouts(self) -> int | None:
        return self._whole("rollouts")

    @property
    def steps(self) -> int | None:
        """The steps that the training of a policy made in its simulator."""
        return self._whole("run/steps")

    def _whole(self, metric: str) -> int | None:
        told = self.metrics.get(metric)
        return None if told is None or not math.isfinite(told) else int(told)

    @property
    def reward(self) -> float | None:
        """The last one, of validation where there was any."""
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
        """What the run was made of, as it is written; empty where nothing is."""
        return RunFiles(self.path).settings() if self.has_files else {}

    def stages(self) -> list[Path]:
        """The folders of a sequence's stages, in their order."""
        return RunFiles(self.path).stages() if self.has_files else []

    def prompt_folders(self) -> list[Path]:
        """Where the candidates of searches are: `prompts/` of the run, or of the stages of a sequence."""
        return RunFiles(self.path).prompt_folders() if self.has_files else []


class RunCatalog:
    """The runs directly below a folder; without one, where runs usually lie."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = runs_root() if root is None else root

    def entries(self) -> list[RunEntry]:
        """All of them, the newest first."""
        now = time.time()
        found = [(files, _readable_entry(files, now)) for files in self._folders()]
        found.sort(key=_age, reverse=True)
        return [entry for _, entry in found]

    def named(self, name: str) -> RunEntry:
        """The run of exactly this name; nothing outside the folder is ever looked at."""
        # Only names that a listing has are looked at: they cannot lead anywhere else.
        is_there = _is_name(name) and self.root.is_dir() and name in os.listdir(self.root)
        if not is_there or not RunFiles(self.root / name).is_run:
            raise UnknownIdError(self._unknown(name, self._names()))
        return RunEntry.of(self.root / name)

    def unreadable(self) -> dict[str, str]:
        """Folders that may be runs, but cannot be looked into, such as those of another user, or cannot be named in a
        page or a command; and why."""
        found = {}
        for path in sorted(self._subfolders()):
            files = RunFiles(path)
            if (problem := files.problem) is not None:
                found[_spelt(path.name)] = problem.strerror or in_words(problem)
            elif not _is_text(path.name) and files.is_run:
                found[_spelt(path.name)] = "its name is not UTF-8: rename it"
        return found

    def find(self, text: str, *, must_be_alone: bool = False) -> RunEntry:
        """The run that a person means: its name, the name that it was given, a part that no other has, a path, or
        `last`. Of several with one given name it is the newest, and that is said, unless it `must_be_alone`."""
        if not text.strip():
            raise InvalidInputError("the run is an empty text: give its name, a part of it, a path, or 'last'")
        if text == LAST:
            return self._last()
        names = self._names()
        if text in names:
            return RunEntry.of(self.root / text)
        given = Path(text).expanduser()
        if os.path.exists(given) and RunFiles(given.absolute()).is_run:
            return RunEntry.of(given)
        alike = [name for name in names if _STAMP.sub("", name, count=1) == text]
        if len(alike) > 1 and not must_be_alone:
            log.warning("%d runs are called %r: the newest is meant, %s", len(alike), text, alike[0])
        if alike and (len(alike) == 1 or not must_be_alone):
            return RunEntry.of(self.root / alike[0])
        return RunEntry.of(self.root / self._by_part(text, names))

    def _last(self) -> RunEntry:
        entries = self.entries()
        if not entries:
            raise UnknownIdError(
                self._hidden(f"there is no run in {str(self.root)!r} that can be read")
                or f"there are no runs in {str(self.root)!r}: give the path of one, or set SHARPEN_RUNS"
            )
        return entries[0]

    def _by_part(self, text: str, names: list[str]) -> str:
        starting = [name for name in names if name.startswith(text)]
        matching = starting or [name for name in names if text in name]
        if len(matching) == 1:
            return matching[0]
        if matching:
            shown = ", ".join(matching[:5]) + (", ..." if len(matching) > 5 else "")
            raise UnknownIdError(f"{len(matching)} runs are called like {text!r}: {shown}; give more of the name")
        raise UnknownIdError(self._unknown(text, names))

    def _hidden(self, what: str, part: str = "") -> str | None:
        """That there are folders that nobody can look into, where there are; of those with `part` in their name."""
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
        for path in self._places():
            if (files := RunFiles(path)).is_run:
                yield files

    def _places(self) -> Iterator[Path]:
        return (path for path in self._subfolders() if _is_text(path.name))

    def _subfolders(self) -> Iterator[Path]:
        if not self.root.is_dir():
            return
        for path in self.root.absolute().iterdir():
            if not path.name.startswith(".") and path.is_dir():
                yield path


def _is_name(name: str) -> bool:
    return _is_text(name) and not name.startswith(".")


def _is_text(name: str) -> bool:
    """Whether a name can be written in an address, a page or a file; bytes that are not UTF-8 cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _spelt(name: str) -> str:
    """A name with the bytes that are no text as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _age(pair: tuple[RunFiles, RunEntry]) -> tuple[float, int, str]:
    files, entry = pair
    return (files.made_at / 1e9 if entry.started is None else entry.started), files.made_at, entry.name


def size_of(entry: RunEntry) -> int:
    """The bytes of everything in the folder of a run. It walks the folder."""
    paths = [entry.store_path] if entry.kind == "store" and entry.store_path else entry.path.rglob("*")
    return sum(_size(path) for path in paths)


def _size(path: Path) -> int:
    try:
        return 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
    except FileNotFoundError:
        return 0  # a run that works replaces files


# -- what the files tell -----------------------------------------------------------------------------


def _readable_entry(files: RunFiles, now: float) -> RunEntry:
    """One folder that cannot be read, such as one of another user, must not hide all others."""
    try:
        return _entry(files, now)
    except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        problem = f"its files cannot be read: {in_words(error) if isinstance(error, OSError) else error!r}"
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
        told = number_in(result, "seconds") if state in _ENDS else None
        return told if told is not None or started is None or ended is None else max(ended - started, 0.0)
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
    """From the line that names the last exception on; that is the first line after the last frame."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = range(frames[-1] + 1, len(lines)) if frames else range(0)
    start = next((number for number in after if lines[number] and not lines[number].startswith(" ")), None)
    return (text if start is None else "\n".join(lines[start:])).strip()
