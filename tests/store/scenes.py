"""Short ways to bring a store into a state that a test starts from."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from sharpen.semconv import AGL_REWARD, PRIMARY_REWARD_VALUE
from sharpen.store import LightningStore
from sharpen.types import AttemptedRollout, Rollout, RolloutConfig, Span

T = TypeVar("T")

# Far longer than any answer takes: it only bounds how long a broken store can hang a test.
PATIENCE_SECONDS = 60

RETRY_ALL = ["failed", "timeout", "unresponsive"]


def make_span(claimed: AttemptedRollout, *, sequence_id: int = 0, **fields: Any) -> Span:
    """A span of this attempt."""
    return Span.from_attributes(
        attributes=fields.pop("attributes", {}),
        rollout_id=claimed.rollout_id,
        attempt_id=claimed.attempt.attempt_id,
        sequence_id=sequence_id,
        **fields,
    )


def reward_span(claimed: AttemptedRollout, value: float, *, sequence_id: int = 0) -> Span:
    """A span that carries a reward."""
    return make_span(claimed, name=AGL_REWARD, attributes={PRIMARY_REWARD_VALUE: value}, sequence_id=sequence_id)


async def claim_new(
    store: LightningStore, task: Any = "task", *, worker_id: str | None = None, **config: Any
) -> AttemptedRollout:
    """Enqueue one rollout into an empty queue and claim it."""
    rollout = await store.enqueue_rollout(task, config=RolloutConfig(**config))
    claimed = await store.dequeue_rollout(worker_id=worker_id)
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id
    return claimed


async def run_new(store: LightningStore, *, worker_id: str | None = None, **config: Any) -> AttemptedRollout:
    """A claimed rollout whose agent has sent its first span."""
    claimed = await claim_new(store, worker_id=worker_id, **config)
    await store.add_span(make_span(claimed))
    return claimed


async def finish_new(store: LightningStore, task: Any = "task", **outcome: Any) -> AttemptedRollout:
    """A rollout that went from the queue to its end."""
    claimed = await claim_new(store, task)
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **outcome)
    return claimed


async def status_of(store: LightningStore, rollout: Rollout) -> tuple[str, str | None]:
    """The status of a rollout and of its latest attempt."""
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    return found.status, found.attempt.status if isinstance(found, AttemptedRollout) else None


async def drain(store: LightningStore) -> list[str]:
    """Claim everything in the queue: the ids in the order they were given out."""
    ids = []
    while claimed := await store.dequeue_rollout():
        ids.append(claimed.rollout_id)
    return ids


async def within_patience(answer: Awaitable[T]) -> T:
    """The answer, or a failure where a hang would be."""
    return await asyncio.wait_for(answer, PATIENCE_SECONDS)


async def waiting(store: LightningStore, call: Awaitable[T]) -> "asyncio.Task[T]":
    """Start a call that waits, and give it time to reach the store."""
    task = asyncio.ensure_future(call)
    for _ in range(3):
        await store.statistics()
    assert not task.done()
    return task
