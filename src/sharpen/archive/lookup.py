"""Look up stores and rollouts by what a user calls them.

A store is named by a file, the folder or name of a run, the address of a server, the URL of a database, `env:NAME` for
one of these in an environment variable, or `last`. A rollout is named by its id, a unique part of it, or `last`. A text
that fits several is refused, and the message lists them.
"""

import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict

import msgspec

from ..checks import nearest_names
from ..components.paths import resolve_address
from ..errors import ConfigError, InvalidInputError, StoreError, UnknownIdError
from ..secrets import hidden_password
from ..store import LightningStore
from ..store.base import RolloutOrder
from ..store.opening import open_url, scheme_of
from ..types import Attempt, Rollout, RolloutMode, RolloutStatus
from .catalog import LAST, RunCatalog, RunEntry
from .run_files import is_sqlite_file

TOKEN_VARIABLE = "SHARPEN_TOKEN"
RETRY_SECONDS = 5.0  # a person is waiting; a training run would retry for longer
MAX_GROUP = 64
PAGE = 500
_MAX_GROUP_PAGES = 3  # in each direction: the store bounds the effort of a search, so a page may come back half full
_MAX_FAILURES = 200
_SQLITE_SCHEME = "sqlite:///"
_SERVED = ("http://", "https://")
_SHOWN = 5
_ID_LENGTH = 8  # shorter digits are the number of an attempt, longer ones a part of an id
_MAX_SUGGESTION_IDS = 500


# -- stores ------------------------------------------------------------------------------------------


class OpenedStore:
    """A store that is open inside `async with open_store(text) as opened:` and closed at its end."""

    def __init__(
        self, where: Path | str, *, run: RunEntry | None, label: str, read_only: bool = True, token: str | None = None
    ) -> None:
        self.run = run
        self.label = label
        """How messages refer to it."""
        self._where, self._read_only, self._token = where, read_only, token
        self._store: LightningStore | None = None

    @property
    def store(self) -> LightningStore:
        if self._store is None:
            raise ConfigError("the store is not open; use it inside `async with open_store(...)`")
        return self._store

    @property
    def path(self) -> Path | None:
        """Its file; None for a server and a database."""
        return self._where if isinstance(self._where, Path) else None

    async def __aenter__(self) -> "OpenedStore":
        self._store = self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    def _open(self) -> LightningStore:
        if isinstance(self._where, Path) or not self._where.startswith(_SERVED):
            return open_url(self._where, read_only=self._read_only)
        from ..store.client import LightningStoreClient

        return LightningStoreClient(self._where, self._token, retry_seconds=RETRY_SECONDS)


def open_store(text: str | None, *, read_only: bool = True, token: str | None = None) -> OpenedStore:
    """Return the store that a text names, not opened yet; None means `last`. A file or run must exist.

    The token for a server is the given one, otherwise that of SHARPEN_TOKEN.
    """
    named = LAST if text is None else resolve_address(text.strip())
    if not named:
        raise InvalidInputError("the store is an empty string; give a file, a run, an address, or 'last'")
    if named.startswith(_SERVED):
        found = token or os.environ.get(TOKEN_VARIABLE, "").strip() or None
        return OpenedStore(named, run=None, label=named, read_only=read_only, token=found)
    if scheme_of(named) != "sqlite":  # a database; an unknown scheme is refused when it is opened
        return OpenedStore(named, run=None, label=hidden_password(named), read_only=read_only)
    path = Path(named.removeprefix(_SQLITE_SCHEME)).expanduser()
    if path.is_file() or named.startswith(_SQLITE_SCHEME):
        return _store_in_file(path, read_only=read_only)
    return _store_of_run(RunCatalog().find(named), read_only=read_only)


