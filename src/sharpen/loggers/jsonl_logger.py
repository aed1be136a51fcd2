"""`JsonlLogger`: metrics, texts and settings as lines of JSON."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..files import append_json, keep_json_lines
from .base import FinishStatus, Logger
from .level import LogLevel
from .metrics import as_numbers


class JsonlLogger(Logger):
    """One line of JSON per call: the step, the time, and the metrics, the text or the settings.

    A new run replaces the lines of an earlier one; a resumed run goes on after its checkpoint. Lines of others in the
    same file, which have no `step`, are kept.
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
        self._is_begun = False

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._append({"step": self._step, "config": dict(config)})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._append({"step": step, **as_numbers(metrics)})

    def log_text(self, name: str, text: str, step: int) -> None:
        self._append({"step": step, "name": name, "text": text})

    def finish(self, status: FinishStatus = "succeeded") -> None:
        self._append({"step": self._step, "status": status})

    def _append(self, line: dict[str, Any]) -> None:
        if not self._is_begun:
            self._begin_after(-1)
        self._step = line["step"]
        append_json(self.path, {"step": self._step, "time": self._clock(), **line})

    def _begin_after(self, last: int) -> None:
        """Lines of later steps are of an earlier run, or of one that was killed after its checkpoint."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            keep_json_lines(
                self.path, lambda line: "step" not in line or (line["step"] <= last and "status" not in line)
            )
        self._is_begun = True

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "is_begun": self._is_begun}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self._step = state_dict["step"]
        if state_dict["is_begun"]:
            self._begin_after(self._step)
