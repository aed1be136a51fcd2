"""A run with one task: `python one_task.py FOLDER HUNG_SECONDS TASK [STORE]`. It prints how the rollout ended.

TASK is JSON: `"hang"` holds the interpreter lock for ever, `{"sleep": SECONDS}` waits. STORE is `sqlite` (default),
`memory` or the URL of a Redis server. A second run on the same store continues with the rollout of the first.
"""

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path

from tests.execution.bundles import RETRY
from tests.execution.internals import ORPHAN_RULES, runners
from tests.process.internals import OrphanRule

from sharpen.execution import ClientServerExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import InMemoryLightningStore, RedisLightningStore, SQLiteStore

FOLDER, TASK = Path(sys.argv[1]), json.loads(sys.argv[3])
STORE = sys.argv[4] if len(sys.argv) > 4 else "sqlite"
runners.HUNG_SECONDS = float(sys.argv[2])
if TASK == "hang":
    ORPHAN_RULES["runner"] = OrphanRule(0.5, 1.0)


def agent(task):
    (FOLDER / f"working-{os.getpid()}").touch()
    if task == "hang":
        re.match(r"(a+)+$", "a" * 60 + "b")
    time.sleep(task["sleep"])
    return 1.0


async def run_agents(store, worker_id, event):
    own = Runner()
    with own.run_context(agent=agent, store=store, worker_id=worker_id):
        await own.iter(event=event)


async def algorithm(store, event):
    await store.enqueue_rollout(TASK, config=RETRY, rollout_id="ro-1")
    (rollout,) = await store.wait_for_rollouts(rollout_ids=["ro-1"])
    print(rollout.status)


if STORE == "sqlite":
    store = SQLiteStore(FOLDER / "store.db")
else:
    store = InMemoryLightningStore() if STORE == "memory" else RedisLightningStore(STORE)
ClientServerExecutionStrategy().execute(algorithm, run_agents, store)
asyncio.run(store.close())
