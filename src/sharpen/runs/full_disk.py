"""What a run does when its disk is full."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DiskFullError
from ..files import is_disk_full

log = logging.getLogger(__name__)
WARN_SECONDS = 60.0


class FullDisk:
    """What a run writes along the way and can do without. While the disk is full it is left out, with a warning now and
    then."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._full_since: float | None = None
        self._next_warning = 0.0

    @contextmanager
    def tolerated(self, folder: Path) -> Iterator[None]:
        """Write something to the folder in this block."""
        try:
            yield
        except Exception as error:
            if not is_disk_full(error):
                raise
            self._warn(folder)
        else:
            if self._full_since is not None:
                log.warning("%s can be written again in %s", self._what, folder)
            self._full_since = None

    def _warn(self, folder: Path) -> None:
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = self._next_warning = now
        if now >= self._next_warning:
            self._next_warning = now + WARN_SECONDS
            log.warning("%s cannot be written to %s, as the disk is full: free some space there", self._what, folder)


@contextmanager
def naming_full_disk(folder: Path | None) -> Iterator[None]:
    """An error of a full disk says what to do about it."""
    try:
        yield
    except Exception as error:
        if folder is None or isinstance(error, DiskFullError) or not is_disk_full(error):
            raise
        full = getattr(error, "filename", None) or folder  # it may be on another disk than the run
        raise DiskFullError(
            f"the disk of {str(full)!r} is full ({error}): free some space, then resume the run in {str(folder)!r}"
        ) from error
