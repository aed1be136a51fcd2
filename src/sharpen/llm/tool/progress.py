"""The callback that tells how far a job is, and ends it when it is asked to."""

import logging
import time
from pathlib import Path
from typing import Any

from ...callbacks import Callback
from ...errors import describe
from ..plain_json import write_json
from .stopping import StopRequest

log = logging.getLogger(__name__)

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
