"""How many rollouts a search may spend, counted exactly.

gepa counts what it asks for, and looks at the count between iterations only. Here a prompt on a task counts once,
since it is paid for once, and what does not fit is not begun.
"""

from collections.abc import Hashable, Sequence

from ...errors import ConfigError


class Budget:
    """At most `limit` rollouts."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._paid: set[Hashable] = set()

    @property
    def spent(self) -> int:
        return len(self._paid)

    @property
    def left(self) -> int:
        return self.limit - self.spent

    def take(self, batches: Sequence[Sequence[Hashable]]) -> list[int] | None:
        """Pay for what is not paid for yet, and give how much that is of each batch; None, and nothing is paid, where
        it does not all fit."""
        paid, counts = set(self._paid), []
        for batch in batches:
            counts.append(len(set(batch) - paid))
            paid |= set(batch)
        if len(paid) > self.limit:
            return None
        self._paid = paid
        return counts


def check_budget(limit: int, *, num_val: int, minibatch_size: int) -> None:
    """The least that makes a difference: the seed, one minibatch with it and with a candidate, and the candidate."""
    least = 2 * num_val + 2 * minibatch_size
    if limit < least:
        raise ConfigError(
            f"max_metric_calls is {limit}, but trying one candidate takes {least} rollouts: {num_val} validation tasks "
            f"and {minibatch_size} training tasks for the seed prompt, and as many for the candidate. Raise it, or use "
            "a smaller val_dataset"
        )
