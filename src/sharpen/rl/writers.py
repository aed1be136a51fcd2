"""Writers of episodes: to the console, a table, JSON lines, pickles, TensorBoard and MLflow.

Each gets every episode of every collection. A resumed run continues its files after its checkpoint: what was written
later is cut off. TensorBoard and MLflow get one point per episode, at the number of episodes so far, through the
loggers of `sharpen.loggers`.
"""

import os
import pickle
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np

from ..checks import check_ints
from ..files import CsvTable
from ..loggers import Logger, LogLevel, MlflowLogger, TensorBoardLogger
from .logging import Contents, LogBuffer, LogWriter, is_number

# EpisodesLogger holds back at most this much.
_MAX_LINES, _MAX_SECONDS = 1000, 1.0
_LINE_FIELDS = ("iteration", "stage", "episode", "length", "reward", "time")


class _EpisodeWriter(LogBuffer):
    """Passes the metrics of each episode to `write`."""

    def __init__(self, loglevel: int | LogLevel) -> None:
        super().__init__(lambda on_episode, on_collect, buffer: None, loglevel)

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        super().log_episode(length, rewards, contents)
        self.write(self.episode_metrics())

    def on_env_episodes(self, returns_E: Any, lengths_E: Any) -> None:
        LogWriter.on_env_episodes(self, returns_E, lengths_E)

    def write(self, metrics: dict[str, float]) -> None:
        raise NotImplementedError


class ConsoleWriter(_EpisodeWriter):
    """Prints a line every few episodes: the latest values, and in brackets the averages of this collection."""

    def __init__(
        self,
        log_every_n_episode: int = 20,
        total_episodes: int | None = None,
        float_format: str = ":.4f",
        counter_format: str = ":4d",
        loglevel: int | LogLevel = LogLevel.PERIODIC,
        *,
        stream: TextIO | None = None,
    ) -> None:
        check_ints(log_every_n_episode=log_every_n_episode)
        super().__init__(loglevel)
        self.log_every_n_episode, self.total_episodes = log_every_n_episode, total_episodes
        self._float, self._counter = float_format.removeprefix(":"), counter_format.removeprefix(":")
        self.prefix = ""
        self._stream = stream

    def write(self, metrics: dict[str, float]) -> None:
        if self.episode_count % self.log_every_n_episode == 0 or self.episode_count == self.total_episodes:
            averages = self.collect_metrics()
            values = [
                f"{name} {self._number(value)} ({self._number(averages[name])})" for name, value in metrics.items()
            ]
            self._print(values)

    def on_env_all_done(self) -> None:
        """Print the averages of the whole collection."""
        averages = self.collect_metrics()
        if averages and self.episode_count % self.log_every_n_episode:
            self._print([f"{name} ({self._number(value)})" for name, value in averages.items()])

    def _number(self, value: float) -> str:
        return format(value, self._float)

    def _print(self, values: list[str]) -> None:
        count = format(self.episode_count, self._counter)
        total = "" if self.total_episodes is None else f"/{format(self.total_episodes, self._counter).strip()}"
        line = "  ".join([f"{self.prefix}[{count}{total}]", *values])
        print(line, file=self._stream or sys.stderr, flush=True)


