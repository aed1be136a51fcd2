"""Writers of episodes: to the console, a table, pickles, TensorBoard and MLflow.

Each hears of every episode of every collection. TensorBoard and MLflow get one point per episode, at the number of
episodes so far, through the loggers of `sharpen.loggers`.
"""

import os
import pickle
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..checks import check_ints
from ..files import CsvTable
from ..loggers import Logger, LogLevel, MlflowLogger, TensorBoardLogger
from .log_writer import Contents, LogBuffer, LogWriter, is_number


class _EpisodeWriter(LogBuffer):
    """Hands the metrics of each episode to `write`."""

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
    """Prints a line every so many episodes: the latest values, and in brackets the averages of this collection."""

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
            words = [
                f"{name} {self._number(value)} ({self._number(averages[name])})" for name, value in metrics.items()
            ]
            self._print(words)

    def on_env_all_done(self) -> None:
        """The averages of the whole collection."""
        averages = self.collect_metrics()
        if averages and self.episode_count % self.log_every_n_episode:
            self._print([f"{name} ({self._number(value)})" for name, value in averages.items()])

    def _number(self, value: float) -> str:
        return format(value, self._float)

    def _print(self, words: list[str]) -> None:
        count = format(self.episode_count, self._counter)
        total = "" if self.total_episodes is None else f"/{format(self.total_episodes, self._counter).strip()}"
        line = "  ".join([f"{self.prefix}[{count}{total}]", *words])
        print(line, file=self._stream or sys.stderr, flush=True)


class CsvWriter(LogWriter):
    """One row per episode in `result.csv`: its numbers and its texts. A resumed run goes on after its checkpoint."""

    def __init__(self, output_dir: str | os.PathLike[str], loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        super().__init__(loglevel)
        self.output_dir = Path(output_dir)
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self._table = CsvTable(self.output_dir / "result.csv")

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        found = self.episode_wise(contents)
        shown = {name: value for name, value in found.items() if isinstance(value, str) or is_number(value)}
        self._table.append({"episode": self.global_episode, **shown})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._table.resume("episode", self.global_episode)


class PickleWriter(LogWriter):
    """Everything that each episode logged, of any kind, one pickled dict after the other in `result.pkl`.

    Read only files that you trust: unpickling runs what is in them.
    """

    def __init__(self, output_dir: str | os.PathLike[str], loglevel: int | LogLevel = LogLevel.DEBUG) -> None:
        super().__init__(loglevel)
        self.path = Path(output_dir) / "result.pkl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._size_bytes = 0

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        record = {"episode": self.global_episode, "length": length, "rewards": rewards, "contents": contents}
        with open(self.path, "r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self._size_bytes)  # what stands behind is of an earlier run, or was cut off by a crash
            file.seek(self._size_bytes)
            self._size_bytes += file.write(pickle.dumps(record))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "size_bytes": self._size_bytes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        there = self.path.stat().st_size if self.path.exists() else 0
        self._size_bytes = min(int(state_dict["size_bytes"]), there)


class _LoggerWriter(_EpisodeWriter):
    """Writes to a logger: a point per episode, and the averages of each collection under `collect/`."""

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
        """Write what is left."""
        self._sink.finish("succeeded")

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sink": self._sink.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._sink.load_state_dict(state_dict["sink"])


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


class TensorboardWriter(_LoggerWriter):
    """Curves over episodes for `tensorboard --logdir output_dir`."""

    def __init__(self, output_dir: str | os.PathLike[str], loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        super().__init__(TensorBoardLogger(output_dir), loglevel)


class MlflowWriter(_LoggerWriter):
    """Curves over episodes in a run of MLflow; without a `tracking_uri`, see `MlflowLogger`, in `output_dir`."""

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
