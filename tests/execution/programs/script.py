"""A script without a `__main__` guard, whose agent stands in it: `python script.py FOLDER`."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from sharpen.execution import ClientServerExecutionStrategy
from sharpen.store import SQLiteStore

print("the script runs")
FOLDER = Path(sys.argv[1])
FACTOR = 2


@dataclass
class Answer:
    value: int


def agent(task: int) -> Answer:
    return Answer(task * FACTOR)


async def runner(store, worker_id, event):
    while not event.is_set():
        claimed = await store.dequeue_rollout(wait_seconds=0.1)
        if claimed is not None:
            reward = agent(claimed.input).value
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=reward)


async def algorithm(store, event):
    rollouts = [await store.enqueue_rollout(number) for number in range(4)]
    found = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in rollouts])
    print("rewards", *sorted(rollout.reward for rollout in found))


store = SQLiteStore(FOLDER / "store.db")
for _ in range(2):
    ClientServerExecutionStrategy(n_runners=2).execute(algorithm, runner, store)
asyncio.run(store.close())
