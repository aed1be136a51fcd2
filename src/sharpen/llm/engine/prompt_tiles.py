"""The tiles of a prefill: neighbouring rows of one text that one program attends for."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def tiles_of(parts: Sequence[tuple[int, int, int]], tile_rows: int) -> npt.NDArray[np.int32]:
    """(first row, rows, position of the first row, slot) of each tile; a part is (start, end, slot) of one text."""
    tiles: list[tuple[int, int, int, int]] = []
    row = 0
    for start, end, slot in parts:
        begins = range(start, end, tile_rows)
        tiles += [(row + begin - start, min(tile_rows, end - begin), begin, slot) for begin in begins]
        row += end - start
    # The last tiles of a long text read the most: they begin first.
    tiles.sort(key=lambda tile: -tile[2])
    return np.array(tiles, dtype=np.int32)
