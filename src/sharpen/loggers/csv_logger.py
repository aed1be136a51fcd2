"""`CsvLogger`: metrics as a table."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import CsvTable
from .base import Logger
from .level import LogLevel
from .metrics import as_numbers


class CsvLogger(Logger):
    """One row per call: the step and its metrics. A metric that comes later gets a column of its own.

    A new run replaces the file; a resumed one goes on after its checkpoint.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str],
        filename: str = "metrics.csv",
        loglevel: int | LogLevel = LogLevel.PERIODIC,
    ) -> None:
        super().__init__(loglevel)
        self.path = Path(dirpath) / filename
        self._table = CsvTable(self.path)
        self._step: int | None = None

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._table.append({"step": step, **as_numbers(metrics)})
        self._step = step

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self._step = state_dict["step"]
        if self._step is not None:
            self._table.resume("step", self._step)