class CsvWriter(LogWriter):
    """Writes a row per episode to `result.csv`: its numbers and its strings."""

    def __init__(self, output_dir: str | os.PathLike[str], loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        super().__init__(loglevel)
        self.output_dir = Path(output_dir)
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self._table = CsvTable(self.output_dir / "result.csv")

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        self._table.append({"episode": self.global_episode, **_printable(self.episode_wise(contents))})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._table.resume("episode", self.global_episode)


class PickleWriter(LogWriter):
    """Writes everything that an episode logged, of any kind, as one pickled dict after the other in `result.pkl`.

    Read only files that you trust: unpickling runs the code in them.
    """

    def __init__(self, output_dir: str | os.PathLike[str], loglevel: int | LogLevel = LogLevel.DEBUG) -> None:
        super().__init__(loglevel)
        self.path = Path(output_dir) / "result.pkl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _AppendedFile(self.path)

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        record = {"episode": self.global_episode, "length": length, "rewards": rewards, "contents": contents}
        self._file.append(pickle.dumps(record))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "size_bytes": self._file.size_bytes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._file.resume(int(state_dict["size_bytes"]))


class EpisodesLogger(LogWriter):
    """Writes a line per episode to `episodes.jsonl`, the file that the command line keeps of a run.

    A line has the iteration and the stage, the number of the episode in the run, its length and its reward, and the
    numbers and strings it logged. Pass the logger to a Trainer, and call `follow(trainer)` so that it knows iteration
    and stage.
    """

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
        self._file = _AppendedFile(self.path)
        self._lines: list[bytes] = []
        self._written_at = clock()

    def follow(self, trainer: Any) -> None:
        """Take iteration and stage from this trainer, by a weak reference."""
        self._loop = weakref.ref(trainer)

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        logged = _printable(self.episode_wise(contents))
        line = {
            **self._iteration_and_stage(),
            "episode": self.global_episode,
            "length": int(length),
            "reward": _plain(np.sum(rewards)),
            "time": self._clock(),
            **{name: _plain(value) for name, value in logged.items() if name not in _LINE_FIELDS},
        }
        self._lines.append(msgspec.json.encode(line) + b"\n")
        if len(self._lines) >= _MAX_LINES or self._clock() - self._written_at >= _MAX_SECONDS:
            self.flush()

    def on_env_all_done(self) -> None:
        self.flush()

    def flush(self) -> None:
        """Write the lines that are still in memory."""
        if not self._lines:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file.append(b"".join(self._lines))
        self._lines, self._written_at = [], self._clock()

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        return {**super().state_dict(), "size_bytes": self._file.size_bytes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._file.resume(int(state_dict["size_bytes"]))

    def _iteration_and_stage(self) -> dict[str, Any]:
        loop = None if self._loop is None else self._loop()
        if loop is None:
            return {"iteration": None, "stage": None}
        # An iteration is counted when it ends, and is logged under that number.
        is_test = loop.current_stage == "test"
        return {"iteration": loop.current_iter + (0 if is_test else 1), "stage": loop.current_stage}


class _LoggerWriter(_EpisodeWriter):
    """Writes to a logger: one point per episode, and the averages of each collection under `collect/`."""

    def __init__(self, sink: Logger, loglevel: int | LogLevel) -> None:
        super().__init__(loglevel)
        self._sink = sink

    def write(self, metrics: dict[str, float]) -> None:
        self._sink.log_metrics(_finite(metrics), self.global_episode)

    def on_env_all_done(self) -> None:
        averages = {f"collect/{name}": value for name, value in self.collect_metrics().items()}
        if averages:
            self._sink.log_metrics(_finite(averages), self.global_episode)

    def close(self) -> None:
        """Write what is left and close the logger."""
        self._sink.finish("succeeded")

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sink": self._sink.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._sink.load_state_dict(state_dict["sink"])


class TensorboardWriter(_LoggerWriter):
    """Curves over episodes for `tensorboard --logdir output_dir`."""

    def __init__(self, output_dir: str | os.PathLike[str], loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        super().__init__(TensorBoardLogger(output_dir), loglevel)


class MlflowWriter(_LoggerWriter):
    """Curves over episodes in an MLflow run; without a `tracking_uri` they are in `output_dir`, see `MlflowLogger`."""

    def __init__(
        self,
        experiment: str = "sharpen",
        run_name: str | None = None,
        tracking_uri: str | os.PathLike[str] | None = None,
        loglevel: int | LogLevel = LogLevel.PERIODIC,
        *,
        output_dir: str | os.PathLike[str] = ".",
    ) -> None:
        super().__init__(MlflowLogger(experiment, run_name, tracking_uri, dirpath=output_dir), loglevel)


class _AppendedFile:
    """A file that is written at its end, where the end is known: anything after it is cut off.

    What follows it is from an earlier run, or from the same run after the checkpoint that it resumes from.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size_bytes = 0

    def append(self, data: bytes) -> None:
        with open(self._path, "r+b" if self._path.exists() else "w+b") as file:
            file.truncate(self.size_bytes)
            file.seek(self.size_bytes)
            self.size_bytes += file.write(data)

    def resume(self, size_bytes: int) -> None:
        """Continue after this many bytes, or at the end of a file that is shorter."""
        self.size_bytes = min(size_bytes, self._path.stat().st_size if self._path.exists() else 0)


def _printable(logged: Contents) -> Contents:
    """Return what can be written as text: numbers and strings."""
    return {name: value for name, value in logged.items() if isinstance(value, str) or is_number(value)}


def _plain(value: Any) -> Any:
    """Return a value for JSON, which has no NaN and no infinity."""
    if isinstance(value, str):
        return value
    number = float(value)
    return number if np.isfinite(number) else repr(number)


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if np.isfinite(value)}
