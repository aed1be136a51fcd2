"""An agent that blocks on the main thread: `python main_thread.py FOLDER STRATEGY`."""

import asyncio
import sys
import threading
import time
from pathlib import Path

from sharpen.execution import ClientServerExecutionStrategy, SharedMemoryExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import SQLiteStore

FOLDER = Path(sys.argv[1])


def agent(task):
    if threading.current_thread() is threading.main_thread():
        (FOLDER / "blocking-0").touch()
    try:
        time.sleep(600)
    finally:
        print("the agent was broken into")


async def runner(store, worker_id, event):
    own = Runner()
    with own.run_context(agent=agent, store=store, worker_id=worker_id):
        await own.iter(event=event)


async def algorithm(store, event):
    await store.enqueue_rollout("task")
    await asyncio.sleep(600)


store = SQLiteStore(FOLDER / "store.db")
if sys.argv[2] == "cs":
    strategy = ClientServerExecutionStrategy(graceful_timeout=0.5, terminate_timeout=1, main_process="runner")
else:
    strategy = SharedMemoryExecutionStrategy(graceful_delay=0.5, join_timeout=1, main_thread="runner")
try:
    strategy.execute(algorithm, runner, store)
except KeyboardInterrupt:
    print("interrupted")
(rollout,) = asyncio.run(store.query_rollouts())
print(rollout.status)
asyncio.run(store.close())
