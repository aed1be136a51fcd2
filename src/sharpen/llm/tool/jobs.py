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

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, Self

from ...errors import ConfigError, describe
from ...logging import current_settings
from ..plain_json import write_json
from ..reward_runner import RewardFunction
from .errors import JobError, ParameterError
from .workspace import Workspace, read_json, unknown

_STARTED = 19  # the 22nd field of /proc/PID/stat, counted from the third, which follows the name of the program


@dataclass(frozen=True)
class ProcessMark:
    """One process and no other."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The mark of a process that lives; None where none does, or only its exit code is left."""
        started = _start_of(pid)
        return None if started is None else cls(pid, started)

    def is_alive(self) -> bool:
        return _start_of(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process, if it lives."""
        if self.is_alive():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """End this process, which leads a group of its own, and everything that it has started."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def _start_of(pid: int) -> str | None:
    if sys.platform == "linux":
        return _start_on_linux(pid)
    return _start_elsewhere(pid)


def _start_on_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{_boot()}:{fields[_STARTED].decode()}"


@cache
def _boot() -> str:
    """The start is counted from that of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start_elsewhere(pid: int) -> str | None:
    asked = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "PATH": os.environ.get("PATH", "")},
    )
    state, _, started = asked.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


# -- jobs and their folders ----------------------------------------------------------------------------

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


class JobRegistry:
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


# -- the process of a job -----------------------------------------------------------------------------


def pack(functions: Mapping[str, RewardFunction]) -> bytes:
    """Functions as bytes; one that cannot travel is an error that names it."""
    import cloudpickle  # type: ignore[import-untyped]

    for name, function in functions.items():
        try:
            cloudpickle.dumps(function)
        except Exception as error:
            raise ConfigError(
                f"the reward {name!r} cannot be pickled for the process of a job ({describe(error)}): create what it "
                "refers to inside the function, then register it again"
            ) from error
    packed: bytes = cloudpickle.dumps(dict(functions))
    return packed


def launch(job: Job, *, base: Path, functions: bytes, allow_download: bool) -> None:
    """Start the process of a job and tell it what to do."""
    header: dict[str, Any] = {
        "folder": str(job.folder),
        "log": current_settings(),
        "functions_bytes": len(functions),
        # Functions are found where they are here. Without any, the job needs nothing but what is installed.
        "path": [os.path.abspath(each) for each in sys.path] if functions else [],
    }
    process = _start(job.folder, base, allow_download=allow_download)
    # Reaps it whenever it ends, also when nobody waits for the job.
    threading.Thread(target=process.wait, name=f"sharpen-{job.id}", daemon=True).start()
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # it has ended at once: its log tells
        mark = ProcessMark.of(process.pid)
        write_json(job.folder / "process.json", {"pid": process.pid, "started": "" if mark is None else mark.started})
        pipe.write(json.dumps(header).encode() + b"\n" + functions)


def _start(folder: Path, base: Path, *, allow_download: bool) -> "subprocess.Popen[bytes]":
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [*_interpreter(), "-m", "sharpen.llm.tool.job"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=base,
            env=_environment(allow_download=allow_download),
        )


def _interpreter() -> list[str]:
    if not sys.executable:
        raise ConfigError(
            "sys.executable is not set, and jobs need a Python interpreter to run in: start this program with one"
        )
    # -P: a file in the base folder must not take the place of a module that the job imports.
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]


def _environment(*, allow_download: bool) -> dict[str, str]:
    """The job finds this package where its starter found it, and the hub only where that is allowed."""
    here = str(Path(__file__).parents[3])
    before = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": here + os.pathsep + before if before else here}
    environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if not allow_download:
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return environment


# -- waiting for the end, and bringing it about -------------------------------------------------------


_FIRST_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 0.5


def wait_for(job: Job, *, seconds: float | None = None) -> bool:
    """Wait until a job has ended, so long at most; whether it has."""
    deadline = None if seconds is None else time.monotonic() + seconds
    pause = _FIRST_LOOK_SECONDS
    while job.is_live():
        left = pause if deadline is None else min(pause, deadline - time.monotonic())
        if left <= 0:
            return False
        time.sleep(left)
        pause = min(pause * 1.5, _LONGEST_LOOK_SECONDS)
    return True


def stop_job(job: Job, *, grace_seconds: float) -> bool:
    """Ask a job to stop, and kill it when it has not ended after its grace. Whether it had to be killed."""
    process = job.process()
    job.mark_stop()
    if process is None:
        return False
    process.signal(signal.SIGTERM)
    try:
        has_ended = wait_for(job, seconds=grace_seconds)
    except KeyboardInterrupt:  # a second Ctrl-C
        has_ended = False
    if has_ended:
        return False
    process.kill_group()
    wait_for(job)
    return True
