"""How the rows of a decode step are laid out, so that attention reads as little of the cache as possible.

Rows whose texts begin with the same blocks stand together: those blocks are read once for all of them. The others
stand by length, so that a long text does not make the short ones read more.
"""

from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import takewhile

from .sequence import Sequence

# Reading a shared beginning apart costs some fifteen small operations a layer; below this it does not pay.
MIN_SAVED_TOKENS = 512


@dataclass(frozen=True, slots=True)
class DecodeSpan:
    """Rows `first` to `last` read the blocks of their tables up to `num_blocks`.

    Where `num_shared` is not 0, each `group_size` neighbouring rows have that many first blocks in common.
    """

    first: int
    last: int
    num_blocks: int
    num_shared: int = 0
    group_size: int = 1


def lay_out(sequences: Many[Sequence], block_size: int) -> tuple[list[Sequence], tuple[DecodeSpan, ...]]:
    """The sequences in the order of their rows, and the spans of these rows."""
    groups, rest = _groups(sequences, block_size)
    classes: dict[tuple[int, int], list[list[Sequence]]] = defaultdict(list)
    for group, num_shared in groups:
        classes[len(group), num_shared].append(group)
    rows: list[Sequence] = []
    spans: list[DecodeSpan] = []
    for (size, num_shared), members in sorted(classes.items(), key=lambda each: each[0]):
        first = len(rows)
        rows.extend(sequence for group in members for sequence in group)
        num_blocks = max(len(each.blocks) for each in rows[first:])
        spans.append(DecodeSpan(first, len(rows), num_blocks, num_shared, size))
    rest = sorted(rest, key=lambda each: len(each.blocks))
    spans.extend(_spans_by_length([len(each.blocks) for each in rest], first=len(rows)))
    return [*rows, *rest], tuple(spans)


def _spans_by_length(lengths: list[int], *, first: int) -> list[DecodeSpan]:
    spans: list[DecodeSpan] = []
    begin = 0
    for end in range(1, len(lengths) + 1):
        # A span ends where the next row would make its first one read twice as much and eight blocks more.
        if end == len(lengths) or lengths[end] > 2 * lengths[begin] + 8:
            spans.append(DecodeSpan(first + begin, first + end, lengths[end - 1]))
            begin = end
    return spans


def _groups(sequences: Many[Sequence], block_size: int) -> tuple[list[tuple[list[Sequence], int]], list[Sequence]]:
    """Sequences with a common beginning and its number of blocks, and those that stand alone."""
    ordered = sorted(sequences, key=lambda each: each.blocks)
    groups: list[tuple[list[Sequence], int]] = []
    for sequence in ordered:
        if groups:
            group, shared = groups[-1]
            common = _num_common(group[0], sequence, at_most=shared)
            # One more row is worth it if the group then still saves as much as without it.
            if common and len(group) * common >= (len(group) - 1) * shared:
                group.append(sequence)
                groups[-1] = (group, common)
                continue
        groups.append(([sequence], len(sequence.blocks)))
    saved = sum((len(group) - 1) * shared for group, shared in groups) * block_size
    if saved < MIN_SAVED_TOKENS:
        return [], ordered
    alone = [group[0] for group, _ in groups if len(group) == 1]
    return [each for each in groups if len(each[0]) > 1], alone


def _num_common(one: Sequence, other: Sequence, *, at_most: int) -> int:
    pairs = zip(one.blocks[:at_most], other.blocks, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
