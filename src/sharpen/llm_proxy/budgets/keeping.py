"""`TotalsKeeper`: the totals of a gateway in the store, as a worker's record under the gateway's name.

A record belongs to one gateway at a time, which shows by a heartbeat that it lives. Another of the same name takes the
next number (`gateway-NAME-2`), so that nobody overwrites what others have spent; the totals of all add up. A gateway
that starts again goes on with its own record, or with that of one that has ended.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ...errors import SharpenError, describe
from ...store import LightningStore
from ...store.base import check_id
from ...types import Worker
from .totals import Totals

logger = logging.getLogger(__name__)

SAVE_SECONDS = 1.0
BEAT_SECONDS = 1.0
ALIVE_SECONDS = 4.0  # since its last heartbeat; then a gateway is taken to have died
LOOK_SECONDS = 0.1
_INSTANCE = "instance"


class TotalsKeeper:
    """Reads and writes the totals that `current` tells. It belongs to one event loop."""

    def __init__(
        self,
        store: LightningStore | None,
        name: str,
        current: Callable[[], Totals],
        *,
        instance: str = "",
        save_seconds: float = SAVE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.worker_id = self._first_id = check_id("the name of a gateway", f"gateway-{name}")
        self._store, self._current, self._save_seconds, self._clock = store, current, save_seconds, clock
        self._instance = instance
        """Who writes; without one, nobody else is expected to have the name."""
        self._changes = self._saved_changes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._saving = asyncio.Lock()
        self._save_task: asyncio.Task[bool] | None = None
        self._is_failing = self._has_ended = False

    # -- before --------------------------------------------------------------------------------------

    async def restore(self) -> Totals:
        """Take a record; gives the totals that stand there."""
        if self._store is None:
            return Totals()
        self.worker_id, worker = await self._free_record(self._store)
        totals = self._read(worker)
        if self._instance:
            await self._write(self._store, totals)
            self._beat_later()
        return totals

    async def _free_record(self, store: LightningStore) -> tuple[str, Worker | None]:
        """The own record of an earlier start, else the first that no living gateway has."""
        free: tuple[str, Worker | None] | None = None
        number = 1
        while True:
            worker_id = self._first_id if number == 1 else f"{self._first_id}-{number}"
            worker = await store.get_worker_by_id(worker_id)
            if worker is not None and self._instance and _stats(worker).get(_INSTANCE) == self._instance:
                return worker_id, worker
            if free is None and not await self._is_in_use(store, worker):
                free = worker_id, worker
            if worker is None:
                break
            number += 1
        assert free is not None
        if free[0] != self._first_id:
            logger.warning("another gateway already uses the name %r: totals are stored as %r", self._first_id, free[0])
        return free

    async def _is_in_use(self, store: LightningStore, worker: Worker | None) -> bool:
        """Whether its gateway lives: one that has just died is known by the next heartbeat, which does not come."""
        seen = worker
        while worker is not None and seen is not None and self._instance and _stats(worker).get(_INSTANCE):
            if worker.last_heartbeat_time != seen.last_heartbeat_time:
                return True
            if self._clock() - (worker.last_heartbeat_time or 0.0) > ALIVE_SECONDS:
                return False
            await asyncio.sleep(LOOK_SECONDS)
            worker = await store.get_worker_by_id(worker.worker_id)
        return False

    def _read(self, worker: Worker | None) -> Totals:
        if worker is None or not worker.heartbeat_stats:
            return Totals()
        try:
            totals = msgspec.convert(worker.heartbeat_stats, Totals)
        except msgspec.ValidationError as error:
            logger.warning("the totals of %r in the store are unreadable (%s): starting at 0", self.worker_id, error)
            return Totals()
        return totals

    # -- meanwhile -----------------------------------------------------------------------------------

    def note_change(self) -> None:
        """The totals are written a moment later, so that many calls need one write."""
        self._changes += 1
        self._save_later()

    async def save(self) -> bool:
        """Write the totals to the store now, if they changed. A store that cannot be reached is logged: False."""
        return await self._save(is_beat=False)

    async def _save(self, *, is_beat: bool) -> bool:
        self._stop_timer()
        async with self._saving:
            changes = self._changes
            if self._store is None or (changes == self._saved_changes and not is_beat):
                return True
            try:
                await self._write(self._store, self._current())
            except (SharpenError, OSError, TimeoutError) as error:
                self._note_failure(error)
                return False
            self._saved_changes, self._is_failing = changes, False
            return True

    async def _write(self, store: LightningStore, totals: Totals) -> None:
        stats: dict[str, Any] = msgspec.to_builtins(totals)
        if self._instance and not self._has_ended:
            stats[_INSTANCE] = self._instance
        await store.update_worker(self.worker_id, stats)

    def _save_later(self) -> None:
        if self._timer is None and self._store is not None:
            self._timer = asyncio.get_running_loop().call_later(self._save_seconds, self._save_soon, False)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat_later(self) -> None:
        self._beat = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._save_soon, True)

    def _save_soon(self, is_beat: bool) -> None:
        if is_beat:
            self._beat_later()
        else:
            self._timer = None
        if self._save_task is None or self._save_task.done():
            self._save_task = asyncio.ensure_future(self._save(is_beat=is_beat))

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning("the totals of %r cannot be stored at the moment: %s", self.worker_id, describe(error))
        self._is_failing = True
        self._save_later()

    # -- after ---------------------------------------------------------------------------------------

    async def aclose(self, *, wait_seconds: float = 5.0) -> None:
        """Write the totals for the last time, and let others have the record."""
        is_beat, self._has_ended = self._beat is not None, True
        if self._beat is not None:
            self._beat.cancel()
        try:
            await asyncio.wait_for(self._save(is_beat=is_beat), wait_seconds)
        except TimeoutError:
            logger.warning("the totals of %r could not be stored within %g s", self.worker_id, wait_seconds)
        finally:
            self._stop_timer()


def _stats(worker: Worker) -> dict[str, Any]:
    return worker.heartbeat_stats or {}
