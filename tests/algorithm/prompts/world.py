"""Rollouts without runners: workers in the loop of the test, that know what a prompt is worth on a task."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sharpen import InMemoryLightningStore, LightningStore, PromptTemplate, Span
from sharpen.types import AttemptedRollout
from tests.algorithm.internals import PromptOptimiser

Lost = Literal["lost"]
LOST: Lost = "lost"
Play = Callable[[str, Any], "float | None | Lost"]
"""The reward of a prompt on a task; LOST when its worker is never heard of again; what it raises fails the attempt."""


@dataclass(frozen=True)
class Played:
    """One rollout, as it was asked for."""

    rollout_id: str
    split: str | None
    prompt: str
    task: Any
    resources: Mapping[str, Any]


class World:
    """A store, and workers that answer everything that is asked for in it."""

    def __init__(
        self,
        play: Play,
        *,
        store: LightningStore | None = None,
        workers: int = 1,
        pauses: Callable[[], float] | None = None,
    ) -> None:
        """`pauses` gives how long the next rollout takes."""
        self.play, self.store = play, store or InMemoryLightningStore()
        self.played: list[Played] = []
        self.state: dict[str, Any] = {}
        """The last checkpoint, as it comes from a file."""
        self._workers, self._pauses = workers, pauses

    def count(self, split: str | None = None) -> int:
        """How many rollouts were paid for."""
        return sum(split is None or each.split == split for each in self.played)

    async def search(
        self, optimiser: PromptOptimiser, train: Any, val: Any = None, *, resources: Mapping[str, Any] | None = None
    ) -> None:
        optimiser.set_store(self.store)
        optimiser.set_initial_resources(None if resources is None else dict(resources))
        optimiser.set_checkpointer(self._save)
        async with self.working():
            await optimiser.run(train, val)

    def _save(self, state: dict[str, Any]) -> None:
        self.state = json.loads(json.dumps(state))

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._work(f"worker-{number}")) for number in range(self._workers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    async def _work(self, name: str) -> None:
        slots = 1 if self._pauses else 16
        while True:
            for claimed in await self.store.dequeue_many_rollouts(limit=slots, worker_id=name, wait_seconds=10):
                await self._do(claimed)

    async def _do(self, claimed: AttemptedRollout) -> None:
        update = await self.store.get_resources_by_id(str(claimed.resources_id))
        assert update is not None
        prompt = next(each.template for each in update.resources.values() if isinstance(each, PromptTemplate))
        self.played.append(Played(claimed.rollout_id, claimed.mode, prompt, claimed.input, update.resources))
        if self._pauses is not None:
            await asyncio.sleep(self._pauses())
        await self._end(claimed, prompt)

    async def _end(self, claimed: AttemptedRollout, prompt: str) -> None:
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        try:
            reward = self.play(prompt, claimed.input)
        except ArithmeticError as error:
            about = {"error_type": type(error).__name__, "error": str(error)}
            await self.store.complete_attempt(*ids, status="failed", metadata=about)
            return
        if reward == LOST:
            await self.store.update_attempt(*ids, status="unresponsive")
            return
        span = Span.from_attributes(attributes={"said": prompt}, rollout_id=ids[0], attempt_id=ids[1], name="answer")
        await self.store.complete_attempt(*ids, spans=[span], reward=reward)
