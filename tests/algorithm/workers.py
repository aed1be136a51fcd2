"""Workers for algorithms under test: they claim rollouts and complete them, without a runner."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sharpen import LightningStore, Span
from sharpen.types import AttemptedRollout

Agent = Callable[[Any], float | None]


async def work(store: LightningStore, agent: Agent, name: str = "worker-0", *, slots: int = 1) -> None:
    """Claim and complete until cancelled. What the agent raises fails the attempt."""
    await store.update_worker(name, {"slots": slots})
    while True:
        for claimed in await store.dequeue_many_rollouts(limit=slots, worker_id=name, wait_seconds=10):
            await complete(store, claimed, agent)


async def complete(store: LightningStore, claimed: AttemptedRollout, agent: Agent) -> None:
    ids = (claimed.rollout_id, claimed.attempt.attempt_id)
    try:
        reward = agent(claimed.input)
    except ArithmeticError as error:
        about = {"error_type": type(error).__name__, "error": str(error)}
        await store.complete_attempt(*ids, status="failed", metadata=about)
        return
    span = Span.from_attributes(attributes={"said": "yes"}, rollout_id=ids[0], attempt_id=ids[1], name="answer")
    await store.complete_attempt(*ids, spans=[span], reward=reward)


@contextlib.asynccontextmanager
async def working(store: LightningStore, agent: Agent, *, slots: int = 1) -> AsyncIterator[None]:
    task = asyncio.create_task(work(store, agent, slots=slots))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition; pytest's timeout bounds it."""
    while not await condition():
        await asyncio.sleep(0.005)
