"""A worker whose server goes away while it works. Run as `python spool_child.py URL`; it waits for lines to go on."""

import asyncio
import sys

from sharpen.store import LightningStoreClient
from sharpen.types import Span


async def main(url: str) -> None:
    client = LightningStoreClient(url, retry_seconds=0.5, spool_after_seconds=0.1)
    claimed = await client.dequeue_rollout(worker_id="w-child", wait_seconds=30)
    assert claimed is not None
    print(claimed.rollout_id, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    for number in range(3):
        await client.add_span(Span.from_attributes(attributes={}, name=f"span-{number}", **ids))
    await client.complete_attempt(**ids, reward=0.5)
    print(client.spooled, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await client.close()


asyncio.run(main(sys.argv[1]))
