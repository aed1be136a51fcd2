"""Random numbers that belong to episodes.

A policy that asks for N rows gets row i from the stream of the episode in row i, so an episode is the same whichever
others are played beside it. The streams are counters run through a mixing function (SplitMix64): a row costs nothing
to begin, and all rows are drawn at once.
"""

from typing import Any

import numpy as np

from .trees import Array

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _11 = (np.uint64(bits) for bits in (27, 30, 31, 11))
UNIT = 2.0**-53


def mix(x: Array) -> Array:
    """SplitMix64's output function."""
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    mixed: Array = x ^ (x >> _31)
    return mixed


class EpisodeNoise(np.random.Generator):
    """A generator whose `random`, `standard_normal`, `gumbel` and `uniform` draw each row from its episode's stream.

    Draws of any other shape, and all other methods, use one stream for the whole collection.
    """

    def __init__(self, entropy: tuple[int, ...], n: int) -> None:
        sequence = np.random.SeedSequence(entropy)
        super().__init__(np.random.PCG64(sequence))
        self._base = sequence.generate_state(1, np.uint64)
        self._key_N = np.zeros(n, np.uint64)
        self._count_N = np.zeros(n, np.uint64)
        self._ids: Array = np.zeros(0, np.int64)

    def begin(self, ids: Array, k_N: Array) -> None:
        """Slots `ids` play the episodes `k_N` from now on."""
        self._key_N[ids] = mix(self._base + mix((k_N.astype(np.uint64) + np.uint64(1)) * GAMMA))
        self._count_N[ids] = 0

    def select(self, ids: Array) -> "EpisodeNoise":
        """The rows of the next draws are these slots."""
        self._ids = ids
        return self

    def _rows(self, shape: tuple[int, ...]) -> Array:
        """Uniform numbers in (0, 1) of this shape."""
        ids, width = self._ids, int(np.prod(shape[1:], dtype=np.int64))
        counts_N = self._count_N[ids]
        steps_W = np.arange(1, width + 1, dtype=np.uint64)
        bits = mix(self._key_N[ids][:, None] + (counts_N[:, None] + steps_W) * GAMMA)
        self._count_N[ids] = counts_N + np.uint64(width)
        uniform: Array = ((bits >> _11).astype(np.float64) + 0.5) * UNIT
        return uniform.reshape(shape)

    def _shape(self, size: Any) -> tuple[int, ...] | None:
        """The shape that was asked for, if its rows are episodes."""
        shape: Any = (size,) if isinstance(size, int | np.integer) else size
        return tuple(shape) if shape is not None and len(shape) and shape[0] == len(self._ids) else None

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        shape = self._shape(size)
        if shape is None or out is not None:
            return super().random(size, dtype, out)
        return self._rows(shape).astype(dtype, copy=False)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        shape = self._shape(size)
        return super().uniform(low, high, size) if shape is None else low + (high - low) * self._rows(shape)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        shape = self._shape(size)
        if shape is None or out is not None:
            return super().standard_normal(size, dtype, out)
        radius = np.sqrt(-2.0 * np.log(self._rows(shape)))
        return (radius * np.cos(2.0 * np.pi * self._rows(shape))).astype(dtype, copy=False)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        if self._shape(size) is None:
            return super().normal(loc, scale, size)
        return loc + scale * self.standard_normal(size)

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        shape = self._shape(size)
        if shape is None:
            return super().gumbel(loc, scale, size)
        return loc - scale * np.log(-np.log(self._rows(shape)))
