"""How many rollouts to have outstanding: enough that no worker waits for work, few enough that memory stays flat.

The queue is measured from time to time. It holds what the workers take in a quarter of a second, at the rate at
which they finish, and one rollout for each of their slots; one that was found empty was too short, so it grows to
twice its length. Quick agents soon have all they can take, and slow ones never see more than they need.
"""

MAX_LENGTH = 4096
AHEAD_SECONDS = 0.25
EAGER_SECONDS = 0.05
CALM_SECONDS = 0.5


class Window:
    """The bound on outstanding rollouts, and when to measure again."""

    def __init__(self, length: int) -> None:
        self._shortest = self._length = length
        self.limit = length + 1
        self.next_look_seconds = EAGER_SECONDS

    def measured(
        self, *, outstanding: int, queue_length: int, slots: int, finished_per_second: float, has_more: bool
    ) -> None:
        """Take what was seen in the store: how long the queue is, and how many rollouts all workers can have."""
        is_starved = queue_length == 0 and outstanding > 0 and has_more
        wanted = max(self._shortest, slots, round(finished_per_second * AHEAD_SECONDS))
        self._length = min(max(wanted, self._length * 2 if is_starved else 0), MAX_LENGTH)
        in_hand = max(outstanding - queue_length, 0)
        self.limit = in_hand + self._length
        self.next_look_seconds = EAGER_SECONDS if is_starved or not slots else CALM_SECONDS
