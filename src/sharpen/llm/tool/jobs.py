"""Jobs and their folders: `base_dir/.sharpen/jobs/ID/`.

    job.json      what was asked: action, model, output folder, settings
    process.json  which process works on it; written before that process is told what to do
    status.json   how far it is, written by the job about twice a second
    result.json   how it ended, written by the job as its last act
    stop.json     that somebody asked it to stop
    log           everything that it printed
    rows.jsonl, eval_rows.jsonl   what it learns from, until it has ended

What a job is, is read from these files and from its process, so that every process of the base folder sees the same.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from ..plain_json import write_json
from .errors import JobError, ParameterError
from .json_file import read_json
from .names import unknown
from .process import ProcessMark
from .workspace import Workspace

State = Literal["starting", "running", "stopping", "finished", "stopped", "failed", "died"]
ROWS = "rows.jsonl"
EVAL_ROWS = "eval_rows.jsonl"
LIVE: tuple[State, ...] = ("starting", "running", "stopping")

_ID = re.compile(r"[a-z]+-\d{8}-\d{6}-[0-9a-f]{4}")
_LOG_BYTES = 64_000


@dataclass(frozen=True)
class Job:
    """A job by its folder. Everything else is read when it is asked for."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    def record(self) -> dict[str, Any]:
        """What was asked."""
        record = read_json(self.folder / "job.json")
        if record is None or not isinstance(record.get("action"), str):
            raise JobError(f"folder {str(self.folder)!r} does not contain a job: remove it")
        return record

    def process(self) -> ProcessMark | None:
        found = read_json(self.folder / "process.json")
        if found is None:
            return None
        try:
            return ProcessMark(int(found["pid"]), str(found["started"]))
        except (KeyError, TypeError, ValueError) as error:
            raise JobError(
                f"{str(self.folder / 'process.json')!r} does not name a process: remove the folder"
            ) from error

    def state(self) -> State:
        """Where the job stands. A job ends with its process, and tells how in its result."""
        process = self.process()
        is_asked_to_stop = (self.folder / "stop.json").exists()
        if process is None:
            starter = self.record().get("starter") or {}
            mark = ProcessMark(int(starter.get("pid", 0)), str(starter.get("started")))
            return "starting" if mark.is_alive() else "died"
        if process.is_alive():
            return "stopping" if is_asked_to_stop else "running"
        result = self.result()
        if result is not None:
            ended: State = result["state"] if result.get("state") in ("finished", "stopped", "failed") else "died"
            return ended
        return "stopped" if is_asked_to_stop else "died"

    def is_live(self) -> bool:
        return self.state() in LIVE

    def progress(self) -> dict[str, Any]:
        return read_json(self.folder / "status.json") or {}

    def result(self) -> dict[str, Any] | None:
        return read_json(self.folder / "result.json")

    def mark_stop(self) -> None:
        write_json(self.folder / "stop.json", {"asked": time.time()})

    def log_tail(self, lines: int) -> list[str]:
        """The last lines that the job printed."""
        try:
            with open(self.folder / "log", "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _LOG_BYTES))
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        # A progress bar writes many states into one line: the last one counts.
        found = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        return [line for line in found if line.strip()][-lines:] if lines else []


class JobBook:
    """The jobs of a base folder."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def all(self) -> list[Job]:
        """Every job, the newest first."""
        try:
            folders = [each for each in self._workspace.jobs.iterdir() if _ID.fullmatch(each.name)]
        except FileNotFoundError:
            return []
        return [Job(each) for each in sorted(folders, key=_age, reverse=True)]

    def find(self, job_id: str | None) -> Job:
        """A job by its id; without one, the newest."""
        jobs = self.all()
        if job_id is None:
            if not jobs:
                raise JobError("there are no jobs yet: start one with train or evaluate")
            return jobs[0]
        found = next((job for job in jobs if job.id == job_id), None)
        if found is None:
            raise ParameterError.of("job_id", job_id, unknown("job", job_id, [job.id for job in jobs[:8]]))
        return found

    def writing_to(self, folder: Path) -> Job | None:
        """The job that is writing its model to a folder now."""
        for job in self.all():
            try:
                if job.record().get("output_dir") == str(folder) and job.is_live():
                    return job
            except JobError:
                continue  # a damaged folder is shown by `list`; it must not stand in the way of new jobs
        return None

    @contextmanager
    def draft(self, kind: str) -> Iterator[Path]:
        """A folder to fill and then to `begin`; what has not become a job by the end of the block is removed."""
        self._workspace.prepare()
        self._remove_leftovers()
        name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{token_hex(2)}"
        folder = self._workspace.jobs / f".{name}.{os.getpid()}.tmp"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def begin(self, draft: Path, record: Mapping[str, Any]) -> Job:
        """Make a job of a filled folder."""
        name = draft.name.split(".")[1]
        write_json(draft / "job.json", {"id": name, "created": time.time(), "starter": _this_process(), **record})
        return Job(draft.rename(draft.with_name(name)))

    def _remove_leftovers(self) -> None:
        """Remove what processes that were killed left half-written."""
        for folder in self._workspace.jobs.glob(".*.tmp"):
            pid = folder.name.split(".")[-2]
            if pid.isdecimal() and ProcessMark.of(int(pid)) is None:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self, job: Job) -> None:
        """Leave nothing of a job that could not be started."""
        shutil.rmtree(job.folder, ignore_errors=True)


def _this_process() -> dict[str, Any]:
    mark = ProcessMark.of(os.getpid())
    return {} if mark is None else {"pid": mark.pid, "started": mark.started}


def _age(folder: Path) -> tuple[str, float]:
    """By the second in the name, then by the moment."""
    stamp = "-".join(folder.name.split("-")[1:3])
    try:
        return stamp, (folder / "job.json").stat().st_mtime
    except OSError:
        return stamp, 0.0
