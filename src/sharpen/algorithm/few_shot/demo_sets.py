"""Sets of demonstrations to try: at random while nothing is known, then changes of the best. None comes twice.

A set is the ids of its rollouts in the order in which they are shown; another order is another set.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

DemoSet = tuple[str, ...]
TRIES = 50


@dataclass(frozen=True)
class Proposal:
    """A set, and how it came about."""

    shown: DemoSet
    how: str
    is_change: bool = False
    """Whether it was made from the best set, and not at random."""


def random_set(pool: Sequence[str], size: int, known: Collection[DemoSet], chance: random.Random) -> Proposal | None:
    """A new set of this size, or of the nearest that the pool allows; None where all are known."""
    for smaller in range(min(size, len(pool)), 0, -1):
        for _ in range(TRIES):
            shown = tuple(chance.sample(pool, smaller))
            if shown not in known:
                return Proposal(shown, "chosen at random")
    return None


def changed_set(
    best: DemoSet, pool: Sequence[str], max_demos: int, known: Collection[DemoSet], chance: random.Random
) -> Proposal | None:
    """A new set that differs from the best by one change; None where none was found."""
    for _ in range(TRIES):
        others = [each for each in pool if each not in best]
        found = _change(best, others, max_demos, chance)
        if found is not None and found.shown not in known:
            return found
    return None


def _change(best: DemoSet, others: Sequence[str], max_demos: int, chance: random.Random) -> Proposal | None:
    kind = chance.choice(("add", "add", "drop", "replace", "replace", "reorder"))
    if kind == "add" and others and len(best) < max_demos:
        new, place = chance.choice(others), chance.randint(0, len(best))
        return Proposal((*best[:place], new, *best[place:]), f"added {new}", is_change=True)
    if kind == "drop" and len(best) > 1:
        place = chance.randrange(len(best))
        return Proposal((*best[:place], *best[place + 1 :]), f"dropped {best[place]}", is_change=True)
    if kind == "replace" and others:
        new, place = chance.choice(others), chance.randrange(len(best))
        changed = (*best[:place], new, *best[place + 1 :])
        return Proposal(changed, f"replaced {best[place]} by {new}", is_change=True)
    if kind == "reorder" and len(best) > 1:
        return Proposal(tuple(chance.sample(best, len(best))), "reordered", is_change=True)
    return None
