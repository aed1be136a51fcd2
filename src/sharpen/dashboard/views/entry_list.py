"""The conversation of an attempt in pages of entries, with long texts cut."""

import math

import msgspec

from ...archive.entries import Entry
from ...archive.transcript import Transcript
from .heat_strip import HeatStrip, heat_strip
from .shown_text import MOST_CHARACTERS

PAGE_SIZE = 80
# The number of tokens to draw at once; the tokens of further calls are drawn when they are opened.
_MOST_CELLS = 1_000
_WHOLE = 10**9


class ShownEntry(msgspec.Struct, frozen=True):
    """An entry, with its tokens if they are drawn at once. `after` is its time since the first."""

    entry: Entry
    strip: HeatStrip | None
    num_tokens: int
    after: float | None
    seconds: float | None


class EntryList(msgspec.Struct, frozen=True):
    """Entries from the one numbered `first`. `most` is where a text is cut."""

    entries: list[ShownEntry]
    first: int
    total: int
    most: int

    @property
    def next_first(self) -> int | None:
        end = self.first + len(self.entries)
        return end if end < self.total else None


def entry_list(read: Transcript, *, first: int = 0, span_id: str | None = None) -> EntryList:
    """Return a page of entries, or the full entries of one span."""
    start = _start(read)
    if span_id is not None:
        entries = [entry for entry in read.entries if entry.span_id == span_id]
        return EntryList(_shown(entries, start), 0, len(entries), _WHOLE)
    entries = read.entries[first : first + PAGE_SIZE]
    return EntryList(_shown(entries, start), first, len(read.entries), MOST_CHARACTERS)


def _shown(entries: list[Entry], start: float | None) -> list[ShownEntry]:
    shown, room = list[ShownEntry](), _MOST_CELLS
    for entry in entries:
        num_tokens = max(len(entry.tokens.response_ids), len(entry.tokens.logprobs)) if entry.tokens else 0
        strip = heat_strip(entry.tokens) if entry.tokens and num_tokens <= room else None
        room -= num_tokens if strip else 0
        shown.append(ShownEntry(entry, strip, num_tokens, _since(start, entry.start), _since(entry.start, entry.end)))
    return shown


def _start(read: Transcript) -> float | None:
    return next((entry.start for entry in read.entries if entry.start is not None), None)


def _since(start: float | None, end: float | None) -> float | None:
    if start is None or end is None or not math.isfinite(end - start):
        return None
    return max(end - start, 0.0)
