"""A program with modules beside it, on a cluster: `python script.py ADDRESS`.

When the agent runs, the files are no longer where the program found them: what it imports then has travelled.
"""

import sys
from pathlib import Path

import near

from sharpen.execution import RayExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import InMemoryLightningStore


def agent(task: int) -> float:
    import late

    return late.three() * near.double(task)


async def runner(store, worker_id, event) -> None:
    for name in ("near", "further", "late"):
        assert not (HERE / f"{name}.py").exists()
    own = Runner()
    with own.run_context(agent=agent, store=store, worker_id=worker_id):
        await own.iter(event=event)


HERE = Path(__file__).parent.resolve()
found = []


async def algorithm(store, event) -> None:
    rollout = await store.enqueue_rollout(3)
    found.extend(await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))


strategy = RayExecutionStrategy(address=sys.argv[1], runner_resources={"right": 1})
pack = strategy._pack


def pack_and_remove(bundle):
    packed = pack(bundle)
    for name in ("near", "further", "late"):
        (HERE / f"{name}.py").unlink()
    return packed


strategy._pack = pack_and_remove
strategy.execute(algorithm, runner, InMemoryLightningStore())
print(found[0].status, found[0].reward)
