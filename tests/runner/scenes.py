"""What the tests of runners share."""

import asyncio
import contextlib
import threading
from typing import Any

from sharpen import InMemoryLightningStore, LightningStore, Rollout, RolloutConfig
from sharpen.runner import Runner
from sharpen.tracer import DummyTracer

PATIENCE_SECONDS = 30


@contextlib.asynccontextmanager
async def at_work(runner: Runner, agent: Any, store: LightningStore, *, hooks: Any = None):
    """A runner that works in the background until the block ends; gives the event that stops it."""
    event = threading.Event()
    with runner.run_context(agent=agent, store=store, hooks=hooks):
        task = asyncio.create_task(runner.iter(event=event))
        try:
            yield event
        finally:
            event.set()
            await asyncio.wait_for(task, PATIENCE_SECONDS)


async def run_tasks(agent: Any, tasks: list, *, runner: Runner | None = None, store=None, hooks=None, **config: Any):
    """The finished rollouts of these tasks, in order."""
    store = store or InMemoryLightningStore()
    runner = runner or Runner(tracer=DummyTracer())
    queued = [await store.enqueue_rollout(task, mode="train", config=RolloutConfig(**config)) for task in tasks]
    async with at_work(runner, agent, store, hooks=hooks):
        return await finished(store, queued)


async def finished(store: LightningStore, rollouts: list[Rollout]) -> list[Rollout]:
    done = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts], timeout=PATIENCE_SECONDS)
    assert len(done) == len(rollouts), "some rollouts did not finish in time"
    return done


async def why(store: LightningStore, rollout: Rollout) -> tuple[str, str, str]:
    """Status of the last attempt, and the kind and text of its error."""
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    assert attempt.metadata is not None, f"{attempt.status} without a reason"
    return attempt.status, attempt.metadata["error_type"], attempt.metadata["error"]


def own_threads() -> set[threading.Thread]:
    """Threads of ours; the watchdog of a store ends with the store, whenever that is collected."""
    ours = {thread for thread in threading.enumerate() if thread.name.startswith("sharpen-")}
    return {thread for thread in ours if thread.name != "sharpen-watchdog"}
