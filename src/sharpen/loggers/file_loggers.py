"""Loggers that write files: `CsvLogger`, `JsonlLogger` and `PickleLogger`.

A new run replaces the file of an earlier one; a resumed run continues after its checkpoint.
"""

import os
import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..files import CsvTable, append_json, keep_json_lines
from .base import FinishStatus, Logger, LogLevel
from .metrics import as_numbers


class CsvLogger(Logger):
    """Writes one row per call: the step and its metrics. A metric that appears later adds a column."""

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


class JsonlLogger(Logger):
    """Writes one line of JSON per call: the step, the time, and the metrics, the text or the settings.

    Lines without a `step`, which other writers put into the same file, are kept.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str],
        filename: str = "metrics.jsonl",
        loglevel: int | LogLevel = LogLevel.PERIODIC,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(loglevel)
        self.path = Path(dirpath) / filename
        self._clock = clock
        self._step = 0
        self._has_begun = False

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._append({"step": self._step, "config": dict(config)})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._append({"step": step, **as_numbers(metrics)})

    def log_text(self, name: str, text: str, step: int) -> None:
        self._append({"step": step, "name": name, "text": text})

    def finish(self, status: FinishStatus = "succeeded") -> None:
        self._append({"step": self._step, "status": status})

    def _append(self, line: dict[str, Any]) -> None:
        if not self._has_begun:
            self._begin_after(-1)
        self._step = line["step"]
        append_json(self.path, {"step": self._step, "time": self._clock(), **line})

    def _begin_after(self, last: int) -> None:
        """Remove lines of later steps: an earlier run wrote them, or one that was killed after its checkpoint."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            keep_json_lines(
                self.path, lambda line: "step" not in line or (line["step"] <= last and "status" not in line)
            )
        self._has_begun = True

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "is_begun": self._has_begun}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self._step = state_dict["step"]
        if state_dict["is_begun"]:
            self._begin_after(self._step)


class PickleLogger(Logger):
    """Writes one pickled dict per call, with values of any type, to be read by your own programs.

    Sharpen never reads it. Unpickling can run code of the file, so read only files that you trust:

        with open("metrics.pkl", "rb") as file:
            while file.peek(1):
                record = pickle.load(file)
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str],
        filename: str = "metrics.pkl",
        loglevel: int | LogLevel = LogLevel.PERIODIC,
    ) -> None:
        super().__init__(loglevel)
        self.path = Path(dirpath) / filename
        self._size_bytes = 0

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._append({"config": dict(config)})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._append({"step": step, "metrics": dict(metrics)})

    def log_text(self, name: str, text: str, step: int) -> None:
        self._append({"step": step, "name": name, "text": text})

    def finish(self, status: FinishStatus = "succeeded") -> None:
        self._append({"status": status})

    def _append(self, record: dict[str, Any]) -> None:
        data = pickle.dumps(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self._size_bytes)  # what follows is of an earlier run, or was cut off by a crash
            file.seek(self._size_bytes)
            file.write(data)
        self._size_bytes += len(data)

    def state_dict(self) -> dict[str, Any]:
        return {"size_bytes": self._size_bytes}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        self._size_bytes = min(state_dict["size_bytes"], size)