def _store_in_file(path: Path, *, read_only: bool) -> OpenedStore:
    if not path.is_file():
        raise UnknownIdError(f"there is no store file {str(path)!r}")
    if path.stat().st_size and not is_sqlite_file(path):
        raise InvalidInputError(f"{str(path)!r} is not a store: it is not a SQLite file")
    absolute = path.absolute()
    run = RunEntry.of(absolute.parent) if (absolute.parent / "config.json").is_file() else None
    return OpenedStore(absolute, run=run, label=str(path), read_only=read_only)


def _store_of_run(run: RunEntry, *, read_only: bool) -> OpenedStore:
    if run.store_path is None:
        raise UnknownIdError(
            f"run {run.name!r} has no store in its folder {str(run.path)!r}: it kept its rollouts in memory, on a "
            "store server or in a database (give its address instead), or it did not train agents"
        )
    return OpenedStore(run.store_path, run=run, label=run.name, read_only=read_only)


# -- rollouts ----------------------------------------------------------------------------------------


async def find_rollout(store: LightningStore, text: str) -> Rollout:
    """Return the rollout with this id, or the only one whose id contains it; `last` is the newest."""
    if not text.strip():
        raise InvalidInputError("the rollout is an empty string; give its id, a part of it, or 'last'")
    found = await store.get_rollout_by_id(text)
    if found is not None:
        return found
    if text == LAST:
        newest = await store.search_rollouts(order="newest", limit=1)
        if not newest.items:
            raise UnknownIdError("there are no rollouts in this store")
        return newest.items[0]
    page = await store.query_rollouts(rollout_id_contains=text, limit=_SHOWN + 1)
    if len(page) == 1:
        return await store.get_rollout_by_id(page[0].rollout_id) or page[0]
    if len(page):
        shown = ", ".join(each.rollout_id for each in page[:_SHOWN]) + (", ..." if len(page) > _SHOWN else "")
        raise UnknownIdError(f"{page.total} rollout ids contain {text!r}: {shown}; give more of the id")
    recent = await store.search_rollouts(order="newest", limit=_MAX_SUGGESTION_IDS)
    ids = [each.rollout_id for each in recent.items]
    near = nearest_names(text, ids, cutoff=0.4) or ids[:3]
    hint = f"the nearest are {', '.join(near)}" if near else "the store has none"
    raise UnknownIdError(f"there is no rollout {text!r}: {hint}")


def find_attempt(attempts: Sequence[Attempt], text: str) -> Attempt:
    """Return the attempt with this number, counted from 1, or with this id or a unique part of it."""
    if text.isdecimal() and len(text) < _ID_LENGTH:
        found = [each for each in attempts if each.sequence_id == int(text)]
    else:
        same = [each for each in attempts if each.attempt_id == text]
        found = same or [each for each in attempts if text and text in each.attempt_id]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{each.sequence_id} ({each.attempt_id})" for each in attempts) or "none"
    problem = f"{len(found)} attempts match {text!r}" if found else f"there is no attempt {text!r}"
    raise UnknownIdError(f"{problem}: the rollout has {known}")


def why_ended(attempt: Attempt) -> str | None:
    """Return why an attempt did not succeed; None if it did or is still running."""
    if attempt.status in ("succeeded", "preparing", "running"):
        return None
    about = attempt.metadata or {}
    if about.get("error") or about.get("error_type"):
        kind, message = str(about.get("error_type") or ""), str(about.get("error") or "")
        return message if not kind or message == kind else f"{kind}: {message}".removesuffix(": ")
    if attempt.status == "timeout":
        return "it took longer than the timeout_seconds of its rollout"
    if attempt.status == "unresponsive":
        worker = attempt.worker_id or "unknown"
        return f"no heartbeat within its unresponsive_seconds (worker {worker})"
    return "no reason was recorded: it was requeued, or marked as failed manually"


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


