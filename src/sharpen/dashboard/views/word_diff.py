"""The diff of two texts, line by line and within a line word by word, as values for a template."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from .shown_text import visible

LineKind = Literal["same", "removed", "added", "skipped"]
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_CONTEXT = 3
# The time of a comparison grows with the square of these.
_MOST_LINES, _MOST_WORDS, _MOST_LENGTH = 4_000, 800, 400_000
# Below this similarity, marks would cover the whole line.
_LEAST_ALIKE = 0.3


class Part(msgspec.Struct, frozen=True):
    """A part of a line; `is_changed` marks the words that the other side does not have."""

    text: str
    is_changed: bool = False


class DiffLine(msgspec.Struct, frozen=True):
    """One line. `skipped` stands for unchanged lines, and gives their number."""

    kind: LineKind
    parts: list[Part]
    old: int | None = None
    new: int | None = None


class TextDiff(msgspec.Struct, frozen=True):
    """All lines, and the number of added and removed ones. `problem` says why there are none."""

    lines: list[DiffLine]
    added: int = 0
    removed: int = 0
    problem: str | None = None

    @property
    def is_same(self) -> bool:
        return self.problem is None and not self.added and not self.removed


def text_diff(old: str, new: str) -> TextDiff:
    """Return the changed lines, with three around them."""
    if old == new:
        return TextDiff([])
    before, after = old.split("\n"), new.split("\n")
    if len(before) + len(after) > _MOST_LINES or len(old) + len(new) > _MOST_LENGTH:
        return TextDiff([], problem=f"the texts are too long to compare ({len(old):,} and {len(new):,} characters)")
    lines = list(_lines(before, after))
    count = {kind: sum(line.kind == kind for line in lines) for kind in ("added", "removed")}
    return TextDiff(lines, count["added"], count["removed"])


def _lines(before: Sequence[str], after: Sequence[str]) -> Iterator[DiffLine]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    shown = 0
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        yield from _skipped(group[0][1] - shown)
        for kind, i0, i1, j0, j1 in group:
            if kind == "equal":
                yield from (_line("same", [Part(visible(before[i]))], i, j0 + i - i0) for i in range(i0, i1))
            else:
                yield from _changed(before[i0:i1], after[j0:j1], i0, j0)
        shown = group[-1][2]
    yield from _skipped(len(before) - shown)


def _skipped(count: int) -> Iterator[DiffLine]:
    if count > 0:
        yield DiffLine("skipped", [Part(f"{count} unchanged line{'' if count == 1 else 's'}")])


def _changed(old: Sequence[str], new: Sequence[str], i0: int, j0: int) -> Iterator[DiffLine]:
    """Return removed lines, then added ones; as many of each are compared in pairs."""
    pairs = [_marked(*pair) for pair in zip(old, new, strict=True)] if len(old) == len(new) else []
    for number, text in enumerate(old):
        yield _line("removed", pairs[number][0] if pairs else [Part(visible(text))], i0 + number, None)
    for number, text in enumerate(new):
        yield _line("added", pairs[number][1] if pairs else [Part(visible(text))], None, j0 + number)


def _line(kind: LineKind, parts: list[Part], old: int | None, new: int | None) -> DiffLine:
    return DiffLine(kind, parts, None if old is None else old + 1, None if new is None else new + 1)


def _marked(old: str, new: str) -> tuple[list[Part], list[Part]]:
    before, after = _WORD.findall(old), _WORD.findall(new)
    plain = [Part(visible(old))], [Part(visible(new))]
    if len(before) + len(after) > _MOST_WORDS:
        return plain
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < _LEAST_ALIKE:
        return plain
    sides: tuple[list[Part], list[Part]] = ([], [])
    for kind, i0, i1, j0, j1 in matcher.get_opcodes():
        for side, words in ((sides[0], before[i0:i1]), (sides[1], after[j0:j1])):
            if words:
                side.append(Part(visible("".join(words)), kind != "equal"))
    return sides
