"""A page of rollouts as rows, and the links to the previous and the next page."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from ...types import Rollout
from .rollout_filter import MOST_BACK, RolloutFilter, resources_of
from .shown_text import as_words

PAGE_SIZE = 50
# Stands for the cursor of the first page in the trail of a URL, as an empty value cannot.
_FIRST = "-"


class RolloutRow(msgspec.Struct, frozen=True):
    """One line of the list."""

    rollout: Rollout
    task: str
    resources: str
    seconds: float | None
    group: str | None
    retry_of: str | None


class Paging(msgspec.Struct, frozen=True):
    """The queries of the neighbouring pages; None if there is none."""

    first: str | None
    back: str | None
    onward: str | None
    words: tuple[str, str]


class FoundPage(Protocol):
    """The part of a search result that paging needs."""

    @property
    def next_cursor(self) -> str | None: ...


def rollout_row(rollout: Rollout) -> RolloutRow:
    metadata = rollout.metadata or {}
    return RolloutRow(
        rollout,
        as_words(rollout.input),
        resources_of(rollout),
        None if rollout.end_time is None else max(rollout.end_time - rollout.start_time, 0.0),
        _name(metadata.get("group")),
        _name(metadata.get("retry_of")),
    )


def rollout_rows(rollouts: Iterable[Rollout]) -> list[RolloutRow]:
    return [rollout_row(rollout) for rollout in rollouts]


def paging(asked: RolloutFilter, found: FoundPage, cursor: str | None, trail: Sequence[str]) -> Paging:
    """Return the links; the trail holds the cursors of the previous pages, the nearest last."""
    kept = [*trail, cursor or _FIRST][-MOST_BACK:]
    words = ("Newer", "Older") if asked.order in ("newest", "finished") else ("Previous", "Next")
    return Paging(
        first=(asked.query() or "?") if cursor else None,
        back=_page(asked, trail[-1], trail[:-1]) if cursor and trail else None,
        onward=_page(asked, found.next_cursor, kept) if found.next_cursor else None,
        words=words,
    )


def _page(asked: RolloutFilter, cursor: str, trail: Sequence[str]) -> str:
    own = [] if cursor == _FIRST else [("cursor", cursor)]
    return asked.query(*own, *(("back", each) for each in (trail if own else ()))) or "?"


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
