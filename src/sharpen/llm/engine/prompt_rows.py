"""The rows of a prefill, and its tiles: neighbouring rows of one text that one program attends for."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .scheduler import Chunk


def prompt_rows(chunks: Sequence[Chunk], tile_rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Ids, positions and slots of the chunks' tokens, one line each; and the tiles."""
    ids = [token for chunk in chunks for token in chunk.sequence.tokens[chunk.start : chunk.end]]
    positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
    parts = [(chunk.start, chunk.end, chunk.sequence.slot or 0) for chunk in chunks]
    slots = np.repeat([slot for _, _, slot in parts], [end - start for start, end, _ in parts])
    return np.array([ids, positions, slots], dtype=np.int64), tiles_of(parts, tile_rows)


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
