"""`MetricsWriter`: writes the metrics of every iteration to two CSV files."""

import os
from pathlib import Path

from ..files import CsvTable
from .base import Callback, Loop, State, Trained


class MetricsWriter(Callback):
    """Writes `train_result.csv` after each training and `validation_result.csv` after each validation.

    A row begins with its iteration, counted from 1. A new run replaces the files; a resumed one continues after the
    rows of its checkpoint.
    """

    def __init__(self, dirpath: str | os.PathLike[str]) -> None:
        self.dirpath = Path(dirpath)
        self._start()

    def _start(self) -> None:
        self._train = CsvTable(self.dirpath / "train_result.csv")
        self._validation = CsvTable(self.dirpath / "validation_result.csv")
        self._last_iter = 0

    def on_fit_start(self, loop: Loop, trained: Trained) -> None:
        self.dirpath.mkdir(parents=True, exist_ok=True)
        self._start()

    def on_train_end(self, loop: Loop, trained: Trained) -> None:
        self._write(self._train, loop)

    def on_validate_end(self, loop: Loop, trained: Trained) -> None:
        self._write(self._validation, loop)

    def _write(self, table: CsvTable, loop: Loop) -> None:
        self._last_iter = loop.current_iter + 1
        table.append({"iter": self._last_iter, **loop.metrics})

    def state_dict(self) -> State:
        return {"last_iter": self._last_iter}

    def load_state_dict(self, state_dict: State, /) -> None:
        self._last_iter = state_dict["last_iter"]
        for table in (self._train, self._validation):
            table.resume("iter", self._last_iter)
