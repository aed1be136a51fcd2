"""From a checked call to a job: what it reads is found, what it asks is checked, and then its process begins."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..models.hub import announce_download
from ..models.source import find_model
from ..training.settings import DEFAULTS, Settings, resolve, run_length
from .data import DatasetRegistry, Form, write_rows
from .errors import JobError, ParameterError
from .jobs import EVAL_ROWS, ROWS, Job, JobRegistry, launch, pack
from .requests import Request
from .reward_registry import RewardRegistry, Spec
from .workspace import Workspace, check_model

# Keys of a call that are no settings of the wrapper, or travel to it in another form.
_NO_SETTINGS = frozenset(
    (
        "algorithm", "model_name", "model_path", "dataset", "split", "max_samples", "output_dir", "reward",
        "eval_dataset", "eval_split", "eval_max_samples", "eval_reward", "resume", "wait",
    )
)  # fmt: skip


_OF_TRL = "beta"
"""Checked by TRL in the job, so that this process need not import it."""


class JobFactory:
    """Begins jobs in a workspace."""

    def __init__(
        self,
        workspace: Workspace,
        jobs: JobRegistry,
        data: DatasetRegistry,
        rewards: RewardRegistry,
        *,
        allow_download: bool,
    ) -> None:
        self._workspace = workspace
        self._jobs = jobs
        self._data = data
        self._rewards = rewards
        self._allow_download = allow_download

    # -- training ------------------------------------------------------------------------------------

    def train(self, request: Request) -> Job:
        """Begin a training."""
        algorithm = request.get("algorithm")
        output_dir = self._workspace.output_path("output_dir", _output_dir(request))
        model = self._model(request, "model_name")
        if Path(model).is_relative_to(output_dir):
            raise ParameterError.of(
                "output_dir", str(output_dir), "it contains the model to start from: choose another folder"
            )
        rewards = self._reward_specs(request.given.get("reward", "accuracy")) if algorithm == "grpo" else []
        eval_reward = request.given.get("eval_reward")
        judge = None if eval_reward is None else self._rewards.spec("eval_reward", eval_reward)
        settings = self._settings(request, model, output_dir)
        download = self._download(model)
        rows = {ROWS: self._rows(request, algorithm)}
        if "eval_dataset" in request.given:
            rows[EVAL_ROWS] = self._eval_rows(request, algorithm)
        record = self._record(request, model, rewards, download) | {
            "algorithm": algorithm,
            "output_dir": str(output_dir),
            "eval_reward": judge,
            "resume": request.get("resume"),
            "total_steps": _total_steps(settings, len(rows[ROWS])),
        }
        return self._begin(algorithm, record, rows, [*rewards, *([] if judge is None else [judge])])

    def _settings(self, request: Request, model: str, output_dir: Path) -> Settings:
        """The settings as the wrapper will see them: what it would refuse is refused before a job begins."""
        given = {name: value for name, value in _settings_of(request).items() if name != _OF_TRL}
        return resolve(
            request.get("algorithm"),
            None,
            {"model_name": model, "output_dir": str(output_dir), **given},
            has_eval_dataset="eval_dataset" in request.given,
            has_eval_reward="eval_reward" in request.given,
        )

    def _rows(self, request: Request, form: Form) -> list[dict[str, Any]]:
        name = request.get("dataset") or ("gsm8k" if form != "dpo" else None)
        if name is None:
            raise ParameterError.of(
                "dataset", None, "dpo needs a data set with the columns prompt, chosen and rejected"
            )
        return self._data.rows(
            "dataset", name, request.given.get("split"), form, max_samples=request.get("max_samples")
        )

    def _eval_rows(self, request: Request, algorithm: Form) -> list[dict[str, Any]]:
        name = request.get("eval_dataset")
        split = request.given.get("eval_split") or self._data.test_split("eval_dataset", name)
        form: Form = "judged_sft" if algorithm == "sft" and "eval_reward" in request.given else algorithm
        return self._data.rows("eval_dataset", name, split, form, max_samples=request.get("eval_max_samples"))

    # -- evaluation ----------------------------------------------------------------------------------

    def evaluate(self, request: Request) -> Job:
        """Begin an evaluation."""
        model = self._model(request, "model_path")
        rewards = self._reward_specs(request.given.get("reward", []))
        name = request.get("dataset")
        split = request.given.get("split") or self._data.test_split("dataset", name)
        download = self._download(model)
        rows = self._data.rows("dataset", name, split, "rl", max_samples=request.get("max_samples"))
        return self._begin("evaluate", self._record(request, model, rewards, download), {ROWS: rows}, rewards)

    # -- both ----------------------------------------------------------------------------------------

    def _model(self, request: Request, key: str) -> str:
        model = check_model(self._workspace, key, request.get(key), allow_download=self._allow_download)
        writer = self._jobs.writing_to(Path(model))
        if writer is not None:
            raise ParameterError.of(
                key, request.get(key), f"job {writer.id} is still writing to it: wait for the job to finish, or stop it"
            )
        return model

    def _download(self, model: str) -> dict[str, Any] | None:
        """What the job will have to fetch from the hub; an error here where it cannot."""
        source = find_model(model)
        source = source.base or source
        found = announce_download(source.name) if source.kind == "hub" and self._allow_download else None
        return None if found is None else {"files": found.num_files, "size_bytes": found.size_bytes}

    def _reward_specs(self, wanted: str | list[str]) -> list[Spec]:
        return [self._rewards.spec("reward", name) for name in ([wanted] if isinstance(wanted, str) else wanted)]

    def _record(
        self, request: Request, model: str, rewards: list[Spec], download: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {
            "action": request.action.name,
            "asked": dict(request.given),
            "model": model,
            "download": download,
            "rewards": rewards,
            "settings": _settings_of(request),
            "allow_download": self._allow_download,
        }

    def _begin(
        self, kind: str, record: Mapping[str, Any], rows: Mapping[str, list[dict[str, Any]]], specs: list[Spec]
    ) -> Job:
        functions = self._rewards.functions(specs)
        packed = pack(functions) if functions else b""
        with self._jobs.draft(kind) as draft:
            for name, each in rows.items():
                write_rows(draft / name, each)
            with self._workspace.locked():
                self._check_free(record.get("output_dir"))
                job = self._jobs.begin(draft, {**record, "num_rows": len(rows[ROWS])})
                self._launch(job, packed)
        return job

    def _check_free(self, output_dir: str | None) -> None:
        writer = None if output_dir is None else self._jobs.writing_to(Path(output_dir))
        if writer is not None:
            raise JobError(
                f"output_dir is {output_dir!r}, which job {writer.id} is writing to: choose another folder, wait for "
                "the job to finish, or stop it"
            )

    def _launch(self, job: Job, packed: bytes) -> None:
        try:
            launch(job, base=self._workspace.base, functions=packed, allow_download=self._allow_download)
        except BaseException:
            self._jobs.remove(job)
            raise


def _output_dir(request: Request) -> str:
    return str(request.given.get("output_dir") or DEFAULTS[request.get("algorithm")]["output_dir"])


def _settings_of(request: Request) -> dict[str, Any]:
    return {name: value for name, value in request.given.items() if name not in _NO_SETTINGS}


def _total_steps(settings: Settings, num_rows: int) -> int:
    length = run_length(settings, num_rows)
    if length.steps == 0:
        raise ParameterError.of(
            "batch_size",
            settings.per_device_train_batch_size,
            f"one step needs {length.rows_per_batch} rows, but there are only {num_rows}: lower it, or add rows",
        )
    return length.steps
