"""Where an episode begins: its number in the collection, its initial state and its random numbers.

Episodes are numbered in the trainer's process, one at a time, so every initial state is used exactly once. The random
numbers of an episode depend on its number alone: it is the same whichever episodes are played beside it.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from .trees import Array

InitialStateType = TypeVar("InitialStateType")
"""Any value; a simulator knows what it means."""

SeedIterator: TypeAlias = Iterable[InitialStateType] | AbstractContextManager[Iterable[InitialStateType]]
"""Initial states, or a context manager that returns them."""


class Begin(NamedTuple):
    """An episode to begin: its slot, its number, the entropy of its random numbers, and its initial state."""

    slot: int
    k: int
    entropy: tuple[int, ...]
    has_initial: bool
    initial: Any


class Seeds:
    """Gives the k-th episode of a collection its initial state and its entropy, in the order of k.

    No initial state is drawn that is not played. Without `initial_states` the environments know where to begin, and
    report when there is nothing left.
    """

    def __init__(
        self, initial_states: Iterable[Any] | None, *, entropy: tuple[int, ...], limit: int | None = None
    ) -> None:
        self._initial_states = None if initial_states is None else iter(initial_states)
        self.entropy, self._limit = entropy, limit
        self.drawn = 0

    def limit_to(self, n: int | None) -> None:
        """End the collection after n episodes."""
        self._limit = n

    def draw(self, slot: int) -> Begin | None:
        """Return the next episode for this slot, or None if there is none."""
        if self._limit is not None and self.drawn >= self._limit:
            return None
        initial = None
        if self._initial_states is not None:
            try:
                initial = next(self._initial_states)
            except StopIteration:
                self._limit = self.drawn
                return None
        k = self.drawn
        self.drawn += 1
        return Begin(slot, k, (*self.entropy, k), self._initial_states is not None, initial)

    def draw_states(self, n: int) -> list[Any]:
        """Return the next n initial states, or as many as are left: for simulators that play many at once."""
        if self._limit is not None:
            n = min(n, self._limit - self.drawn)
        states = list(islice(self._initial_states, n)) if self._initial_states is not None else [None] * n
        self.drawn += len(states)
        return states


def fresh_entropy() -> tuple[int, ...]:
    """Return entropy from the operating system, for a collection that need not be repeatable."""
    return (int(np.random.SeedSequence().generate_state(1)[0]),)


# -- random numbers ----------------------------------------------------------------------------------

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _11 = (np.uint64(bits) for bits in (27, 30, 31, 11))
UNIT = 2.0**-53


class EpisodeNoise(np.random.Generator):
    """A generator that draws row i from the stream of the episode in row i, if asked for one row per episode.

    That holds for `random`, `uniform`, `standard_normal`, `normal` and `gumbel`. Draws of any other shape, and all
    other methods, use one stream for the whole collection. The streams are counters run through a mixing function
    (SplitMix64), so a new one costs nothing and all rows are drawn at once.
    """

    def __init__(self, entropy: tuple[int, ...], n: int) -> None:
        sequence = np.random.SeedSequence(entropy)
        super().__init__(np.random.PCG64(sequence))
        self._base = sequence.generate_state(1, np.uint64)
        self._key_N = np.zeros(n, np.uint64)
        self._count_N = np.zeros(n, np.uint64)
        self._ids: Array = np.zeros(0, np.int64)

    def begin(self, ids: Array, k_N: Array) -> None:
        """Start the streams of the episodes `k_N` in the slots `ids`."""
        self._key_N[ids] = mix(self._base + mix((k_N.astype(np.uint64) + np.uint64(1)) * GAMMA))
        self._count_N[ids] = 0

    def select(self, ids: Array) -> "EpisodeNoise":
        """Let the rows of the next draws be these slots."""
        self._ids = ids
        return self

    def _rows(self, shape: tuple[int, ...]) -> Array:
        """Return uniform numbers in (0, 1) of this shape."""
        ids, width = self._ids, int(np.prod(shape[1:], dtype=np.int64))
        counts_N = self._count_N[ids]
        steps_W = np.arange(1, width + 1, dtype=np.uint64)
        bits = mix(self._key_N[ids][:, None] + (counts_N[:, None] + steps_W) * GAMMA)
        self._count_N[ids] = counts_N + np.uint64(width)
        uniform: Array = ((bits >> _11).astype(np.float64) + 0.5) * UNIT
        return uniform.reshape(shape)

    def _shape(self, size: Any) -> tuple[int, ...] | None:
        """Return the shape that was asked for if its rows are episodes, else None."""
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


def mix(x: Array) -> Array:
    """Return the output function of SplitMix64."""
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    mixed: Array = x ^ (x >> _31)
    return mixed
