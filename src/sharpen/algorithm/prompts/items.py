"""The tasks that prompts are tried on, by their places in the data sets of a run.

A run may go on with a data set that has changed: an item is a place together with what its task says.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Split = Literal["train", "val"]
_FAR = 1 << 40  # from here on, tasks are numbered that belong to no data set of the run


@dataclass(frozen=True, slots=True)
class Item:
    """One task of a data set, by its place."""

    split: Split
    index: int
    task: Any
    mark: str = field(init=False, compare=False, repr=False)
    """What the task says, in short. Taken at once: agents in the same process may change a task."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mark", _mark(self.task))


def as_items(tasks: Sequence[Any], split: Split, known: Sequence[Item]) -> list[Item]:
    """Tasks of a data set as the items that they are; others have a number that follows from what they say."""
    wanted = set(map(id, tasks))
    own: dict[int, list[Item]] = {}
    for item in reversed(known):
        if id(item.task) in wanted:
            own.setdefault(id(item.task), []).append(item)
    seen: Counter[bytes] = Counter()
    return [own[id(task)].pop() if own.get(id(task)) else _foreign(task, split, seen) for task in tasks]


def _foreign(task: Any, split: Split, seen: Counter[bytes]) -> Item:
    try:
        text = msgspec.json.encode(task, enc_hook=repr, order="sorted")
    except (TypeError, ValueError, RecursionError):  # what JSON cannot hold
        text = repr(task).encode("utf-8", "replace")
    seen[text] += 1  # the same task twice is two of them
    return Item(split, _FAR * seen[text] + zlib.crc32(text), task)


def _mark(task: Any) -> str:
    """What a task says, in short. Those that JSON cannot hold are known by their places alone."""
    try:
        return f"_{zlib.crc32(msgspec.json.encode(task, order='sorted')):08x}"
    except (TypeError, ValueError, RecursionError):
        return ""
