"""Rollouts as a Parquet table: a row each, with input, metadata and attributes as JSON texts, since they have no one
shape; spans as a list of structs."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from ..checks import needs_extra
from ..types import Span

if TYPE_CHECKING:
    from .export import ExportedRollout

# What waits in memory to be written together.
MAX_ROWS, MAX_SPANS = 1_000, 10_000
_COLUMNS = {
    "rollout_id": "string",
    "status": "string",
    "mode": "string",
    "reward": "double",
    "start_time": "double",
    "end_time": "double",
    "resources_id": "string",
    "resources_version": "int64",
    "num_attempts": "int64",
    "attempt_id": "string",
    "worker_id": "string",
    "error": "string",
    "input": "string",
    "metadata": "string",
}
_SPAN_COLUMNS = {
    "attempt_id": "string",
    "sequence_id": "int64",
    "trace_id": "string",
    "span_id": "string",
    "parent_id": "string",
    "name": "string",
    "status": "string",
    "description": "string",
    "start_time": "double",
    "end_time": "double",
    "attributes": "string",
    "events": "string",
}


class ParquetFile:
    """A table that is being written, some rows at a time."""

    def __init__(self, path: Path) -> None:
        with needs_extra("pyarrow", extra="parquet", feature="an export to Parquet"):
            import pyarrow  # type: ignore[import-untyped]
            import pyarrow.parquet  # type: ignore[import-untyped]
        self._arrow = pyarrow
        fields = [(name, pyarrow.type_for_alias(kind)) for name, kind in _COLUMNS.items()]
        of_span = pyarrow.struct([(name, pyarrow.type_for_alias(kind)) for name, kind in _SPAN_COLUMNS.items()])
        self._schema = pyarrow.schema([*fields, ("spans", pyarrow.list_(of_span))])
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Mapping[str, Any]] = []
        self._num_spans = 0

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        try:
            if error is None:
                self._flush()  # also without rollouts: an empty table is a table too
        finally:
            self._writer.close()

    def add(self, exported: "ExportedRollout") -> None:
        self._rows.append(self._row(exported))
        self._num_spans += len(exported.spans or ())
        if len(self._rows) >= MAX_ROWS or self._num_spans >= MAX_SPANS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._num_spans = [], 0

    def _row(self, exported: "ExportedRollout") -> dict[str, Any]:
        rollout, attempts = exported.rollout, exported.attempts
        last = attempts[-1] if attempts else None
        made = {name: getattr(rollout, name, None) for name in _COLUMNS}
        return made | {
            "num_attempts": len(attempts),
            "attempt_id": last.attempt_id if last is not None else None,
            "worker_id": last.worker_id if last is not None else None,
            "error": exported.error,
            "input": _json(rollout.input),
            "metadata": None if rollout.metadata is None else _json(rollout.metadata),
            "spans": None if exported.spans is None else [_span_row(span) for span in exported.spans],
        }


def _span_row(span: Span) -> dict[str, Any]:
    made = {name: getattr(span, name, None) for name in _SPAN_COLUMNS}
    return made | {
        "status": span.status.status_code,
        "description": span.status.description,
        "attributes": _json(span.attributes),
        "events": _json(span.events),
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
