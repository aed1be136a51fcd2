"""`PickleLogger`: values of any kind, for one's own programs."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .base import FinishStatus, Logger
from .level import LogLevel


class PickleLogger(Logger):
    """One pickled dict per call, of values of any kind, one after the other in one file.

    Sharpen only writes it. Unpickling runs what is in a file, so read only files that you trust:

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
            file.truncate(self._size_bytes)  # what stands behind is of an earlier run, or was cut off by a crash
            file.seek(self._size_bytes)
            file.write(data)
        self._size_bytes += len(data)

    def state_dict(self) -> dict[str, Any]:
        return {"size_bytes": self._size_bytes}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        self._size_bytes = min(state_dict["size_bytes"], size)
