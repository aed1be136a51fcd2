"""The rollouts of a step: asked for in groups, taken as they finish.

The id of each is made from a key, the step and the place of its task. A run that is resumed takes what was finished
under its earlier keys, and asks for the rest under a new one: what waits in the queue may be of later steps, and would
be run with older weights than it was asked for with.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from ...store import LightningStore
from ...types import EnqueueRolloutRequest, Rollout, RolloutMode, RolloutStatus, Span
from ..finished import FinishedRollouts
from ..rewards import with_last_attempt
from .training_data import CollectedRollout

log = logging.getLogger(__name__)

READS_AT_ONCE = 16
FIRST_SPANS = 200  # more than most rollouts have
OPEN: tuple[RolloutStatus, ...] = ("queuing", "preparing", "running", "requeuing")
LATE_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.6)  # before the spans of a rollout are read again
MOST_IN_VAIN = 8  # rollouts in a row for which that changed nothing, before it is no longer done
UNCERTAIN_SECONDS = 10.0  # before the calls of agents are held, when they may find no model


@dataclass(frozen=True)
class Batch:
    """Rollouts that were asked for together."""

    name: str
    ids: tuple[str, ...]


Reader = Callable[[Rollout, Sequence[Any]], CollectedRollout]
"""Makes what is learned from of a finished rollout and its spans."""


def _prefix(key: str) -> str:
    return f"ro-{key}-"


class Rollouts:
    """Asks for rollouts and follows which of them are finished."""

    def __init__(
        self, store: LightningStore, key: str, read: Reader, *, earlier: Sequence[str] = (), began: float = 0.0
    ) -> None:
        """`earlier` are the keys before, and `began` is when calls of agents were held in this life of the run."""
        self._store, self._read = store, read
        self._earlier, self._began = tuple(map(_prefix, earlier)), began
        self.prefix = _prefix(key)
        self._finished = FinishedRollouts(store, self._read_one)
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self._num_in_vain = 0

    def following(self) -> AbstractAsyncContextManager[None]:
        """Completions are taken as long as the block lasts."""
        return self._finished.following()

    async def ask(
        self,
        name: str,
        tasks: Sequence[Any],
        *,
        n: int,
        mode: RolloutMode,
        resources_id: str,
        first: int = 0,
        metadata: dict[str, Any] | None = None,
    ) -> Batch:
        """Enqueue `n` rollouts of every task; `first` is the number of the first task."""
        requests = {
            f"{name}-t{number}-{sample}": EnqueueRolloutRequest(
                task,
                mode,
                resources_id,
                metadata={**(metadata or {}), "group": f"{name}-t{number}", "sample": sample},
                rollout_id=f"{self.prefix}{name}-t{number}-{sample}",
            )
            for number, task in enumerate(tasks, first)
            for sample in range(n)
        }
        known = await self._finished_before(requests, is_training=mode == "train")
        ids = tuple(f"{self.prefix}{place}" if place not in known else known[place].rollout_id for place in requests)
        self._finished.expect(ids)
        missing = [request for place, request in requests.items() if place not in known]
        new = await self._store.enqueue_many_rollouts(missing) if missing else []
        self._finished.take((*known.values(), *new))
        return Batch(name, ids)

    async def _finished_before(self, places: Iterable[str], *, is_training: bool) -> dict[str, Rollout]:
        """What earlier lives of this run finished, by the place in the step."""
        ids = {f"{prefix}{place}": place for place in places for prefix in self._earlier}
        if not ids:
            return {}
        found = await self._store.query_rollouts(rollout_id_in=list(ids))
        known = {ids[each.rollout_id]: each for each in found if self._can_be_taken(each)}
        if is_training and not len(found):
            self._earlier = ()  # steps are asked for in their order: there is nothing of later ones either
        return known

    def _can_be_taken(self, rollout: Rollout) -> bool:
        """One that failed while there was no model for it has not failed by its agent's fault."""
        if rollout.status != "failed" or rollout.end_time is None:
            return rollout.status in ("succeeded", "failed")
        return rollout.end_time < self._began - UNCERTAIN_SECONDS

    async def results(self, batch: Batch) -> list[CollectedRollout]:
        """Those of a batch, in the order in which they were asked for, when all are finished."""
        return [await self._finished.result(rollout_id) for rollout_id in batch.ids]

    async def cancel(self, *keys: str) -> None:
        """Cancel what was asked for under these keys and is not finished: nobody waits for it."""
        for key in keys:
            waiting = await self._store.query_rollouts(status_in=OPEN, rollout_id_contains=_prefix(key))
            await self._store.cancel_rollouts([each.rollout_id for each in waiting])

    async def are_running(self) -> bool:
        """Whether agents work on any of them right now."""
        found = await self._store.query_rollouts(
            status_in=["preparing", "running"], rollout_id_contains=self.prefix, limit=1
        )
        return len(found) > 0

    # -- reading -------------------------------------------------------------------------------------

    async def _read_one(self, rollout: Rollout) -> CollectedRollout:
        async with self._reading:
            rollout = await with_last_attempt(self._store, rollout)
            spans = await self._spans_of(rollout.rollout_id)
        found = self._read(rollout, spans)
        if _may_be_late(rollout, found):
            found = await self._read_again(rollout, found, len(spans))
        return found

    async def _spans_of(self, rollout_id: str) -> Sequence[Span]:
        """Those of its last attempt. A page is asked for first: a store reads a short one at once, without a thread."""
        page = await self._store.query_spans(rollout_id, "latest", limit=FIRST_SPANS)
        if page.total > len(page.items):
            page = await self._store.query_spans(rollout_id, "latest")
        return page.items

    async def _read_again(self, rollout: Rollout, found: CollectedRollout, num_spans: int) -> CollectedRollout:
        """The gateway stores a stream that the agent left early only after the agent has ended. Give it a moment."""
        first = found
        for pause in LATE_PAUSES:
            if self._num_in_vain >= MOST_IN_VAIN:
                return found
            await asyncio.sleep(pause)
            async with self._reading:
                spans = await self._spans_of(rollout.rollout_id)
            if len(spans) == num_spans:
                continue
            num_spans = len(spans)
            found = self._read(rollout, spans)
            if not _may_be_late(rollout, found):
                break
        has_helped = (found.num_calls, found.num_untokenised) != (first.num_calls, first.num_untokenised)
        self._num_in_vain = 0 if has_helped else self._num_in_vain + 1
        return found


def _may_be_late(rollout: Rollout, found: CollectedRollout) -> bool:
    """Whether a call may still be on its way to the store: one has no token ids, or there is none at all."""
    return rollout.status == "succeeded" and (found.num_untokenised > 0 or found.num_calls == 0)
