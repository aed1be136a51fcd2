"""Export rollouts as JSON Lines or as a Parquet table.

Rollouts are read in pages and written as they arrive, so an export of a million rollouts needs no more memory than one
of a thousand. The file appears complete or not at all.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

import msgspec

from ..checks import needs_extra
from ..errors import InvalidInputError, SpansEvictedError
from ..files import replacing
from ..store import LightningStore
from ..types import Attempt, Rollout, Span
from .lookup import PAGE, RolloutFilters, matching_rollouts, why_ended

ExportFormat = Literal["jsonl", "parquet"]
_CONCURRENT_READS = 16  # most of the time of a small request to a store server is waiting
_SMALL_PAGE = 100  # a store reads up to this many rows without a thread
_encode = msgspec.json.Encoder().encode


class ExportedRollout(msgspec.Struct, frozen=True):
    """A rollout with all its attempts and, if requested, the spans of all attempts (otherwise None)."""

    rollout: Rollout
    attempts: list[Attempt]
    spans: list[Span] | None = None

    def line(self) -> bytes:
        """Return one line of JSON: the fields of the rollout, then `attempts`, `error` and `spans`."""
        fields = {name: getattr(self.rollout, name) for name in Rollout.__struct_fields__}
        fields |= {"attempts": self.attempts, "error": self.error}
        if self.spans is not None:
            fields["spans"] = self.spans
        return _encode(fields) + b"\n"

    @property
    def error(self) -> str | None:
        """Why the last attempt did not succeed."""
        return why_ended(self.attempts[-1]) if self.attempts else None


async def export_rollouts(
    store: LightningStore,
    path: Path,
    *,
    format: ExportFormat,
    filters: RolloutFilters | None = None,
    limit: int | None = None,
    with_spans: bool = False,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Write the rollouts that match the filters to a file and return their number.

    The oldest come first unless the filters give an order. An existing file is replaced once everything is written.
    `progress` is called from time to time with the number written so far.
    """
    _check_target(path)
    count = 0
    with replacing(path) as temporary, _FORMATS[format](temporary) as file:
        async for each in exported_rollouts(store, filters, limit=limit, with_spans=with_spans):
            file.add(each)
            count += 1
            if progress is not None and count % PAGE == 0:
                progress(count)
    return count


async def exported_rollouts(
    store: LightningStore, filters: RolloutFilters | None = None, *, limit: int | None = None, with_spans: bool = False
) -> AsyncIterator[ExportedRollout]:
    """Yield the rollouts that match the filters, one after the other."""
    batch: list[Rollout] = []
    async for rollout in matching_rollouts(store, filters, limit=limit):
        batch.append(rollout)
        if len(batch) == _CONCURRENT_READS:
            for each in await _exported_batch(store, batch, with_spans=with_spans):
                yield each
            batch = []
    for each in await _exported_batch(store, batch, with_spans=with_spans):
        yield each


async def _exported_batch(store: LightningStore, rollouts: list[Rollout], *, with_spans: bool) -> list[ExportedRollout]:
    return await asyncio.gather(*(exported_rollout(store, each, with_spans=with_spans) for each in rollouts))


async def exported_rollout(store: LightningStore, rollout: Rollout, *, with_spans: bool) -> ExportedRollout:
    """Return a rollout with its attempts and spans; spans that the store no longer keeps are left out."""
    if rollout.status == "queuing":  # it has no attempts yet
        return ExportedRollout(rollout, [], [] if with_spans else None)
    spans = await _spans(store, rollout.rollout_id) if with_spans else None
    attempts = await store.query_attempts(rollout.rollout_id, limit=_SMALL_PAGE)
    if attempts.total > _SMALL_PAGE:
        attempts = await store.query_attempts(rollout.rollout_id)
    return ExportedRollout(rollout, list(attempts), spans)


async def _spans(store: LightningStore, rollout_id: str) -> list[Span]:
    try:
        found = await store.query_spans(rollout_id, limit=_SMALL_PAGE)
        return list(found if found.total <= _SMALL_PAGE else await store.query_spans(rollout_id))
    except SpansEvictedError:  # a store in memory keeps only the newest
        return []


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise InvalidInputError(f"{str(path)!r} is a folder; give the name of a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidInputError(f"there is no folder {str(folder)!r} to write {path.name!r} to; create it first")


# -- files -------------------------------------------------------------------------------------------


class ExportFile(Protocol):
    """A file that is being written, one rollout after the other."""

    def __enter__(self) -> "ExportFile": ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def add(self, exported: ExportedRollout) -> None: ...


class JSONLinesFile:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> "JSONLinesFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._file.close()

    def add(self, exported: ExportedRollout) -> None:
        self._file.write(exported.line())


_MAX_WAITING_ROWS, _MAX_WAITING_SPANS = 1_000, 10_000  # in memory, to be written together
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
    """A Parquet table with one row for each rollout.

    Input, metadata and attributes are JSON texts, as their shape varies; spans are a list of structs.
    """

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
                self._flush()  # without rollouts, too: an empty table is a valid one
        finally:
            self._writer.close()

    def add(self, exported: ExportedRollout) -> None:
        self._rows.append(_row(exported))
        self._num_spans += len(exported.spans or ())
        if len(self._rows) >= _MAX_WAITING_ROWS or self._num_spans >= _MAX_WAITING_SPANS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._num_spans = [], 0


_FORMATS: dict[ExportFormat, Callable[[Path], ExportFile]] = {"jsonl": JSONLinesFile, "parquet": ParquetFile}


def _row(exported: ExportedRollout) -> dict[str, Any]:
    rollout, attempts = exported.rollout, exported.attempts
    last = attempts[-1] if attempts else None
    return {name: getattr(rollout, name, None) for name in _COLUMNS} | {
        "num_attempts": len(attempts),
        "attempt_id": last.attempt_id if last is not None else None,
        "worker_id": last.worker_id if last is not None else None,
        "error": exported.error,
        "input": _json(rollout.input),
        "metadata": None if rollout.metadata is None else _json(rollout.metadata),
        "spans": None if exported.spans is None else [_span_row(span) for span in exported.spans],
    }


def _span_row(span: Span) -> dict[str, Any]:
    return {name: getattr(span, name, None) for name in _SPAN_COLUMNS} | {
        "status": span.status.status_code,
        "description": span.status.description,
        "attributes": _json(span.attributes),
        "events": _json(span.events),
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
