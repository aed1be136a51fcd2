"""`UpperBound`: the most that an algorithm may ask for, before anything is paid, and from what that follows.

What nobody can know is None and said in words; it is never counted as nothing. Sizes of data sets are numbers of
tasks: 0 where there is none, None where a stream does not say.
"""

import math
from collections.abc import Iterable

import msgspec


class UpperBound(msgspec.Struct, frozen=True):
    """The most rollouts, and the most calls that the algorithm itself makes to models beside those of agents."""

    rollouts: int | None = None
    """None: not known."""
    own_calls: int | None = 0
    """Those of a critic, an editor, a reflection. None: not known."""
    because: tuple[str, ...] = ()
    """The sentences from which the numbers follow."""
    own_models: tuple[str, ...] = ()
    """Whom those calls ask."""

    def __add__(self, other: "UpperBound") -> "UpperBound":
        return UpperBound(
            sum_of((self.rollouts, other.rollouts)),
            sum_of((self.own_calls, other.own_calls)),
            (*self.because, *other.because),
            tuple(dict.fromkeys((*self.own_models, *other.own_models))),
        )

    def asked_again(self, times: int, who: str) -> "UpperBound":
        """The same where a rollout that is lost is asked for again, `times` times in all."""
        told = (
            f"{who}: {counted(self.rollouts, 'rollout')} if none is lost; a rollout that is lost because its model or "
            f"worker fails is run up to {times} times"
        )
        return msgspec.structs.replace(self, rollouts=product(self.rollouts, times), because=(*self.because, told))


def sum_of(parts: Iterable[int | None]) -> int | None:
    """The sum; not known where one part is not."""
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def product(*factors: int | None) -> int | None:
    """The product; nothing times what is not known is nothing."""
    if 0 in factors:
        return 0
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def least(*bounds: int | None) -> int | None:
    """The least of several bounds, of those that are known."""
    return min((each for each in bounds if each is not None), default=None)


def split_sizes(train_size: int | None, val_size: int | None, train_split: float) -> tuple[int | None, int | None]:
    """How many tasks there are to learn from and to validate on, where a training set may be divided."""
    if val_size != 0:
        return train_size, val_size
    if train_size is None:
        return None, None
    cut = round(train_size * train_split)
    return cut, train_size - cut


def counted(number: int | None, noun: str) -> str:
    """A number of things in words."""
    if number is None:
        return f"an unknown number of {noun}s"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
