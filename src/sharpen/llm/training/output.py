"""What a run leaves in its output folder: the folder itself, its loggers, and the record of its metrics.

The folder is made when training begins, and goes again if nothing was written to it.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...errors import ConfigError, describe
from ...loggers import (
    ConsoleLogger,
    CsvLogger,
    JsonlLogger,
    Logger,
    MlflowLogger,
    TensorBoardLogger,
    WandbLogger,
)

_NAMED: dict[str, Callable[[Path], Logger]] = {
    "console": lambda folder: ConsoleLogger(),
    "jsonl": JsonlLogger,
    "csv": CsvLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": lambda folder: WandbLogger(dirpath=folder),
    "mlflow": lambda folder: MlflowLogger(dirpath=folder),
}
DEFAULT = ("console", "jsonl")


# The first of these that a run has tells which step was the best; a loss is better when it is smaller.
_MONITORS = ("val/reward", "val/loss", "reward", "loss")


def check_output_dir(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder, which need not exist yet."""
    folder = Path(path).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output_dir is {str(path)!r}, which is a file: pass a folder")
    return folder


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Make a folder to write to, and the folders above it; those that the block leaves empty go again."""
    made = [each for each in (folder, *folder.parents) if not each.exists()] or [folder]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir is {str(folder)!r}, which cannot be created: {describe(error)}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # there is something in it, as there should be
            for each in made:
                each.rmdir()


# -- loggers -----------------------------------------------------------------------------------------


def make_loggers(wanted: str | Logger | Sequence[str | Logger] | None, output_dir: Path) -> list[Logger]:
    """Return the loggers that are asked for; None asks for the console and `metrics.jsonl`, an empty list for none."""
    given: Sequence[Any] = DEFAULT if wanted is None else wanted if isinstance(wanted, list | tuple) else [wanted]
    return [_make(each, output_dir) for each in given]


def _make(wanted: Any, output_dir: Path) -> Logger:
    if isinstance(wanted, Logger):
        return wanted
    if isinstance(wanted, str) and wanted in _NAMED:
        return _NAMED[wanted](output_dir)
    raise ConfigError(
        f"loggers has {wanted!r}, which is not a logger: use {', '.join(map(repr, _NAMED))}, or an instance of "
        "sharpen.loggers.Logger"
    )


# -- metrics -----------------------------------------------------------------------------------------


class Record:
    """The newest value of every metric, and the metrics of the best step."""

    def __init__(self) -> None:
        self.final: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self._monitor: str | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count the metrics of a step."""
        self.final |= metrics
        monitor = next((name for name in _MONITORS if name in metrics), None)
        if monitor is None or math.isnan(metrics[monitor]) or not self._is_better(monitor, metrics[monitor]):
            return
        self._monitor = monitor
        self.best = {"step": float(step), **metrics}

    def _is_better(self, monitor: str, value: float) -> bool:
        if self._monitor is None or _MONITORS.index(monitor) < _MONITORS.index(self._monitor):
            return True
        if monitor != self._monitor:
            return False
        return value < self.best[monitor] if monitor.endswith("loss") else value > self.best[monitor]

    def state_dict(self) -> dict[str, Any]:
        return {"final": dict(self.final), "best": dict(self.best), "monitor": self._monitor}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self.final, self.best, self._monitor = dict(state["final"]), dict(state["best"]), state["monitor"]
