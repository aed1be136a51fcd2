"""A run that goes on until it is ended: `python long_run.py FOLDER STRATEGY TASK [ALGORITHM]`.

TASK is JSON as the `Work` of the tests reads it; ALGORITHM is `wait` (default), `deaf` (it ignores that it is
cancelled for a while) or `blocking` (it holds up its event loop).
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from tests.execution.bundles import RETRY, Work

from sharpen.execution import ClientServerExecutionStrategy, SharedMemoryExecutionStrategy
from sharpen.store import SQLiteStore

FOLDER, STRATEGY, TASK = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
ALGORITHM = sys.argv[4] if len(sys.argv) > 4 else "wait"


def block():
    time.sleep(600)


async def algorithm(store, event):
    for _ in range(2):
        await store.enqueue_rollout(TASK, config=RETRY)
    try:
        (FOLDER / "enqueued-all").touch()
        if ALGORITHM == "blocking":
            block()
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        (FOLDER / "algorithm-cancelled").touch()
        if ALGORITHM == "deaf":
            block()
        raise


store = SQLiteStore(FOLDER / "store.db")
if STRATEGY == "cs":
    strategy = ClientServerExecutionStrategy(graceful_timeout=1.0, terminate_timeout=2.0)
else:
    strategy = SharedMemoryExecutionStrategy(graceful_delay=1.0, join_timeout=2.0, main_thread=STRATEGY)
try:
    strategy.execute(algorithm, Work(folder=FOLDER), store)
except KeyboardInterrupt:
    print("interrupted")
finally:
    asyncio.run(store.close())
    print("closed", flush=True)
