"""The health of an upstream: one that fails is left alone for a while, twice as long each time it fails again.

When its time is over, one call at a time tries it; the first success makes it whole.
"""

from collections.abc import Callable

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
TRIAL_SECONDS = 60.0  # a trial of which nobody told the end stands in the way of the next no longer than this


class Health:
    """Whether calls should go to an upstream, from what became of the last ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._free_at = 0.0
        self._trial_since: float | None = None

    @property
    def is_whole(self) -> bool:
        return self._failures == 0

    @property
    def may_be_tried(self) -> bool:
        """Whether a call may go there first."""
        if self.is_whole:
            return True
        now = self._clock()
        is_under_trial = self._trial_since is not None and now < self._trial_since + TRIAL_SECONDS
        return now >= self._free_at and not is_under_trial

    def begin_trial(self) -> None:
        """A call goes there; until its end is told the others keep away, if it has failed before."""
        if not self.is_whole:
            self._trial_since = self._clock()

    def end_trial(self) -> None:
        """The call ended in a way that says nothing about the upstream: the next one may try it."""
        self._trial_since = None

    def succeeded(self) -> None:
        self._failures, self._trial_since = 0, None

    def failed(self, *, at_least_seconds: float = 0.0) -> None:
        """A call failed there; `at_least_seconds` is what the upstream itself asked for."""
        now = self._clock()
        # Calls that were under way together fail together: that is one failure.
        if self.is_whole or now >= self._free_at:
            self._failures += 1
            pause = FIRST_SECONDS * 2 ** min(self._failures - 1, 10)
            self._free_at = now + min(pause, LONGEST_SECONDS)
        self._free_at = max(self._free_at, now + at_least_seconds)
        self._trial_since = None
