"""Exports: rollouts as lines of JSON, or as a Parquet table.

Rollouts are read page by page and written as they come, so an export needs no more memory for a million than for a
thousand. The file is there whole or not at all.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TypedDict

import msgspec

from ..errors import InvalidInputError, SpansEvictedError
from ..files import replacing
from ..store import LightningStore
from ..store.base import RolloutOrder
from ..types import Attempt, Rollout, RolloutMode, RolloutStatus, Span
from .transcript import why_ended

ExportFormat = Literal["jsonl", "parquet"]
PAGE = 500
AT_ONCE = 16  # asked for at the same time: of a store behind a server, most of a short question is waiting
FEW = 100  # a store reads so many at once, without a thread for each question
_encode = msgspec.json.Encoder().encode


class RolloutFilters(TypedDict, total=False):
    """Which rollouts, as `search_rollouts` takes it."""

    status_in: list[RolloutStatus]
    mode: RolloutMode
    reward_min: float
    reward_max: float
    text: str
    worker_id: str
    resources_id: str
    resources_version: int
    group: str
    started_after: float
    started_before: float
    order: RolloutOrder


class ExportedRollout(msgspec.Struct, frozen=True):
    """A rollout with all its attempts; `spans` are those of all attempts, None where they were not asked for."""

    rollout: Rollout
    attempts: list[Attempt]
    spans: list[Span] | None = None

    def line(self) -> bytes:
        """One line of JSON: the fields of the rollout, then `attempts`, `error` and `spans`."""
        fields = {**_plain(self.rollout), "attempts": self.attempts, "error": self.error}
        fields.pop("attempt", None)
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
    """Write the rollouts that meet the filters, the oldest first unless they say otherwise; how many.

    A file of this name is replaced once all is written. `progress` is told from time to time how many are written.
    """
    _check_target(path)
    count = 0
    with replacing(path) as temporary, _opened(temporary, format) as file:
        async for each in exported(store, filters, limit=limit, with_spans=with_spans):
            file.add(each)
            count += 1
            if progress is not None and count % PAGE == 0:
                progress(count)
    return count


async def exported(
    store: LightningStore, filters: RolloutFilters | None = None, *, limit: int | None = None, with_spans: bool = False
) -> AsyncIterator[ExportedRollout]:
    """The rollouts that meet the filters, one after the other."""
    batch: list[Rollout] = []
    async for rollout in matching(store, filters, limit=limit):
        batch.append(rollout)
        if len(batch) == AT_ONCE:
            for each in await asyncio.gather(*(whole(store, one, with_spans=with_spans) for one in batch)):
                yield each
            batch = []
    for each in await asyncio.gather(*(whole(store, one, with_spans=with_spans) for one in batch)):
        yield each


async def whole(store: LightningStore, rollout: Rollout, *, with_spans: bool) -> ExportedRollout:
    """A rollout with what belongs to it; spans that the store no longer keeps are left out."""
    if rollout.status == "queuing":  # nobody has begun with it
        return ExportedRollout(rollout, [], [] if with_spans else None)
    spans = await _spans(store, rollout.rollout_id) if with_spans else None
    return ExportedRollout(rollout, await _attempts(store, rollout.rollout_id), spans)


async def matching(
    store: LightningStore, filters: RolloutFilters | None = None, *, limit: int | None = None
) -> AsyncIterator[Rollout]:
    """All rollouts that meet the filters, in pages; the oldest first unless the filters say otherwise."""
    conditions: dict[str, Any] = {"order": "oldest", **(filters or {})}
    cursor: str | None = None
    left = limit
    while left is None or left > 0:
        page = await store.search_rollouts(**conditions, cursor=cursor, limit=PAGE if left is None else min(PAGE, left))
        for rollout in page.items:
            yield rollout
        left = None if left is None else left - len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return


async def _attempts(store: LightningStore, rollout_id: str) -> list[Attempt]:
    found = await store.query_attempts(rollout_id, limit=FEW)
    return list(found if found.total <= FEW else await store.query_attempts(rollout_id))


async def _spans(store: LightningStore, rollout_id: str) -> list[Span]:
    try:
        found = await store.query_spans(rollout_id, limit=FEW)
        return list(found if found.total <= FEW else await store.query_spans(rollout_id))
    except SpansEvictedError:  # a store in memory keeps only the newest
        return []


def _plain(rollout: Rollout) -> dict[str, Any]:
    return {name: getattr(rollout, name) for name in Rollout.__struct_fields__}


# -- writing -----------------------------------------------------------------------------------------


class ExportFile(Protocol):
    """A file that is being written, one rollout after the other."""

    def __enter__(self) -> "ExportFile": ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def add(self, exported: ExportedRollout) -> None: ...


class LinesFile:
    """Lines of JSON."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> "LinesFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._file.close()

    def add(self, exported: ExportedRollout) -> None:
        self._file.write(exported.line())


def _opened(path: Path, format: ExportFormat) -> ExportFile:
    if format == "jsonl":
        return LinesFile(path)
    from .parquet import ParquetFile

    return ParquetFile(path)


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise InvalidInputError(f"{str(path)!r} is a folder: give the name of a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidInputError(f"there is no folder {str(folder)!r} to write {path.name!r} to: make it first")
