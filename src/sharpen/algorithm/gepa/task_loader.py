"""The tasks of a split as gepa reads them: by numbers that no task of another split has.

gepa keeps scores by these numbers, for training and validation tasks alike: with the same numbers in both it would
take the score of one for the other's.
"""

from collections.abc import Sequence

from ..prompts.evaluations import Item


class TaskLoader:
    def __init__(self, items: Sequence[Item], *, first: int) -> None:
        self._items = {first + place: item for place, item in enumerate(items)}

    def all_ids(self) -> list[int]:
        return list(self._items)

    def fetch(self, ids: Sequence[int]) -> list[Item]:
        return [self._items[each] for each in ids]

    def __len__(self) -> int:
        return len(self._items)
