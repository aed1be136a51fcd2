"""Which rollouts are finished, as an algorithm hears of it: by their ids, each read once for whoever waits for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from ..store import LightningStore
from ..types import Rollout

R = TypeVar("R")
PAGE = 500
POLL_SECONDS = 10.0


class FinishedRollouts(Generic[R]):
    """Expect ids before they are enqueued, as one may be finished before the call returns; then wait for each."""

    def __init__(self, store: LightningStore, read: Callable[[Rollout], Awaitable[R]]) -> None:
        """`read` makes of a finished rollout what is waited for."""
        self._store, self._read = store, read
        self._open: dict[str, asyncio.Future[R]] = {}
        self._reads: dict[str, asyncio.Task[None]] = {}
        self._error: BaseException | None = None

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Completions are taken as long as the block lasts."""
        follower = asyncio.ensure_future(self._follow())
        follower.add_done_callback(self._on_end)
        try:
            yield
        finally:
            under_way = (follower, *self._reads.values())
            for each in under_way:
                each.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def expect(self, ids: Iterable[str]) -> None:
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        for rollout_id in ids:
            self._open.setdefault(rollout_id, loop.create_future())

    def take(self, rollouts: Iterable[Rollout]) -> None:
        """Read those that are finished and expected. The store tells of them by itself, too."""
        for rollout in rollouts:
            if rollout.is_finished:
                self._take(rollout)

    async def result(self, rollout_id: str) -> R:
        """What was read of it, when it is finished; then it is expected no longer."""
        found = await asyncio.shield(self._open[rollout_id])
        self._open.pop(rollout_id, None)
        return found

    def forget(self, rollout_id: str) -> None:
        """Nobody waits for it any more."""
        future = self._open.pop(rollout_id, None)
        if future is not None:
            future.cancel()

    def is_done(self, rollout_id: str) -> bool:
        """Whether it is finished and read; of those that were expected."""
        future = self._open.get(rollout_id)
        return future is None or future.done()

    async def _follow(self) -> None:
        cursor = 0
        while True:
            page = await self._store.finished_rollouts(after=cursor, limit=PAGE, wait_seconds=POLL_SECONDS)
            cursor = page.cursor
            for rollout in page.items:
                self._take(rollout)

    def _take(self, rollout: Rollout) -> None:
        future = self._open.get(rollout.rollout_id)
        if future is None or future.done() or rollout.rollout_id in self._reads:
            return
        task = asyncio.ensure_future(self._read_one(rollout, future))
        self._reads[rollout.rollout_id] = task
        task.add_done_callback(lambda _: self._reads.pop(rollout.rollout_id, None))

    async def _read_one(self, rollout: Rollout, future: "asyncio.Future[R]") -> None:
        try:
            found = await self._read(rollout)
            if not future.done():
                future.set_result(found)
        except Exception as error:  # noqa: BLE001 - whoever waits for it has it
            if not future.done():
                future.set_exception(error)

    def _on_end(self, follower: "asyncio.Future[None]") -> None:
        """Whoever waits must not wait for ever when the store cannot be followed any more."""
        if follower.cancelled() or follower.exception() is None:
            return
        self._error = follower.exception()
        assert self._error is not None
        for future in self._open.values():
            if not future.done():
                future.set_exception(self._error)
