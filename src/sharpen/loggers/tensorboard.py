"""`TensorBoardLogger`: curves for `tensorboard --logdir`, written without TensorFlow or torch."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..checks import needs_extra
from .base import FinishStatus, Logger, LogLevel, flat
from .metrics import as_numbers


class TensorBoardLogger(Logger):
    """Writes an event file to `dirpath`. A resumed run hides what was written after its checkpoint."""

    def __init__(
        self,
        dirpath: str | os.PathLike[str],
        loglevel: int | LogLevel = LogLevel.PERIODIC,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(loglevel)
        self.dirpath = Path(dirpath)
        self._clock = clock
        self._writer: Any = None
        self._step: int | None = None
        self._resumed_at: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writer": None}

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._opened()
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self._write(hparams_pb(flat(config), start_time_secs=self._clock()), step=0)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        values = as_numbers(metrics)
        self._opened()
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._write(summary, step=step)
        self._step = step

    def log_text(self, name: str, text: str, step: int) -> None:
        self._opened()
        from tensorboard.compat.proto import summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.text import metadata

        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode("utf-8", "replace")])
        kind = metadata.create_summary_metadata(name, "")
        value = summary_pb2.Summary.Value(tag=name, tensor=tensor, metadata=kind)
        self._write(summary_pb2.Summary(value=[value]), step=step)

    def finish(self, status: FinishStatus = "succeeded") -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _opened(self) -> Any:
        if self._writer is None:
            self._writer = _event_file(self.dirpath)
            if self._resumed_at is not None:
                self._hide_from(self._resumed_at + 1)
        return self._writer

    def _hide_from(self, step: int) -> None:
        """Write an event that means: the run was restarted, and readers should ignore its later steps."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=self._clock(), step=step, session_log=start))
        self._resumed_at = None

    def _write(self, summary: Any, *, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        writer = self._opened()
        writer.add_event(Event(wall_time=self._clock(), step=step, summary=summary))
        writer.flush()  # so that a killed run keeps what it has logged

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self._step = self._resumed_at = state_dict["step"]


def _event_file(dirpath: Path) -> Any:
    with needs_extra("tensorboard", extra="tensorboard", feature="TensorBoardLogger"):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    dirpath.mkdir(parents=True, exist_ok=True)
    return EventFileWriter(str(dirpath))
