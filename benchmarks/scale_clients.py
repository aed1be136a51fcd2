"""One client process of `scale.py`, driven by lines of JSON.

Jobs: `cycles` (claim, three spans, finish), `spans` (in bulk), `wait` (many waiters for work).
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from itertools import count
from typing import Any

from line_process import Figures, next_line, say
from scale_stores import count_claims, open_store

from sharpen.types import AttemptedRollout, EnqueueRolloutRequest, Span

BULK = 500
POLL_SECONDS = 5.0  # a runner's own
Rounds = AsyncGenerator[Figures, None]


def make_spans(rollout: AttemptedRollout, count: int, first: int = 1) -> list[Span]:
    """About 1 kB each as JSON: a chat call with its texts and a few token ids."""
    return [
        Span.from_attributes(
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.input.messages": "x" * 280,
                "gen_ai.output.messages": "y" * 100,
                "response_token_ids": list(range(1000, 1024)),
            },
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            sequence_id=first + number,
            name="openai.chat.completion",
        )
        for number in range(count)
    ]


async def fill(store: Any, count: int) -> None:
    """Put rollouts into the queue."""
    for start in range(0, count, 500):
        size = min(500, count - start)
        await store.enqueue_many_rollouts([EnqueueRolloutRequest({"q": start + n}, mode="train") for n in range(size)])


# -- jobs: each does one round for every line that it is told ----------------------------------------


async def cycles(store: Any, job: Figures) -> Rounds:
    """Claim, three spans, finish, one at a time for `seconds`: as a runner does it, or with three calls in turn."""
    cycle = in_turn if job["calls"] == "in turn" else finish_and_claim
    name = job["name"]
    rollout = await claim(store, name)
    for _ in range(20):
        rollout = await cycle(store, rollout, name)
    yield {"ready": True}
    while True:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < job["seconds"]:
            rollout = await cycle(store, rollout, name)
            done += 1
        yield {"done": done, "seconds": time.perf_counter() - began}


async def claim(store: Any, name: str) -> AttemptedRollout:
    rollout: AttemptedRollout | None = await store.dequeue_rollout(worker_id=name)
    if rollout is None:
        raise RuntimeError("the queue ran empty")
    return rollout


async def finish_and_claim(store: Any, rollout: AttemptedRollout, name: str, spans: int = 3) -> AttemptedRollout:
    """As a runner does it: the outcome travels with its spans; over HTTP the next claim goes along in the request."""
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    if not hasattr(store, "expect_claim"):
        await store.complete_attempt(*ids, spans=make_spans(rollout, spans))
        return await claim(store, name)
    store.expect_claim()
    finishing = asyncio.ensure_future(store.complete_attempt(*ids, spans=make_spans(rollout, spans)))
    await asyncio.sleep(0)
    claimed = await claim(store, name)
    await finishing
    return claimed


async def in_turn(store: Any, rollout: AttemptedRollout, name: str) -> AttemptedRollout:
    """Three calls, one after another."""
    await store.add_many_spans(make_spans(rollout, 3))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    return await claim(store, name)


async def spans(store: Any, job: Figures) -> Rounds:
    """Spans in bulk, four batches of 500 on the way, onto rollouts of its own."""
    rollouts = await store.dequeue_many_rollouts(limit=16, worker_id=job["name"])
    await asyncio.gather(*(store.add_many_spans(make_spans(rollout, BULK)) for rollout in rollouts[:4]))
    figures: Figures = {"ready": True}
    for number in count(1):
        first = 1 + number * job["batches"] * BULK
        work = [make_spans(rollouts[n % 16], BULK, first + n * BULK) for n in range(job["batches"])]
        yield figures
        began = time.perf_counter()
        for start in range(0, len(work), 4):
            await asyncio.gather(*(store.add_many_spans(batch) for batch in work[start : start + 4]))
        figures = {"done": len(work) * BULK, "seconds": time.perf_counter() - began}


async def wait(store: Any, job: Figures) -> Rounds:
    """Waiters for work, each with a connection of its own where they are clients; a round is what was seen since."""
    seen = Counter[str]() if job["url"].startswith("http") else count_claims(store)
    waits: list[float] = []
    own = [open_store(job["url"]) for _ in range(job["waiters"])] if job["url"].startswith("http") else []

    async def waiter(each: Any, name: str) -> None:
        while True:
            claimed = await each.dequeue_rollout(worker_id=name, wait_seconds=POLL_SECONDS)
            if claimed is not None:
                waits.append(time.monotonic() - claimed.input["since"])
                await each.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")

    stores = own or [store] * job["waiters"]
    tasks = [asyncio.ensure_future(waiter(each, f"{job['name']}-{n}")) for n, each in enumerate(stores)]
    yield {"ready": True}
    try:
        while True:
            figures = {"waits": waits[:], "counts": dict(seen), "errors": sum(task.done() for task in tasks)}
            waits.clear()
            seen.clear()
            yield figures
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in own:
            await each.close()


# -- the process -------------------------------------------------------------------------------------


async def run(job: Figures) -> None:
    store = open_store(job["url"])
    jobs: dict[str, Callable[[Any, Figures], Rounds]] = {"cycles": cycles, "spans": spans, "wait": wait}
    rounds = jobs[job["do"]](store, job)
    try:
        say(await anext(rounds))
        while await asyncio.to_thread(next_line) is not None:
            say(await anext(rounds))
    finally:
        await rounds.aclose()
        await store.close()


def main() -> None:
    logging.disable(logging.WARNING)
    asyncio.run(run(next_line() or {}))


if __name__ == "__main__":
    main()
