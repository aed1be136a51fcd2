"""When a runner is started again, and when a run gives up."""

from ..errors import RunError, RunnerStartError
from .lives import End

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
MAX_STARTS = 5
MAX_DEATHS = 10


class Restarts:
    """What one runner has behind it."""

    def __init__(self, worker_id: int) -> None:
        self._worker_id = worker_id
        self.finished = 0
        self._failed_starts = 0
        self._deaths: list[str] = []
        self._pause = FIRST_PAUSE_SECONDS

    def after(self, end: End, *, lost: int = 0) -> float:
        """The seconds to wait before the next life; an error when there should be none.

        `lost` is the number of attempts that ended with the runner: with any, it had got past its start.
        """
        self.finished += end.finished
        if end.finished:
            self._failed_starts, self._deaths, self._pause = 0, [], FIRST_PAUSE_SECONDS
        if end.how == "worn_out":
            return 0.0
        self._deaths.append(end.reason)
        is_start = not end.finished and not lost and (end.how == "failed" or not end.is_ready)
        self._failed_starts = self._failed_starts + 1 if is_start else 0
        self._check(end)
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        return pause

    def _check(self, end: End) -> None:
        words = f"\n{end.traceback}" if end.traceback else ""
        if self._failed_starts >= MAX_STARTS:
            raise RunnerStartError(
                f"runner {self._worker_id} failed to start {MAX_STARTS} times in a row; last: {end.reason}{words}"
            )
        if len(self._deaths) > MAX_DEATHS:
            raise RunError(
                f"runner {self._worker_id} exited {len(self._deaths)} times without finishing a rollout in between; "
                f"last: {', '.join(self._deaths[-3:])}{words}"
            )
