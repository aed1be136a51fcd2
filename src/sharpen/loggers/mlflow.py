"""`MlflowLogger`: metrics in MLflow, on a server or in a folder.

It uses a client of its own, so what the user's program does with `mlflow` is not touched. MLflow's reports of usage
are off unless `MLFLOW_DISABLE_TELEMETRY` says otherwise.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..checks import needs_extra
from .base import FinishStatus, Logger
from .level import LogLevel
from .metrics import as_numbers
from .settings import flat

_STATUS: dict[FinishStatus, str] = {"succeeded": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_NOT_ALLOWED = re.compile(r"[^\w\-. /]")
MAX_VALUE = 6000


class MlflowLogger(Logger):
    """One run of an experiment, opened with the first thing to log; a resumed run goes on under the same id.

    `tracking_uri` is a server (`http://…`) or a folder. Without it, `MLFLOW_TRACKING_URI` and `mlflow.set_tracking_uri`
    decide; where neither was used, the run is kept in the folder `mlruns` of `dirpath`. A trainer gives its run folder
    as `dirpath` to a logger that it makes by name.
    """

    def __init__(
        self,
        experiment: str = "sharpen",
        run_name: str | None = None,
        tracking_uri: str | os.PathLike[str] | None = None,
        loglevel: int | LogLevel = LogLevel.PERIODIC,
        *,
        dirpath: str | os.PathLike[str] = ".",
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(loglevel)
        self.dirpath = Path(dirpath)
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self._clock = clock
        self._client: Any = None
        self._run_id: str | None = None
        self._file_names: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def log_config(self, config: Mapping[str, Any]) -> None:
        client = self._opened()
        from mlflow.entities import Param

        settings = {_allowed(name): str(value)[:MAX_VALUE] for name, value in flat(config).items()}
        known = client.get_run(self._run_id).data.params
        params = [Param(name, value) for name, value in settings.items() if name not in known]
        for start in range(0, len(params), 100):  # the limit of one request
            client.log_batch(self._run_id, params=params[start : start + 100])
        # A parameter never changes in MLflow; a run that is resumed with another value has that as a tag.
        for name, value in settings.items():
            if known.get(name, value) != value:
                client.set_tag(self._run_id, name, value)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        values, client = as_numbers(metrics), self._opened()
        from mlflow.entities import Metric

        milliseconds = int(self._clock() * 1000)
        records = [Metric(name, values[given], milliseconds, step) for given, name in self._names(values).items()]
        client.log_batch(self._run_id, metrics=records)

    def log_text(self, name: str, text: str, step: int) -> None:
        self._opened().log_text(self._run_id, text, f"{_allowed(name)}/{step}.txt")

    def finish(self, status: FinishStatus = "succeeded") -> None:
        client, self._client = self._client, None
        if client is not None:
            client.set_terminated(self._run_id, _STATUS[status])

    def _names(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """How metrics are called in MLflow. In a folder `loss` is a file, so that `loss/clip` becomes `loss.clip`."""
        allowed = {name: _allowed(name) for name in metrics}
        if not str(self._client.tracking_uri).startswith("file:"):
            return allowed
        for name in sorted(allowed.values(), key=len):
            if name not in self._file_names:
                self._file_names[name] = _beside(name, self._file_names.values())
        return {given: self._file_names[name] for given, name in allowed.items()}

    def _opened(self) -> Any:
        if self._client is None:
            self._client = _client(self.tracking_uri, self.dirpath / "mlruns")
            if self._run_id is None:
                self._run_id = self._create_run()
            else:
                self._client.update_run(self._run_id, status="RUNNING")
        return self._client

    def _create_run(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        run_id: str = self._client.create_run(experiment, run_name=self.run_name).info.run_id
        return run_id

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id, "file_names": dict(self._file_names)}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self._run_id = state_dict["run_id"]
        self._file_names = dict(state_dict.get("file_names", {}))  # 0.1 did not keep them


def _client(tracking_uri: str | os.PathLike[str] | None, folder: Path) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with needs_extra("mlflow", extra="mlflow", feature="MlflowLogger"):
        import mlflow
        from mlflow.tracking import MlflowClient
    # MLflow's own default is a database, which mlflow-skinny cannot open.
    is_set = mlflow.is_tracking_uri_set()  # type: ignore[no-untyped-call]
    uri = tracking_uri or (mlflow.get_tracking_uri() if is_set else folder)
    if "://" not in str(uri) or str(uri).startswith("file:"):
        # MLflow asks for consent to folders, which it keeps as they are; choosing one is that consent.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = uri if str(uri).startswith("file:") else Path(uri).absolute().as_uri()
    return MlflowClient(tracking_uri=str(uri))


def _allowed(name: str) -> str:
    """MLflow takes letters, digits and some signs in a name."""
    return _NOT_ALLOWED.sub("_", name)


def _beside(name: str, taken: Iterable[str]) -> str:
    """A name for a file beside these files: none of them is a folder of another."""
    for other in taken:
        if name.startswith(f"{other}/"):
            return f"{other}.{name[len(other) + 1 :]}"
        if other.startswith(f"{name}/"):
            return f"{name}.value"
    return name
