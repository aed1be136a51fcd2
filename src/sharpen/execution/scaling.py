"""How many runners a run has: more while rollouts wait in the queue, fewer when runners have nothing to do."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from ..errors import InvalidInputError, StoreError
from ..store import LightningStore

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
Work = tuple[str, float | None] | None
"""The name of a runner and when it last had work; None where it never was at work."""
_NEVER: tuple[object, float] = (object(), 0.0)


@dataclass(frozen=True)
class Bounds:
    """At least `low` runners and at most `high`; each has `slots` rollouts at a time, and one that has had none for
    `idle_seconds` may go."""

    low: int
    high: int
    slots: int = 1
    idle_seconds: float = 30.0


async def count_waiting(store: LightningStore) -> int:
    """How many rollouts are in the queue: asked for by itself, since statistics of a large store cost much."""
    found = await store.query_rollouts(status_in=("queuing", "requeuing"), limit=1)
    return len(found) if isinstance(found, list) else found.total  # a user's own store may answer with a list


class Crew(Protocol):
    """The runners of a run, as the scaler sees them."""

    def count(self) -> int:
        """Those that are at work or about to."""

    def at_work(self) -> dict[int, str]:
        """The names in the store of those that are ready, by their numbers."""

    def starting(self) -> set[int]:
        """The numbers of those that are not ready yet."""

    def add(self, count: int) -> int:
        """Start so many more; how many there was room for."""

    def let_go(self, worker_ids: Sequence[int]) -> None:
        """Have them finish what they have in hand, and end."""


class Scaler:
    """Looks at the queue now and then, and changes the number of runners within the bounds."""

    def __init__(
        self, crew: Crew, bounds: Bounds, connect: Callable[[], AbstractAsyncContextManager[LightningStore]]
    ) -> None:
        self._crew, self._bounds, self._connect = crew, bounds, connect
        self._idle: dict[int, tuple[Work, float]] = {}
        """Of each runner without work: what it had last, and since when it was seen without."""

    async def run(self) -> None:
        """Until it is cancelled."""
        async with self._connect() as store:
            while True:
                try:
                    await self._look(store)
                except (StoreError, InvalidInputError) as error:
                    log.warning("keeping the current number of runners: %s", error)
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, store: LightningStore) -> None:
        waiting = await count_waiting(store)
        if waiting:
            self._idle.clear()
            self._grow(waiting)
        elif self._crew.count() > self._bounds.low:
            await self._shrink(store)

    def _grow(self, waiting: int) -> None:
        """One runner for every `slots` rollouts that wait, less those that are on their way."""
        count = self._crew.count()
        asked_for = -(-waiting // self._bounds.slots) - len(self._crew.starting())
        wanted = min(asked_for, self._bounds.high - count)
        if wanted > 0 and (added := self._crew.add(wanted)):
            log.info(
                "%d rollouts are waiting: starting %d more runners (%d of at most %d)",
                waiting,
                added,
                count + added,
                self._bounds.high,
            )

    async def _shrink(self, store: LightningStore) -> None:
        """Those that still wait for a place go first, then the last that came."""
        now, spare = time.monotonic(), self._crew.count() - self._bounds.low
        starting = self._crew.starting()
        free: dict[int, Work] = {**dict.fromkeys(starting), **await self._without_work(store)}
        before = self._idle
        self._idle = {
            number: before[number] if before.get(number, _NEVER)[0] == had else (had, now)
            for number, had in free.items()
        }
        idle = [number for number, (_, since) in self._idle.items() if now - since >= self._bounds.idle_seconds]
        going = sorted(idle, key=lambda number: (number in starting, number), reverse=True)[:spare]
        if going:
            log.info("stopping %d runners that have been idle for %g s", len(going), self._bounds.idle_seconds)
            self._crew.let_go(going)

    async def _without_work(self, store: LightningStore) -> dict[int, Work]:
        """Those that have nothing in hand, and what they had last."""
        names = self._crew.at_work()
        workers = await asyncio.gather(*(store.get_worker_by_id(name) for name in names.values()))
        known = zip(names.items(), workers, strict=True)
        return {
            number: (name, None if worker is None else worker.last_busy_time)
            for (number, name), worker in known
            if worker is None or worker.status != "busy"
        }
