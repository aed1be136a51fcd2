"""`RLTrainingTool`: fine-tuning for agents, in JSON alone.

A call is an action with its keys; the answer is a JSON text with `status` "success" or "error". Whatever is asked,
the answer is an answer: bad input never raises. Training and evaluation run as jobs in processes of their own, which
go on when this process ends.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import SharpenError, text_of
from ...secrets import shown
from ..plain_json import as_json
from ..reward_runner import RewardFunction
from ..sources import Source
from .answers import describe, outcome, summary
from .data import DataBook, column_names, preview
from .errors import JobError, ParameterError, Problem
from .jobs import Job, JobBook
from .listing import find_models
from .orders import Orders
from .request import Request, read_request
from .reward_book import RewardBook
from .schema import ToolParameter, flat_schema, tool_parameters, tool_schema
from .supervision import stop_job, wait_for
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
        self._jobs = JobBook(self._workspace)
        self._data = DataBook(self._workspace, allow_download=allow_download)
        self._rewards = RewardBook(self._workspace)
        self._orders = Orders(self._workspace, self._jobs, self._data, self._rewards, allow_download=allow_download)
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
        return self._orders.train(request)

    def _evaluate(self, request: Request) -> Job:
        return self._orders.evaluate(request)

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
