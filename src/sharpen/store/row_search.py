"""A search over rows in memory: what a search means, in plain Python."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ..errors import UnknownIdError
from ..types import Rollout, RolloutPage
from .base import LightningStore
from .search import COUNT_SECONDS, MAX_COUNT, SEARCH_SECONDS, Position, RolloutSearch, SortKey, position_of
from .task_json import to_tagged

LOOK_AT_CLOCK = 50  # rows between two looks


class Found(msgspec.Struct, frozen=True):
    """A rollout as a search sees it; `row` has the fields of `Rollout`."""

    row: Any
    number: int
    finish: int = 0
    worker_id: str | None = None

    def position(self, order: Any) -> Position:
        return position_of(order, self.number, self.row.reward, self.finish)


def body_text(value: Any) -> bytes:
    """The JSON of an input or of metadata; what is no JSON is shown as Python does."""
    if value is None:
        return b""
    try:
        return msgspec.json.encode(to_tagged(value), enc_hook=repr)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return repr(value).encode(errors="replace")


def make_test(search: RolloutSearch, input_wanted: bytes | None) -> Callable[[Found], bool]:
    """Whether a rollout is wanted; `input_wanted` is the JSON of the input that `same_input_as` named."""
    tests = list(_tests(search, input_wanted))
    return lambda found: all(test(found) for test in tests)


def _tests(search: RolloutSearch, input_wanted: bytes | None) -> Iterator[Callable[[Found], bool]]:
    """The cheap ones first."""
    if (statuses := search.status_in) is not None:
        yield lambda found: found.row.status in statuses
    for name in ("mode", "resources_id", "resources_version"):
        if (value := getattr(search, name)) is not None:
            yield lambda found, name=name, value=value: getattr(found.row, name) == value  # type: ignore[misc]
    if (low := search.reward_min) is not None:
        yield lambda found: found.row.reward is not None and found.row.reward >= low
    if (high := search.reward_max) is not None:
        yield lambda found: found.row.reward is not None and found.row.reward <= high
    if (start := search.started_after) is not None:
        yield lambda found: bool(found.row.start_time >= start)
    if (end := search.started_before) is not None:
        yield lambda found: bool(found.row.start_time < end)
    if search.worker_id is not None:
        yield lambda found: found.worker_id == search.worker_id
    if search.group is not None:
        yield lambda found: (found.row.metadata or {}).get("group") == search.group
    if input_wanted is not None:
        yield lambda found: body_text(found.row.input) == input_wanted
    if search.text is not None:
        needles = [needle.encode().lower() for needle in search.needles]
        yield lambda found: has_text(found.row, needles)


def has_text(row: Any, needles: Sequence[bytes]) -> bool:
    """Whether one of the needles, in small letters, is in the id, the input or the metadata."""
    places = (row.rollout_id.encode(), body_text(row.input), body_text(row.metadata))
    return any(needle in place.lower() for place in places for needle in needles)


class RowSearch:
    """A search over rows, which come in the order of their numbers; `see` shows one as a search sees it."""

    def __init__(
        self, search: RolloutSearch, rows: Sequence[Any], see: Callable[[Any], Found], input_wanted: bytes | None
    ) -> None:
        self._search = search
        self._see = see
        self._is_wanted = make_test(search, input_wanted)
        self._rows = self._in_order(rows)

    def page(self, *, total: int | None, seconds: float = SEARCH_SECONDS) -> RolloutPage:
        """One page; `total` is given where it is known."""
        limit, rows, start = self._search.limit, self._rows, self._start()
        began, chosen, index = time.monotonic(), list[Found](), start
        while index < len(rows) and len(chosen) <= limit:
            if index % LOOK_AT_CLOCK == 0 and index > start and time.monotonic() - began > seconds:
                break
            if self._is_wanted(found := self._see(rows[index])):
                chosen.append(found)
            index += 1
        if total is None and self._search.after is None:
            counted, is_exact = self._count(index, len(chosen), began + COUNT_SECONDS)
        else:
            counted, is_exact = total, total is not None
        is_more = len(chosen) > limit or index < len(rows)
        items = chosen[:limit]
        last = items[-1] if len(chosen) > limit else self._see(rows[index - 1]) if is_more else None
        return RolloutPage(
            [found.row for found in items],
            None if last is None else last.position(self._search.order).cursor(),
            counted,
            is_exact,
            index - start,
            is_complete=not is_more or len(items) >= limit,
        )

    def _key(self, row: Any) -> SortKey:
        return self._see(row).position(self._search.order).sort_key

    def _in_order(self, rows: Sequence[Any]) -> Sequence[Any]:
        if self._search.order == "oldest":
            return rows
        return rows[::-1] if self._search.order == "newest" else sorted(rows, key=self._key)

    def _start(self) -> int:
        after = self._search.after
        return 0 if after is None else bisect_right(self._rows, after.sort_key, key=self._key)

    def _count(self, index: int, known: int, end: float) -> tuple[int | None, bool]:
        """All that match, up to a bound of number and time."""
        for place in range(index, len(self._rows)):
            if known >= MAX_COUNT:
                return MAX_COUNT, False
            if place % LOOK_AT_CLOCK == 0 and time.monotonic() > end:
                return None, False
            known += self._is_wanted(self._see(self._rows[place]))
        return known, True


async def search_listed(store: LightningStore, search: RolloutSearch) -> RolloutPage:
    """The search for a store that can only list: it reads every rollout, so it is for small stores."""
    listed = await store.query_rollouts()
    finished = sorted((each for each in listed if each.is_finished), key=lambda each: each.end_time or 0.0)
    places = {each.rollout_id: place for place, each in enumerate(finished, start=1)}
    rows = []
    for number, each in enumerate(listed, start=1):
        worker_id = await _worker_of(store, each) if search.worker_id is not None else None
        rows.append(Found(each, number, places.get(each.rollout_id, 0), worker_id))
    wanted = None
    if search.same_input_as is not None:
        wanted = body_text(_named(listed.items, search.same_input_as).input)
    total = len(rows) if search.is_plain and search.status_in is None else None
    return RowSearch(search, rows, lambda found: found, wanted).page(total=total)


async def _worker_of(store: LightningStore, rollout: Rollout) -> str | None:
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    return None if attempt is None else attempt.worker_id


def _named(rollouts: Sequence[Rollout], rollout_id: str) -> Rollout:
    for rollout in rollouts:
        if rollout.rollout_id == rollout_id:
            return rollout
    raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
