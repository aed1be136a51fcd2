"""How the columns of a table share the width of a terminal.

A column keeps its full width unless it says otherwise. Long texts are shortened first, to a readable minimum; then the
least important columns are left out; only if that is still too wide do texts wrap, within words if necessary. So what
people copy (ids, names, commands) is never cut, and a reward or a status never disappears.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 3  # between two columns


@dataclass(frozen=True)
class Column:
    """One column of a table. `least` is the width that a long text can shrink to, cut off with `…`, or wrapped where
    it `wraps`. Of the columns with a `spare` above 0 the one with the highest is left out first."""

    name: str
    least: int | None = None
    wraps: bool = False
    spare: int = 0


@dataclass(frozen=True)
class Fitted:
    """The columns that are kept, by number, with their widths, and the names of those left out."""

    widths: dict[int, int]
    left_out: tuple[str, ...] = ()


def fit(columns: Sequence[Column], natural: Sequence[int], width: int) -> Fitted:
    """Share a width among columns whose contents need `natural`."""
    natural = [min(size, width) for size in natural]
    kept = list(range(len(columns)))
    left_out: list[str] = []
    while True:
        wanted = {number: natural[number] for number in kept}
        least = {number: _least(columns[number], natural[number]) for number in kept}
        spare = [number for number in kept if columns[number].spare]
        if _total(least) <= width or not spare:
            break
        last = max(spare, key=lambda number: (columns[number].spare, number))
        kept.remove(last)
        left_out.append(columns[last].name)
    if _total(least) > width:
        least = {number: min(size, _shortest(columns[number])) for number, size in least.items()}
    return Fitted(_shrunk(wanted, least, width), tuple(left_out))


def _least(column: Column, natural: int) -> int:
    return natural if column.least is None else min(natural, max(column.least, len(column.name)))


def _shortest(column: Column) -> int:
    return max(len(column.name), 8)


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _shrunk(wanted: dict[int, int], least: dict[int, int], width: int) -> dict[int, int]:
    """Shrink the widest first, one character at a time, so that long texts end up alike."""
    found = dict(wanted)
    while _total(found) > width:
        able = [number for number, size in found.items() if size > least[number]]
        if not able:
            return found
        found[max(able, key=lambda number: found[number])] -= 1
    return found
