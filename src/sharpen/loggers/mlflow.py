"""`MlflowLogger`: records metrics in MLflow, on a server or in a folder.

It uses a separate client, so that it does not affect the user's use of `mlflow`. MLflow's telemetry is off unless
`MLFLOW_DISABLE_TELEMETRY` is set otherwise.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..checks import needs_extra
from .base import FinishStatus, Logger, LogLevel, flat
from .metrics import as_numbers

_STATUS: dict[FinishStatus, str] = {"succeeded": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_NOT_ALLOWED = re.compile(r"[^\w\-. /]")
MAX_VALUE = 6000


class MlflowLogger(Logger):
    """Records one run of an experiment, opened with the first thing to log; a resumed run continues under the same id.

    Args:
        experiment: The name of the experiment.
        run_name: The name of the run.
        tracking_uri: A server (`http://…`) or a folder. If not given, `MLFLOW_TRACKING_URI` or
            `mlflow.set_tracking_uri` is used; without them, the run is kept in the folder `mlruns` of `dirpath`.
        loglevel: The lowest level to record.
        dirpath: See above. A trainer passes its run folder to a logger that it creates by name.
        clock: The time in seconds.
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
        # A parameter never changes in MLflow; a changed value of a resumed run becomes a tag.
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
        """Return the names of metrics in MLflow. In a folder `loss` is a file, so `loss/clip` becomes `loss.clip`."""
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
        # MLflow requires consent to store runs in folders; choosing one is that consent.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = uri if str(uri).startswith("file:") else Path(uri).absolute().as_uri()
    return MlflowClient(tracking_uri=str(uri))


def _allowed(name: str) -> str:
    """Replace what MLflow does not allow in a name."""
    return _NOT_ALLOWED.sub("_", name)


def _beside(name: str, taken: Iterable[str]) -> str:
    """Return a file name such that none of the names is a folder of another."""
    for other in taken:
        if name.startswith(f"{other}/"):
            return f"{other}.{name[len(other) + 1 :]}"
        if other.startswith(f"{name}/"):
            return f"{name}.value"
    return name