async def matching_rollouts(
    store: LightningStore, filters: RolloutFilters | None = None, *, limit: int | None = None, page_size: int = PAGE
) -> AsyncIterator[Rollout]:
    """Yield the rollouts that match the filters, read in pages; the oldest first unless the filters give an order."""
    conditions: dict[str, Any] = {"order": "oldest", **(filters or {})}
    cursor: str | None = None
    left = limit
    while left is None or left > 0:
        size = page_size if left is None else min(page_size, left)
        page = await store.search_rollouts(**conditions, cursor=cursor, limit=size)
        for rollout in page.items:
            yield rollout
        left = None if left is None else left - len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return


async def task_group(store: LightningStore, rollout: Rollout, *, limit: int = MAX_GROUP) -> list[Rollout]:
    """Return the rollouts of the same group, or of the same task where there are no groups, oldest first.

    The rollout itself is among them. Of more than `limit` they are those that were enqueued nearest to it.
    """
    group = (rollout.metadata or {}).get("group")
    same: dict[str, Any] = {"group": group} if isinstance(group, str) else {"same_input_as": rollout.rollout_id}
    later = await _group_pages(store, {**same, "started_after": rollout.start_time, "order": "oldest"}, limit)
    earlier = await _group_pages(store, {**same, "started_before": rollout.start_time, "order": "newest"}, limit)
    others = [each for each in later if each.rollout_id != rollout.rollout_id]
    nearest = sorted([*others, *earlier], key=lambda each: abs(each.start_time - rollout.start_time))[: limit - 1]
    return sorted([rollout, *nearest], key=lambda each: (each.start_time, each.rollout_id))


async def _group_pages(store: LightningStore, conditions: dict[str, Any], limit: int) -> list[Rollout]:
    found: list[Rollout] = []
    cursor: str | None = None
    for _ in range(_MAX_GROUP_PAGES):
        page = await store.search_rollouts(**conditions, cursor=cursor, limit=limit)
        found += page.items
        cursor = page.next_cursor
        if cursor is None or len(found) >= limit:
            break
    return found


# -- rollouts of a run -------------------------------------------------------------------------------


async def with_live_rollouts(entry: RunEntry) -> RunEntry:
    """Return a running run with the number of rollouts it has finished by now, as its metrics lag by some seconds.

    The number comes from its store, and is left out if it is not known.
    """
    if not entry.is_running or entry.kind != "agents":
        return entry
    count = await _finished_rollouts(entry)
    others = {name: value for name, value in entry.metrics.items() if name != "rollouts"}
    return msgspec.structs.replace(entry, metrics=others if count is None else {**others, "rollouts": float(count)})


async def _finished_rollouts(entry: RunEntry) -> int | None:
    if entry.store_path is None:
        return entry.rollouts or None  # in memory, or on a server: 0 may only mean that nothing was counted yet
    try:
        async with OpenedStore(entry.store_path, run=entry, label=entry.name) as opened:
            by_status = (await opened.store.statistics())["rollouts_by_status"]
    except (StoreError, OSError):
        return None  # it is being created, or was just removed
    return sum(by_status.get(status, 0) for status in ("succeeded", "failed", "cancelled"))


class CommonFailure(msgspec.Struct, frozen=True):
    """The most common reason, on one line, for which the newest failed rollouts of a run failed."""

    reason: str
    rollout_id: str
    """The newest rollout that failed for it."""


async def common_failure(entry: RunEntry) -> CommonFailure | None:
    """Return None if no rollout failed, or if the store of the run is not in its folder."""
    if entry.store_path is None:
        return None
    async with OpenedStore(entry.store_path, run=entry, label=entry.name) as opened:
        page = await opened.store.search_rollouts(status_in=["failed"], limit=_MAX_FAILURES)
        reasons: dict[str, str] = {}
        for rollout in page.items:
            attempt = await opened.store.get_latest_attempt(rollout.rollout_id)
            reason = None if attempt is None else why_ended(attempt)
            reasons[rollout.rollout_id] = " ".join((reason or "no reason was recorded").split())
    if not reasons:
        return None
    reason, _ = Counter(reasons.values()).most_common(1)[0]
    return CommonFailure(reason, next(each for each, why in reasons.items() if why == reason))
