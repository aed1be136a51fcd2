"""A process that does whatever comes to its mind to a store that others use as well.

REDIS_URL=... python racing_child.py PREFIX SEED SECONDS
"""

import asyncio
import os
import random
import sys
import time

from sharpen import RedisLightningStore
from sharpen.errors import SharpenError
from sharpen.types import RolloutConfig, Span

CONFIG = RolloutConfig(
    max_attempts=3, retry_condition=["failed", "timeout", "unresponsive"], unresponsive_seconds=0.2, timeout_seconds=0.5
)
IDS = [f"ro-{n}" for n in range(12)]


def deeds(store: RedisLightningStore, chance: random.Random) -> list:
    worker, rollout_id = f"w-{chance.randrange(3)}", chance.choice(IDS)

    async def finish() -> None:
        for claimed in await store.dequeue_many_rollouts(limit=chance.randint(1, 3), worker_id=worker):
            ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
            spans = [Span.from_attributes(attributes={}, sequence_id=0, **ids) for _ in range(chance.randrange(3))]
            await store.add_many_spans(spans)
            status = chance.choice(["succeeded", "failed"])
            await store.complete_attempt(*ids.values(), spans=spans, status=status, reward=chance.random())

    return [
        lambda: store.enqueue_rollout({"text": "x" * chance.choice([10, 2000])}, config=CONFIG, rollout_id=rollout_id),
        finish,
        finish,
        lambda: store.dequeue_rollout(worker_id=worker),
        lambda: store.cancel_rollouts([rollout_id]),
        lambda: store.update_rollout(rollout_id, status="requeuing", input={"text": "y" * chance.choice([10, 2000])}),
        lambda: store.start_attempt(rollout_id, worker_id=worker),
        lambda: store.update_worker(worker),
        lambda: store.prune(older_than=0),
    ]


async def act(store: RedisLightningStore, chance: random.Random, end: float) -> int:
    done = 0
    while time.monotonic() < end:
        try:
            await chance.choice(deeds(store, chance))()
            done += 1
        except SharpenError:
            continue  # finished or unknown by now: somebody else was faster
    return done


async def main(prefix: str, seed: str, seconds: str) -> None:
    store = RedisLightningStore(os.environ["REDIS_URL"], prefix=prefix)
    end = time.monotonic() + float(seconds)
    done = await asyncio.gather(*(act(store, random.Random(f"{seed}-{n}"), end) for n in range(3)))
    print(sum(done), flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
