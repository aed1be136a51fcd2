"""What the stores in a database share, whether it is a file or a server.

Finished work that cannot be written now is buffered in memory and written with the next write. Times of workers are
noted in memory, since only people look at them, and written when the watchdog looks around.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ..errors import StoreError, StoreWriteError
from .base import LightningStoreCapabilities
from .jobs import KeptWork, WorkerTimes
from .local import LocalStore, Waiter

log = logging.getLogger(__name__)


class DatabaseStore(LocalStore):
    """Base class of the stores in a database; `place` says in messages where it is."""

    def __init__(
        self,
        place: str,
        *,
        clock: Callable[[], float],
        max_kept_bytes: int,
        read_only: bool,
        expires_attempts: bool,
    ) -> None:
        super().__init__(clock=clock)
        self._expires_attempts = expires_attempts
        self._place, self._is_read_only = place, read_only
        self._kept = KeptWork(max_kept_bytes)
        self._worker_times = WorkerTimes()

    @property
    def is_read_only(self) -> bool:
        """Whether the database was opened for reading only."""
        return self._is_read_only

    def _read_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Like `_read`, from a thread without a loop."""
        raise NotImplementedError

    def _close_connections(self) -> None:
        """Let go of the database, in a thread."""
        raise NotImplementedError

    def _check_writable(self, name: str) -> None:
        if self._is_read_only:
            raise StoreWriteError(
                f"{name} writes, but {self._place} was opened with read_only=True: open it without that, or use the "
                "store server of the run"
            )

    def _write_worker_times(self) -> None:
        noted = self._worker_times.snapshot()
        if noted:
            self._write_now("write_worker_times", noted)
            self._worker_times.written(noted)

    def _write_what_is_left(self) -> None:
        """Before the store is closed: write what was buffered and noted, and log what cannot be written."""
        try:
            if self._kept.jobs:
                self._write_now("write_worker_times", {})  # any write takes it along
            self._write_worker_times()
        except StoreError as error:
            log.warning("%s was closed before all data was written: %s", self._place, error)
        if self._kept.jobs:
            log.error(
                "lost %d bytes of finished work: %s was closed before they could be written",
                self._kept.size,
                self._place,
            )

    def _next_deadline(self) -> float | None:
        found: float | None = self._read_now("next_deadline")
        return found

    async def _woken(self, waiter: Waiter, seconds: float) -> bool:
        self._watchdog.start()  # a store that is only read needs it only to notice what others wrote
        return await super()._woken(waiter, seconds)

    @property
    def kept_bytes(self) -> int:
        """The bytes of finished work buffered in memory because the database cannot be written."""
        return self._kept.size

    async def close(self) -> None:
        if self._is_closing:
            return
        await super().close()
        await asyncio.to_thread(self._close_connections)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}
