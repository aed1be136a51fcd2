"""A search for rollouts: what is asked, and where a page of the answer ends.

Every rollout has one position in an order, and a page begins after the position that its cursor names: rollouts that
come or go meanwhile shift nothing. Rollouts that lack what the order goes by (no reward yet, not finished) form its
rest and come last, the newest first.
"""

import base64
import binascii
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import InvalidInputError
from ..types import ROLLOUT_MODES, ROLLOUT_STATUSES, RolloutMode, RolloutStatus
from . import checks
from .base import MAX_INT, RolloutOrder

ORDERS: tuple[RolloutOrder, ...] = ("newest", "oldest", "reward_high", "reward_low", "finished")
MAX_TEXT = 1000
MAX_COUNT = 10_000  # a total beyond this is not counted
SEARCH_SECONDS = 0.15
COUNT_SECONDS = 0.04

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
    def of(cls, *, cursor: str | None, status_in: Sequence[RolloutStatus] | None, **given: Any) -> "RolloutSearch":
        """From the arguments of `search_rollouts`."""
        if status_in is not None:
            checks.check_choices("status_in", status_in, ROLLOUT_STATUSES)
        if given["mode"] is not None:
            checks.check_choice("mode", given["mode"], ROLLOUT_MODES)
        checks.check_choice("order", given["order"], ORDERS)
        for name in ("reward_min", "reward_max", "started_after", "started_before"):
            if given[name] is not None:
                checks.check_finite(name, given[name])
        for name in ("text", "worker_id", "resources_id", "group", "same_input_as"):
            if given[name] is not None:
                _check_text(name, given[name])
        if given["resources_version"] is not None:
            _check_whole("resources_version", given["resources_version"], high=MAX_INT)
        _check_whole("limit", given["limit"], high=MAX_COUNT)
        return cls(
            status_in=None if status_in is None else frozenset(status_in),
            after=None if cursor is None else _read_cursor(cursor, given["order"]),
            **given | {"text": given["text"] or None},
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
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise InvalidInputError(f"{name} is {str(value)[:60]!r}: use a string of at most {MAX_TEXT} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{name} is {value!r}, which is not valid Unicode ({error.reason})") from None


def _check_whole(name: str, value: Any, *, high: int) -> None:
    if not isinstance(value, int):
        raise InvalidInputError(f"{name} is {value!r}: use a whole number")
    checks.check_number(name, value, low=1, high=high)
