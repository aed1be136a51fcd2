"""`RLTrainingTool`: fine-tuning for agents, in JSON alone.

A call is an action with its keys; the answer is a JSON text with `status` "success" or "error". Whatever is asked,
the answer is an answer: bad input never raises. Training and evaluation run as jobs in processes of their own, which
go on when this process ends.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import SharpenError, text_of
from ...secrets import shown
from ..models.source import ADAPTER_CONFIG, MODEL_CONFIG
from ..plain_json import as_json
from ..reward_runner import RewardFunction
from ..sources import Source
from .data import DatasetRegistry, column_names, preview
from .errors import JobError, ParameterError, Problem
from .job_factory import JobFactory
from .jobs import LIVE, Job, JobRegistry, stop_job, wait_for
from .requests import Request, ToolParameter, flat_schema, read_request, tool_parameters, tool_schema
from .reward_registry import RewardRegistry
from .workspace import Workspace

log = logging.getLogger(__name__)

_GRACE_SECONDS = 30.0
_LONGEST_ECHO = 200
_DESCRIPTION = (
    "Fine-tunes language models (SFT, GRPO, DPO) and evaluates them. Every action takes and returns JSON; training "
    "runs as a job that can be monitored, stopped and resumed."
)


class RLTrainingTool:
    """A tool with which an agent trains models. Paths in calls are relative to `base_dir` and must stay inside it.

    Models and data sets on the hub are downloaded if they are not on this machine yet, and their size is logged first;
    with `allow_download=False` they are rejected.
    """

    name = "rl_training"
    description = _DESCRIPTION

    def __init__(self, base_dir: str | os.PathLike[str] = ".", allow_download: bool = True) -> None:
        self._workspace = Workspace(base_dir)
        self._jobs = JobRegistry(self._workspace)
        self._data = DatasetRegistry(self._workspace, allow_download=allow_download)
        self._rewards = RewardRegistry(self._workspace)
        self._factory = JobFactory(
            self._workspace, self._jobs, self._data, self._rewards, allow_download=allow_download
        )
        self._actions: dict[str, Callable[[Request], dict[str, Any] | Job]] = {
            "train": self._train,
            "load_dataset": self._load_dataset,
            "create_reward": self._create_reward,
            "evaluate": self._evaluate,
            "status": self._status,
            "stop": self._stop,
            "list": self._list,
        }

    # -- what can be passed --------------------------------------------------------------------------

    def get_parameters(self) -> list[ToolParameter]:
        """Return every key that a call can have, with its description, its default and the actions that accept it."""
        return tool_parameters()

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a call."""
        return tool_schema()

    def openai_tool(self) -> dict[str, Any]:
        """Return the tool definition for the `tools` parameter of the OpenAI API."""
        function = {"name": self.name, "description": self.description, "parameters": flat_schema()}
        return {"type": "function", "function": function}

    def register_dataset(self, name: str, dataset: Source) -> None:
        """Register a data set under a name: a list of dicts, a `Dataset`, or any path, even outside `base_dir`."""
        self._data.register(name, dataset)

    def register_reward_function(self, name: str, reward_fn: RewardFunction) -> None:
        """Register a reward `f(completions, **columns) -> list[float]`; it is pickled for the jobs that use it."""
        self._rewards.register(name, reward_fn)

    # -- calls ---------------------------------------------------------------------------------------

    def run(self, parameters: Mapping[str, Any] | str) -> str:
        """Run the action of `parameters`, a dict or a JSON string, and return the answer as a JSON string."""
        return as_json(self.answer(parameters))

    def answer(self, parameters: Mapping[str, Any] | str, *, waits: bool = True) -> dict[str, Any]:
        """Like `run`, but return a dict. With `waits=False`, never wait for a job, even if the call sets `wait`."""
        try:
            request = read_request(parameters)
            answer = self._actions[request.action.name](request)
            if isinstance(answer, Job):
                answer = self._begun(answer, is_waited=waits and request.get("wait"))
        except SharpenError as error:
            return _refusal(error)
        except Exception as error:
            log.exception("a call to the training tool failed")
            return _refusal(error)
        return {"status": "success", **answer}

    def _train(self, request: Request) -> Job:
        return self._factory.train(request)

    def _evaluate(self, request: Request) -> Job:
        return self._factory.evaluate(request)

    def _load_dataset(self, request: Request) -> dict[str, Any]:
        name, form = request.get("dataset"), request.get("format")
        rows = self._data.rows(
            "dataset", name, request.given.get("split"), form, max_samples=request.get("max_samples")
        )
        return {
            "dataset": name,
            "format": form,
            "size": len(rows),
            "columns": column_names(rows),
            "preview": preview(rows, request.get("num_preview")),
        }

    def _create_reward(self, request: Request) -> dict[str, Any]:
        created = self._rewards.create(request.given)
        return {"name": created.name, "reward": created.spec, "replaced": created.is_replaced}

    def _status(self, request: Request) -> dict[str, Any]:
        return describe(self._jobs.find(request.given.get("job_id")), log_lines=request.given.get("log_lines"))

    def _stop(self, request: Request) -> dict[str, Any]:
        job = self._jobs.find(request.get("job_id"))
        was_running = job.is_live()
        is_killed = stop_job(job, grace_seconds=request.get("grace_seconds")) if was_running else False
        return {**describe(job), "was_running": was_running, "was_killed": is_killed}

    def _list(self, request: Request) -> dict[str, Any]:
        kind, limit = request.get("kind"), request.get("limit")
        found: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "jobs": lambda: [_listed(job) for job in self._jobs.all()[:limit]],
            "datasets": self._data.names,
            "rewards": self._rewards.names,
            "models": lambda: find_models(self._workspace.base, limit=limit),
        }
        return {name: look() for name, look in found.items() if kind in ("all", name)}

    # -- jobs ----------------------------------------------------------------------------------------

    def _begun(self, job: Job, *, is_waited: bool) -> dict[str, Any]:
        if not is_waited:
            return describe(job)
        try:
            wait_for(job)
        except KeyboardInterrupt:
            stop_job(job, grace_seconds=_GRACE_SECONDS)
            raise
        return outcome(job)


