"""The program of a job: `python -m sharpen.llm.tool.job`, started by `RLTrainingTool`.

It reads what to do from standard input, trains or evaluates exactly as a user's script would, and leaves how it went in
`result.json`. Everything that it prints goes to the log of the job.

SIGTERM asks it to stop: a training that is under way ends after its step, with a checkpoint; whatever comes before and
after it, and an evaluation, is left where it stands.
"""

import fcntl
import io
import json
import logging
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from sharpen.callbacks import Callback
from sharpen.errors import ConfigError, describe, text_of
from sharpen.llm.models.hub import hub_folder
from sharpen.llm.models.source import find_model
from sharpen.llm.plain_json import write_json
from sharpen.llm.tool.errors import JobError
from sharpen.llm.tool.jobs import EVAL_ROWS, ROWS, Job
from sharpen.llm.tool.reward_registry import Functions, build
from sharpen.llm.tool.workspace import Workspace, check_model
from sharpen.logging import apply_settings, setup_logging

log = logging.getLogger("sharpen.llm.tool")


# -- the request to stop ------------------------------------------------------------------------------


class JobStopped(BaseException):
    """Raised in the middle of work that nobody wants any more."""


class StopRequest:
    """Whether somebody has asked; `is_polled` while somebody looks after every step."""

    def __init__(self) -> None:
        self.is_asked = False
        self.is_polled = False
        self.is_over = False

    def listen(self) -> None:
        """Hear SIGTERM from now on; Ctrl-C in a terminal means the same."""
        signal.signal(signal.SIGTERM, self._receive)
        signal.signal(signal.SIGINT, self._receive)

    def check(self, path: Path) -> None:
        """Whether somebody asked before this process listened."""
        if path.exists():
            raise JobStopped

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.is_over:
            return
        self.is_asked = True
        if not self.is_polled:
            raise JobStopped


# -- how far a job is ----------------------------------------------------------------------------------

PAUSE_SECONDS = 0.5


class ProgressFile(Callback):
    """Writes `status.json` after a step, at most twice a second, and at the end."""

    def __init__(self, path: Path, stop: StopRequest, *, total_steps: int | None) -> None:
        self._path = path
        self._stop = stop
        self._total = total_steps
        self._metrics: dict[str, float] = {}
        self._first_step = 0
        self._started = self._written = time.monotonic()
        self._has_failed = False

    def on_fit_start(self, loop: Any, trained: Any, /) -> None:
        self._total = getattr(loop, "max_iters", None) or self._total
        self._first_step, self._started = loop.current_iter, time.monotonic()
        self._write(loop)
        self._stop.is_polled = True

    def on_iter_end(self, loop: Any, trained: Any, /) -> None:
        self._metrics |= loop.metrics
        if self._stop.is_asked:
            loop.should_stop = True
        if loop.should_stop or time.monotonic() - self._written >= PAUSE_SECONDS:
            self._write(loop)

    def on_fit_end(self, loop: Any, trained: Any, /) -> None:
        self._metrics |= loop.metrics
        self._write(loop)

    def _write(self, loop: Any) -> None:
        """A disk that is full for a moment is no reason to end a training; the checkpoint will tell."""
        self._written = time.monotonic()
        try:
            write_json(self._path, self._status(loop))
        except OSError as error:
            if not self._has_failed:
                log.warning("cannot write the progress to %s: %s", self._path, describe(error))
            self._has_failed = True

    def _status(self, loop: Any) -> dict[str, Any]:
        step, seconds = loop.current_iter, time.monotonic() - self._started
        done = step - self._first_step
        left = None if self._total is None else max(self._total - step, 0)
        return {
            "step": step,
            "total_steps": self._total,
            "fraction": None if not self._total else min(step / self._total, 1.0),
            "seconds_per_step": seconds / done if done else None,
            "eta_seconds": seconds / done * left if done and left is not None else None,
            "metrics": self._metrics,
            "updated": time.time(),
        }


# -- the program --------------------------------------------------------------------------------------


def main() -> int:
    header, functions = _read_order(sys.stdin.buffer.read())
    if header is None:
        return 0
    stop = StopRequest()
    job = Job(Path(header["folder"]))
    try:
        stop.listen()
        stop.check(job.folder / "stop.json")
        _set_up(header)
        outcome = _work(job, functions, stop)
    except JobStopped:
        outcome = {"state": "stopped", "result": {}}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the one who asked is told
        traceback.print_exc()
        outcome = {"state": "failed", "error": {"type": type(error).__name__, "message": text_of(error)}}
    stop.is_over = True
    return _leave(job.folder, outcome)


