"""A search for rollouts: what is asked, where a page of the answer ends, and how it is found in bounded time.

Every rollout has one position in an order, and a page begins after the position that its cursor names: rollouts that
come or go meanwhile shift nothing. Rollouts that lack what the order goes by (no reward yet, not finished) form its
rest and come last, the newest first.

A store offers its rollouts to a search as a `RolloutScan`: the next so many rollouts after a position, and those among
them that match. `find_page` asks for part after part until the page is full or its time is over. Parts grow while
they are quick; a scan that finds one too slow says so and is asked for a smaller one. A page gets at least one part
further, so that whoever follows the cursors reaches the end.
"""

import base64
import binascii
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ..errors import InvalidInputError, UnknownIdError
from ..types import ROLLOUT_MODES, ROLLOUT_STATUSES, Rollout, RolloutMode, RolloutPage, RolloutStatus
from .base import MAX_INT, LightningStore, RolloutOrder, check_choice, check_choices, check_int, check_number
from .task_json import to_tagged

ORDERS: tuple[RolloutOrder, ...] = ("newest", "oldest", "reward_high", "reward_low", "finished")
MAX_TEXT = 1000
MAX_COUNT = 10_000  # a total beyond this is not counted
SEARCH_SECONDS = 0.15
COUNT_SECONDS = 0.04
FIRST_SIZE, LARGEST_SIZE = 500, 32_000  # rollouts of a part
LOOK_AT_CLOCK = 50  # rows in memory between two looks