def _listed(job: Job) -> dict[str, Any]:
    try:
        return summary(job)
    except JobError as error:
        return {"job_id": job.id, "state": "unreadable", "problem": str(error)}


def _refusal(error: Exception) -> dict[str, Any]:
    told: dict[str, Any] = {"type": type(error).__name__, "message": text_of(error)}
    if isinstance(error, ParameterError) and error.problems:
        told["problems"] = [_told(problem) for problem in error.problems]
    return {"status": "error", "error": told}


def _told(problem: Problem) -> dict[str, Any]:
    told: dict[str, Any] = {"key": problem.key, "message": problem.message}
    if problem.value is not None:
        told["value"] = problem.value if isinstance(problem.value, bool | int | float) else _echo(problem.value)
    return told | ({} if problem.did_you_mean is None else {"did_you_mean": problem.did_you_mean})


def _echo(value: object) -> str:
    """A text as it is while it is short, anything else as it is shown in messages."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_ECHO else shown(value)


# -- what the tool says about a job -------------------------------------------------------------------


_LINES_OF_A_FAILURE = 20


def describe(job: Job, *, log_lines: int | None = None) -> dict[str, Any]:
    """Where a job stands; of one that has ended, also its result."""
    record, state, progress = job.record(), job.state(), job.progress()
    result = job.result() or {} if state not in LIVE else {}
    answer = {
        **(result.get("result") or {}),
        "job_id": job.id,
        "action": record["action"],
        "state": state,
        "elapsed_seconds": _elapsed(record, state, progress, result),
        "log": str(job.folder / "log"),
    }
    if record.get("download"):
        answer["download"] = record["download"]
    if record["action"] == "train":
        answer |= {"algorithm": record["algorithm"], "output_dir": record["output_dir"]}
        answer |= {"progress": _progress(record, progress, state), "metrics": progress.get("metrics", {})}
    if state in ("failed", "died"):
        answer["error"] = result.get("error") or _death(job, progress)
    lines = log_lines if log_lines is not None else (_LINES_OF_A_FAILURE if "error" in answer else 0)
    return answer | ({"log_tail": job.log_tail(lines)} if lines else {})


def outcome(job: Job) -> dict[str, Any]:
    """The answer to a call that waited for the end of a job."""
    answer = describe(job)
    return {"status": "error" if "error" in answer else "success", **answer}


def summary(job: Job) -> dict[str, Any]:
    """A job in a list."""
    record, state, progress = job.record(), job.state(), job.progress()
    found = {"job_id": job.id, "action": record["action"], "state": state, "created": record.get("created")}
    found |= {name: record[name] for name in ("algorithm", "model", "output_dir") if name in record}
    return found | ({"progress": _progress(record, progress, state)} if record["action"] == "train" else {})


def _progress(record: dict[str, Any], progress: dict[str, Any], state: str) -> dict[str, Any]:
    eta = progress.get("eta_seconds")
    if eta is not None:
        eta = max(0.0, eta - (time.time() - progress["updated"])) if state in LIVE else None
    return {
        "step": progress.get("step", 0),
        "total_steps": progress.get("total_steps", record.get("total_steps")),
        "fraction": progress.get("fraction", 0.0),
        "eta_seconds": eta,
    }


def _elapsed(record: dict[str, Any], state: str, progress: dict[str, Any], result: dict[str, Any]) -> float:
    created = record.get("created", 0.0)
    ended = time.time() if state in LIVE else result.get("ended") or progress.get("updated") or created
    return max(0.0, float(ended - created))


def _death(job: Job, progress: dict[str, Any]) -> dict[str, Any]:
    step = progress.get("step")
    at = f" after step {step}" if step else ""
    return {
        "type": "JobDied",
        "message": f"the process of job {job.id} ended{at} without a result: it was killed, or ran out of memory or "
        "disk. Check its log; to resume a training job from its last checkpoint, repeat the call with resume: true",
    }


# -- the models in the base folder --------------------------------------------------------------------


_DEEPEST = 4
_MOST_FOLDERS = 5_000


def find_models(base: Path, *, limit: int) -> list[dict[str, Any]]:
    """The folders that hold a model or an adapter, the newest first. Only the upper floors of the tree are searched."""
    found = [(kind, folder, folder.stat().st_mtime) for folder in _folders(base) if (kind := _kind(folder))]
    found.sort(key=lambda each: -each[2])
    return [{"path": str(folder), "kind": kind, "changed": changed} for kind, folder, changed in found[:limit]]


def _folders(base: Path) -> Iterator[Path]:
    level, seen = [base], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for folder in level:
            seen += 1
            if seen > _MOST_FOLDERS:
                return
            inside = _inside(folder)
            yield from inside
            below += inside
        level = below


def _inside(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except PermissionError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith((".", "__"))]


def _kind(folder: Path) -> str | None:
    if (folder / ADAPTER_CONFIG).is_file():
        return "adapter"
    is_model = (folder / MODEL_CONFIG).is_file() and any(folder.glob("*.safetensors"))
    return "model" if is_model else None