def _read_order(data: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """What to do, and the packed functions; None where the starter died before it had said everything."""
    line, _, functions = data.partition(b"\n")
    try:
        header: dict[str, Any] = json.loads(line)
    except ValueError:
        return None, b""
    return (header, functions) if len(functions) == header["functions_bytes"] else (None, b"")


def _set_up(header: Mapping[str, Any]) -> None:
    sys.path[:] = header["path"] or sys.path
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if header["log"]["is_set_up"]:
        apply_settings(header["log"], role="job")
    else:
        setup_logging()


def _work(job: Job, packed: bytes, stop: StopRequest) -> dict[str, Any]:
    record = job.record()
    # Once more: the base of an adapter may be named relative to the folder that a process works in.
    workspace = Workspace(job.folder.parents[2])
    check_model(workspace, "the model", record["model"], allow_download=record["allow_download"])
    _fetch(record["model"], allow_download=record["allow_download"])
    functions = _unpacked(packed)
    if record["action"] == "evaluate":
        return {"state": "finished", "result": _evaluate(job, record, functions)}
    with _holding(Path(record["output_dir"])):
        result = _train(job, record, functions, stop)
    is_stopped = stop.is_asked and bool(result.get("stopped_early"))
    return {"state": "stopped" if is_stopped else "finished", "result": result}


def _fetch(model: str, *, allow_download: bool) -> None:
    """Have all of a model here before anything is written to the output folder."""
    source = find_model(model)
    source = source.base or source
    if source.kind == "hub":
        hub_folder(source.name, allow_download=allow_download)


def _unpacked(packed: bytes) -> Functions:
    try:
        functions: Functions = pickle.loads(packed) if packed else {}
    except Exception as error:
        raise ConfigError(
            f"a registered reward cannot be loaded in the job's process ({describe(error)}): move what it uses to a "
            "module that a new process can import"
        ) from error
    return functions


@contextmanager
def _holding(folder: Path) -> Iterator[None]:
    """Only one job writes to a folder, also of those that were started from other base folders."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)
        with suppress(OSError):  # there is something in it, as there should be
            folder.rmdir()


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JobError(
            f"output_dir is {str(folder)!r}, which another job is writing to: choose another folder"
        ) from None


# -- work --------------------------------------------------------------------------------------------


def _train(job: Job, record: Mapping[str, Any], functions: Functions, stop: StopRequest) -> dict[str, Any]:
    from sharpen.llm.trainers import DPOTrainerWrapper, GRPOTrainerWrapper, SFTTrainerWrapper

    wrappers: dict[str, Any] = {"sft": SFTTrainerWrapper, "grpo": GRPOTrainerWrapper, "dpo": DPOTrainerWrapper}
    parts: dict[str, Any] = {"dataset": str(job.folder / ROWS), **record["settings"]}
    if record.get("rewards"):
        parts["reward_fn"] = [build(spec, functions) for spec in record["rewards"]]
    if (job.folder / EVAL_ROWS).exists():
        parts["eval_dataset"] = str(job.folder / EVAL_ROWS)
    if record.get("eval_reward"):
        parts["eval_reward_fn"] = build(record["eval_reward"], functions)
    wrapper = wrappers[record["algorithm"]](
        record["model"],
        output_dir=record["output_dir"],
        callbacks=[ProgressFile(job.folder / "status.json", stop, total_steps=record.get("total_steps"))],
        resume=record["resume"],
        allow_download=record["allow_download"],
        **parts,
    )
    result: dict[str, Any] = wrapper.train()
    return result


def _evaluate(job: Job, record: Mapping[str, Any], functions: Functions) -> dict[str, Any]:
    from sharpen.llm.evaluation import evaluate

    return evaluate(
        record["model"],
        str(job.folder / ROWS),
        [build(spec, functions) for spec in record["rewards"]] or None,
        allow_download=record["allow_download"],
        **record["settings"],
    )


# -- the end -----------------------------------------------------------------------------------------


def _leave(folder: Path, outcome: Mapping[str, Any]) -> int:
    """Write the result, and end without waiting for threads that others have left behind."""
    code = 1 if outcome["state"] == "failed" else 0
    try:
        _write_result(folder, {**outcome, "ended": time.time()})
    except OSError as error:
        log.error("cannot write the result of the job: %s", describe(error))
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 1  # the log cannot take it any more
    os._exit(code)


def _write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """The rows of the job go first: nobody needs them any more, and on a full disk they make room."""
    for name in (ROWS, EVAL_ROWS):
        (folder / name).unlink(missing_ok=True)
    write_json(folder / "result.json", result)


if __name__ == "__main__":
    sys.exit(main())
