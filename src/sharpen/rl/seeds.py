"""Where the episodes of a collection come from: numbered initial states, each given out once."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from .env_set import Begin


class Seeds:
    """Gives the k-th episode its initial state and its random numbers, in the order of k.

    It is asked in the trainer's process only, one episode at a time, so that every initial state is used exactly once,
    whoever plays it, and none is drawn that is not played. Without `initial_states` the environments know where to
    begin, and say themselves when there is nothing left.
    """

    def __init__(
        self, initial_states: Iterable[Any] | None, *, entropy: tuple[int, ...], limit: int | None = None
    ) -> None:
        self._given = None if initial_states is None else iter(initial_states)
        self.entropy, self._limit = entropy, limit
        self.drawn = 0

    def limit_to(self, n: int | None) -> None:
        """End after n episodes in all."""
        self._limit = n

    def draw(self, slot: int) -> Begin | None:
        """The next episode, for this slot; None when there is no other."""
        if self._limit is not None and self.drawn >= self._limit:
            return None
        initial = None
        if self._given is not None:
            try:
                initial = next(self._given)
            except StopIteration:
                self._limit = self.drawn
                return None
        k = self.drawn
        self.drawn += 1
        return Begin(slot, k, (*self.entropy, k), self._given is not None, initial)

    def draw_states(self, n: int) -> list[Any]:
        """The next n initial states, or fewer when there are no more: for simulators that play many at once."""
        if self._limit is not None:
            n = min(n, self._limit - self.drawn)
        states = list(islice(self._given, n)) if self._given is not None else [None] * n
        self.drawn += len(states)
        return states


def fresh_entropy() -> tuple[int, ...]:
    """Random numbers that nobody has asked to repeat."""
    return (int(np.random.SeedSequence().generate_state(1)[0]),)
