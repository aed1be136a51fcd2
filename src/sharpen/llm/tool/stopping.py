"""The word to stop, as the process of a job hears it: SIGTERM.

A training that is under way ends after its step, with a checkpoint. Whatever comes before and after it, and an
evaluation, is left where it stands.
"""

import signal
from pathlib import Path
from types import FrameType


class JobStopped(BaseException):
    """Raised in the middle of work that nobody wants any more."""


class StopRequest:
    """Whether somebody has asked; `is_polled` while somebody looks after every step."""

    def __init__(self) -> None:
        self.is_asked = False
        self.is_polled = False
        self.is_over = False

    def listen(self) -> None:
        """Hear SIGTERM from now on; Ctrl-C in a terminal means the same."""
        signal.signal(signal.SIGTERM, self._receive)
        signal.signal(signal.SIGINT, self._receive)

    def check(self, path: Path) -> None:
        """Whether somebody asked before this process listened."""
        if path.exists():
            raise JobStopped

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.is_over:
            return
        self.is_asked = True
        if not self.is_polled:
            raise JobStopped
