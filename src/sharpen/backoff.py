"""Pauses between retries."""

import math
import random
import time
from collections.abc import Callable

_jitter = random.Random()  # separate from the user's random numbers, which may be seeded


class Backoff:
    """Growing pauses between retries: `first`, `first * factor`, … up to `maximum`, in seconds.

    It is an iterator of pauses that ends when the time is up. The last pause is cut so that one more try happens at
    the deadline.

        backoff = Backoff(0.1, maximum=5.0, deadline_seconds=60.0)
        while True:
            try:
                return connect()
            except OSError:
                if not backoff.wait():
                    raise

    Args:
        first: The first pause.
        factor: How much longer each pause is than the one before.
        maximum: The longest pause.
        jitter: The share of each pause that is random, so that many clients do not retry at the same moment.
        deadline_seconds: The total time from now, or None for no limit.
        rng: Where the jitter comes from.
        clock: The time in seconds.
    """

    def __init__(
        self,
        first: float,
        *,
        maximum: float,
        factor: float = 2.0,
        jitter: float = 0.0,
        deadline_seconds: float | None = None,
        rng: random.Random = _jitter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.first, self.maximum, self.factor, self.jitter = first, maximum, factor, jitter
        self.deadline_seconds = deadline_seconds
        self._rng, self._clock = rng, clock
        self.reset()

    def reset(self) -> None:
        """Begin again with the first pause and the whole time, as after a success."""
        self.tries = 0
        self._end = math.inf if self.deadline_seconds is None else self._clock() + self.deadline_seconds

    def pause(self, number: int) -> float:
        """Return the pause before retry `number`, counted from 0, with its jitter."""
        # The exponent is bounded, as a float overflows after 1,023 doublings.
        length = min(self.first * self.factor ** min(number, 64), self.maximum)
        return length * self._rng.uniform(1 - self.jitter, 1) if self.jitter else length

    def __iter__(self) -> "Backoff":
        return self

    def __next__(self) -> float:
        left = self._end - self._clock()
        if left <= 0:
            raise StopIteration
        self.tries += 1
        return min(self.pause(self.tries - 1), left)

    def wait(self, sleep: Callable[[float], object] = time.sleep) -> bool:
        """Pause before the next try; return False, without a pause, when the time is up."""
        pause = next(self, None)
        if pause is not None:
            sleep(pause)
        return pause is not None

    async def wait_async(self) -> bool:
        """Pause like `wait`, without blocking the event loop."""
        import asyncio

        pause = next(self, None)
        if pause is not None:
            await asyncio.sleep(pause)
        return pause is not None
