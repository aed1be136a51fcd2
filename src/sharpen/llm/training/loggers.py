"""The loggers of a fine-tuning run, from names or objects. Those that write files write to the output folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
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


def make_loggers(wanted: str | Logger | Sequence[str | Logger] | None, output_dir: Path) -> list[Logger]:
    """The loggers that are asked for; None asks for the console and `metrics.jsonl`, an empty list for none."""
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
