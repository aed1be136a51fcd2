"""The blocks of every slot in the order of their tokens, and which slots got new ones since somebody last asked."""

import numpy as np
import numpy.typing as npt


class BlockTables:
    """`array` is (slots, blocks of the longest text); entries behind a sequence's last block mean nothing."""

    def __init__(self, num_slots: int, max_blocks: int) -> None:
        self.array: npt.NDArray[np.int32] = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._changed: dict[int, int] = {}

    def put(self, slot: int, number: int, block: int) -> None:
        """This block is the one of that number in the slot's text; numbers of a text come in order."""
        self.array[slot, number] = block
        self._changed[slot] = number

    def take_changes(self) -> tuple[list[int], int]:
        """The slots that were put to since the last call, and how many blocks the longest of them has."""
        changed, self._changed = self._changed, {}
        return list(changed), max(changed.values(), default=-1) + 1