T = TypeVar("T")
_Number = Annotated[int, Meta(ge=0, le=MAX_INT)]
SortKey = tuple[bool, float, int]


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a rollout stands in an order: `value` is its reward or its number in the order of finishing."""

    order: RolloutOrder
    is_rest: bool
    value: float
    number: _Number

    @property
    def sort_key(self) -> SortKey:
        """Grows along the order."""
        if self.order == "oldest" or (self.order == "reward_low" and not self.is_rest):
            return self.is_rest, self.value, self.number
        value = self.value if self.order == "reward_low" else -self.value
        return self.is_rest, value, -self.number

    def cursor(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def position_of(order: RolloutOrder, number: int, reward: float | None, finish: int) -> Position:
    """The position of a rollout; `finish` is 0 while it has not finished."""
    if order in ("reward_high", "reward_low"):
        return Position(order, reward is None, reward or 0.0, number)
    if order == "finished":
        return Position(order, not finish, float(finish), number)
    return Position(order, is_rest=False, value=0.0, number=number)


def _read_cursor(cursor: str, order: RolloutOrder) -> Position:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        position = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=Position)
    except (AttributeError, UnicodeError, binascii.Error, msgspec.MsgspecError):
        raise InvalidInputError(f"cursor is {cursor!r}: pass the next_cursor of the previous page, or None") from None
    if position.order != order:
        raise InvalidInputError(
            f"cursor is from a search in order {position.order!r}, not {order!r}: start again without a cursor"
        )
    return position


class RolloutSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Which rollouts are wanted, checked. None means: any."""

    status_in: frozenset[RolloutStatus] | None = None
    mode: RolloutMode | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    text: str | None = None
    worker_id: str | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    group: str | None = None
    same_input_as: str | None = None
    started_after: float | None = None
    started_before: float | None = None
    order: RolloutOrder = "newest"
    after: Position | None = None
    limit: int = 50

    @classmethod
    def of(
        cls, *, status_in: Sequence[RolloutStatus] | None = None, cursor: str | None = None, **given: Any
    ) -> "RolloutSearch":
        """Return the search for arguments of `search_rollouts`, once they are checked."""
        search = cls(**given)
        if status_in is not None:
            check_choices("status_in", status_in, ROLLOUT_STATUSES)
        check_choice("mode", search.mode, ROLLOUT_MODES, optional=True)
        check_choice("order", search.order, ORDERS)
        for name in ("reward_min", "reward_max", "started_after", "started_before"):
            check_number(name, getattr(search, name), optional=True)
        for name in ("text", "worker_id", "resources_id", "group", "same_input_as"):
            _check_text(name, getattr(search, name))
        check_int("resources_version", search.resources_version, at_least=1, at_most=MAX_INT, optional=True)
        check_int("limit", search.limit, at_least=1, at_most=MAX_COUNT)
        return replace(
            search,
            status_in=None if status_in is None else frozenset(status_in),
            text=search.text or None,
            after=None if cursor is None else _read_cursor(cursor, search.order),
        )

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the status is asked for, so that the total is known."""
        names = set(self.__struct_fields__) - {"status_in", "order", "after", "limit"}
        return all(getattr(self, name) is None for name in names)

    @property
    def needles(self) -> list[str]:
        """What to look for in JSON: the text as it is written there and, for people who type JSON, as it is."""
        if self.text is None:
            return []
        written = msgspec.json.encode(self.text).decode()[1:-1]
        return list(dict.fromkeys([written, self.text] if _is_printable(self.text) else [written]))


def _is_printable(text: str) -> bool:
    """Whether it could stand as it is in JSON or in an id: control characters never do."""
    return not any(unicodedata.category(character) == "Cc" for character in text)


def _check_text(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise InvalidInputError(f"{name} is {str(value)[:60]!r}: use a string of at most {MAX_TEXT} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{name} is {value!r}, which is not valid Unicode ({error.reason})") from None


# -- finding a page ----------------------------------------------------------------------------------


class ScanPage(msgspec.Struct, Generic[T], frozen=True):
    """The next rollouts in the order of a search."""

    rows: list[T]
    """Those that match, in order, up to the number that was asked for."""
    end: Position | None
    """The position after all of them, also after those that do not match; None at the end of the order."""
    examined: int


class RolloutScan(Protocol[T]):
    """The rollouts of a store in the order of one search. It keeps no place: a part may be asked for again."""

    def next(self, after: Position | None, size: int, limit: int) -> ScanPage[T] | None:
        """Return up to `limit` matches among about `size` rollouts after a position, None for the beginning.

        The answer None says that so many take too long; a `size` of 1 is always answered.
        """
        ...

    def position(self, row: T) -> Position:
        """Return where a row stands in the order."""
        ...

    def total(self) -> int | None:
        """Return how many match, where that is known without looking at them."""
        ...

    def count(self, most: int, seconds: float) -> int | None:
        """Count all that match, up to `most`; None if that takes longer than `seconds`."""
        ...


def find_page(
    scan: RolloutScan[T], search: RolloutSearch, public: Callable[[T], Rollout], *, seconds: float | None = None
) -> RolloutPage:
    """One page of a search; `public` makes the rollout of a row."""
    began, limit = time.monotonic(), search.limit
    end = began + (SEARCH_SECONDS if seconds is None else seconds)
    rows, examined, after, size = list[T](), 0, search.after, FIRST_SIZE
    while True:
        part = scan.next(after, size, limit + 1 - len(rows))
        if part is None:
            size = max(1, size // 16)
            continue
        rows, examined, after = rows + part.rows, examined + part.examined, part.end
        if after is None or len(rows) > limit or time.monotonic() >= end:
            break
        size = min(size * 4, LARGEST_SIZE)
    if is_full := len(rows) > limit:
        after = scan.position(rows[limit - 1])
    count_seconds = began + COUNT_SECONDS - time.monotonic()  # also where finding the exact total takes longer
    total, is_exact = scan.total(), True
    if total is None:
        total, is_exact = _counted(scan, search, len(rows), is_end=after is None, seconds=count_seconds)
    return RolloutPage(
        [public(row) for row in rows[:limit]],
        None if after is None else after.cursor(),
        total,
        is_exact,
        examined,
        is_complete=after is None or is_full or len(rows) == limit,
    )


def _counted(
    scan: RolloutScan[T], search: RolloutSearch, known: int, *, is_end: bool, seconds: float
) -> tuple[int | None, bool]:
    """All that match, up to a bound of number and time, and whether these are all."""
    if search.after is not None or (not is_end and known <= search.limit):
        return None, False
    if is_end:
        return known, True
    count = scan.count(MAX_COUNT + 1, seconds)
    return (MAX_COUNT, False) if count is not None and count > MAX_COUNT else (count, count is not None)


# -- rollouts in memory ------------------------------------------------------------------------------


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


class RowScan:
    """A scan of rows, which come in the order of their numbers; `see` shows one as a search sees it."""

    def __init__(
        self,
        search: RolloutSearch,
        rows: Sequence[Any],
        see: Callable[[Any], Found],
        input_wanted: bytes | None,
        *,
        total: int | None,
    ) -> None:
        self._order, self._see, self._total = search.order, see, total
        self._is_wanted = make_test(search, input_wanted)
        self._rows = self._in_order(rows)

    def next(self, after: Position | None, size: int, limit: int) -> ScanPage[Found]:
        start = 0 if after is None else bisect_right(self._rows, after.sort_key, key=self._key)
        part = [self._see(row) for row in self._rows[start : start + min(size, LOOK_AT_CLOCK)]]
        is_end = start + len(part) >= len(self._rows)
        end = None if is_end else self.position(part[-1])
        return ScanPage([found for found in part if self._is_wanted(found)][:limit], end, len(part))

    def position(self, row: Found) -> Position:
        return row.position(self._order)

    def total(self) -> int | None:
        return self._total

    def count(self, most: int, seconds: float) -> int | None:
        end, found = time.monotonic() + seconds, 0
        for place, row in enumerate(self._rows):
            if found >= most:
                break
            if place % LOOK_AT_CLOCK == 0 and time.monotonic() > end:
                return None
            found += self._is_wanted(self._see(row))
        return found

    def _key(self, row: Any) -> SortKey:
        return self._see(row).position(self._order).sort_key

    def _in_order(self, rows: Sequence[Any]) -> Sequence[Any]:
        if self._order == "oldest":
            return rows
        return rows[::-1] if self._order == "newest" else sorted(rows, key=self._key)


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
    return find_page(RowScan(search, rows, lambda found: found, wanted, total=total), search, lambda found: found.row)


async def _worker_of(store: LightningStore, rollout: Rollout) -> str | None:
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    return None if attempt is None else attempt.worker_id


def _named(rollouts: Sequence[Rollout], rollout_id: str) -> Rollout:
    for rollout in rollouts:
        if rollout.rollout_id == rollout_id:
            return rollout
    raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
