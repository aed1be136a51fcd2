"""Rates toward an upstream: requests and tokens in any sixty seconds.

A request counts when it is sent, its tokens when they are known, after its answer: calls under way can carry the
tokens of a minute past the limit once, and the calls after them wait for it.
"""

from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0


class Window:
    """What was used in the last minute, of at most `limit`; below 1, in as many minutes as one whole takes."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._room = max(limit, 1.0)
        self._seconds = WINDOW_SECONDS * self._room / limit
        self._used: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, amount: float) -> None:
        self._forget(now)
        self._used.append((now, amount))
        self._sum += amount

    def wait_seconds(self, now: float, needed: float) -> float:
        """How long until `needed` more fit; 0 when they fit now."""
        self._forget(now)
        too_much = self._sum + needed - self._room
        for when, amount in self._used:
            if too_much <= 0:
                break
            too_much -= amount
            if too_much <= 0:
                return when + self._seconds - now
        return 0.0

    def _forget(self, now: float) -> None:
        while self._used and self._used[0][0] <= now - self._seconds:
            self._sum -= self._used.popleft()[1]


class Rates:
    """The limits of one upstream; None is no limit."""

    def __init__(self, rpm: float | None, tpm: float | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._requests = None if rpm is None else Window(rpm)
        self._tokens = None if tpm is None else Window(tpm)

    @property
    def limits(self) -> str:
        """For people."""
        words = [(self._requests, "requests"), (self._tokens, "tokens")]
        return " and ".join(f"{each.limit:g} {what} per minute" for each, what in words if each is not None)

    def wait_seconds(self) -> float:
        """How long until another request may be sent."""
        if self._requests is None and self._tokens is None:
            return 0.0
        now = self._clock()
        requests = self._requests.wait_seconds(now, 1) if self._requests else 0.0
        # One token is always asked for: a limit that is just used up lets nothing through.
        return max(requests, self._tokens.wait_seconds(now, 1) if self._tokens else 0.0)

    def reserve(self) -> None:
        """A request is sent now."""
        if self._requests is not None:
            self._requests.add(self._clock(), 1)

    def settle(self, tokens: int) -> None:
        """A request has used these tokens."""
        if self._tokens is not None and tokens > 0:
            self._tokens.add(self._clock(), tokens)
