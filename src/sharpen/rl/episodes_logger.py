"""`EpisodesLogger`: every episode of a run as a line of `episodes.jsonl`.

A line has the iteration and the stage, the number of the episode in the run, its length and its reward, and whatever
numbers and texts it logged. A resumed run goes on after its checkpoint: later lines are cut off.
"""

import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..loggers import LogLevel
from .log_writer import Contents, LogWriter, is_number

_MOST_LINES, _MOST_SECONDS = 1000, 1.0
_OWN = ("iteration", "stage", "episode", "length", "reward", "time")


class EpisodesLogger(LogWriter):
    """Give it to the `loggers` of a Trainer and call `follow(trainer)`, by which it knows iteration and stage."""

    def __init__(
        self,
        dirpath: str | os.PathLike[str],
        filename: str = "episodes.jsonl",
        loglevel: int | LogLevel = LogLevel.PERIODIC,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(loglevel)
        self.path = Path(dirpath) / filename
        self._clock = clock
        self._loop: weakref.ref[Any] | None = None
        self._lines: list[bytes] = []
        self._size_bytes = 0
        self._written_at = clock()

    def follow(self, trainer: Any) -> None:
        """Take iteration and stage from this trainer, which is not kept alive by it."""
        self._loop = weakref.ref(trainer)

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        found = self.episode_wise(contents)
        logged = {name: _plain(value) for name, value in found.items() if name not in _OWN and _is_shown(value)}
        line = {
            **self._place(),
            "episode": self.global_episode,
            "length": int(length),
            "reward": _plain(np.sum(rewards)),
            "time": self._clock(),
            **logged,
        }
        self._lines.append(msgspec.json.encode(line) + b"\n")
        if len(self._lines) >= _MOST_LINES or self._clock() - self._written_at >= _MOST_SECONDS:
            self.flush()

    def on_env_all_done(self) -> None:
        self.flush()

    def flush(self) -> None:
        """Write what is held back."""
        if not self._lines:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self._size_bytes)  # what stands behind is of an earlier run, or was cut off by a crash
            file.seek(self._size_bytes)
            self._size_bytes += file.write(b"".join(self._lines))
        self._lines, self._written_at = [], self._clock()

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        return {**super().state_dict(), "size_bytes": self._size_bytes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        there = self.path.stat().st_size if self.path.exists() else 0
        self._size_bytes = min(int(state_dict["size_bytes"]), there)

    def _place(self) -> dict[str, Any]:
        loop = None if self._loop is None else self._loop()
        if loop is None:
            return {"iteration": None, "stage": None}
        # An iteration is counted when it is over, and is logged under that number.
        is_test = loop.current_stage == "test"
        return {"iteration": loop.current_iter + (0 if is_test else 1), "stage": loop.current_stage}


def _is_shown(value: Any) -> bool:
    return isinstance(value, str) or is_number(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    number = float(value)
    return number if np.isfinite(number) else repr(number)
