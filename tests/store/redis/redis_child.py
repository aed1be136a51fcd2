"""A process with a store in Redis. Its clock stands in the middle of every change: after what was read, before what is
written. There it says so, where it was told to, and goes on when it is told to.

    REDIS_URL=... python redis_child.py claim|complete|work PREFIX [ROLLOUT ATTEMPT]
"""

import asyncio
import os
import sys
import time

from sharpen import RedisLightningStore
from sharpen.types import Span


class HaltingClock:
    """A clock that halts whoever looks at it, once."""

    def __init__(self) -> None:
        self.halts = False

    def __call__(self) -> float:
        if self.halts:
            self.halts = False
            print("in the middle", flush=True)
            sys.stdin.readline()
        return time.time()


async def main(deed: str, prefix: str, *ids: str) -> None:
    clock = HaltingClock()
    store = RedisLightningStore(os.environ["REDIS_URL"], prefix=prefix, clock=clock)
    if deed == "work":
        while claimed := await store.dequeue_rollout(worker_id="w-child"):
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
            print(claimed.rollout_id, flush=True)
        print("empty", flush=True)
    elif deed == "claim":
        clock.halts = True
        claimed = await store.dequeue_rollout(worker_id="w-child")
        print(claimed and claimed.rollout_id, flush=True)
    else:
        clock.halts = True
        rollout_id, attempt_id = ids
        span = Span.from_attributes(attributes={}, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=0)
        attempt = await store.complete_attempt(rollout_id, attempt_id, spans=[span], reward=1.0)
        print(attempt.status, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
