"""What a rollout costs with runners as Ray actors, against as many runners as processes of this machine.

    python benchmarks/scale_ray.py [ROLLOUTS] [RUNNERS]

Both strategies serve the same kind of store and run the same runner. A run warms up first, then works off the same
queue a few times; the best round counts, since whatever else the machine does only ever makes a round slower. The
order of the two changes from pass to pass.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sharpen.execution import ClientServerExecutionStrategy, ExecutionStrategy, RayExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import LightningStore, SQLiteStore
from sharpen.types import EnqueueRolloutRequest

AGENT_SECONDS = {"empty": 0.0, "20ms": 0.02}
ROUNDS = 3
PASSES = 2
WARM_UP = 40


def agent(task: float) -> float:
    """Waits so many seconds, as an agent waits for a model."""
    if task:
        time.sleep(task)
    return 1.0


async def run_agents(store: LightningStore, worker_id: int, event: Any) -> None:
    runner: Runner[float] = Runner()
    with runner.run_context(agent=agent, store=store, worker_id=worker_id):
        await runner.iter(event=event)


class Rounds:
    """Enqueues the same tasks several times, and keeps the fastest."""

    def __init__(self, n_rollouts: int, n_runners: int, seconds: float) -> None:
        self._n_rollouts, self._n_runners, self._seconds = n_rollouts, n_runners, seconds
        self.best = 0.0

    async def __call__(self, store: LightningStore, event: Any) -> None:
        await self._all_at_work(store)
        await self._round(store, WARM_UP)
        for _ in range(ROUNDS):
            self.best = max(self.best, await self._round(store, self._n_rollouts))

    async def _all_at_work(self, store: LightningStore) -> None:
        """Until every runner has claimed something."""
        while len(await store.query_workers()) < self._n_runners:
            await self._round(store, self._n_runners)

    async def _round(self, store: LightningStore, count: int) -> float:
        began = time.perf_counter()
        rollouts = await store.enqueue_many_rollouts([EnqueueRolloutRequest(self._seconds) for _ in range(count)])
        await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts])
        return count / (time.perf_counter() - began)


def _rate(strategy: ExecutionStrategy, n_rollouts: int, n_runners: int, seconds: float) -> float:
    rounds = Rounds(n_rollouts, n_runners, seconds)
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "store.db")
        try:
            strategy.execute(rounds, run_agents, store)
        finally:
            asyncio.run(store.close())
    return rounds.best


@contextmanager
def _cluster(n_runners: int) -> Iterator[str]:
    """A cluster of two nodes on this machine, with room for the runners."""
    folder = tempfile.mkdtemp(prefix="ray-")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
    os.mkdir(os.path.join(folder, "ray"))  # where it notes its address
    import ray
    from ray.cluster_utils import Cluster

    room = {"num_cpus": 1, "resources": {"seat": n_runners}}
    made = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False, "temp_dir": folder})
    try:
        made.add_node(**room)
        ray.init(address=made.address, include_dashboard=False, logging_level="ERROR")
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def measure_ray(n_rollouts: int, n_runners: int) -> dict[str, float]:
    """Rollouts a second: `client_server_empty`, `ray_empty`, `client_server_20ms`, `ray_20ms`; and how many times as
    long a rollout takes with Ray: `overhead_empty`, `overhead_20ms`."""
    found: dict[str, float] = {}
    with _cluster(n_runners):
        strategies: dict[str, ExecutionStrategy] = {
            "client_server": ClientServerExecutionStrategy(n_runners=n_runners),
            "ray": RayExecutionStrategy(n_runners=n_runners, runner_resources={"seat": 1}),
        }
        for kind, seconds in AGENT_SECONDS.items():
            for number in range(PASSES):
                for name in sorted(strategies, reverse=bool(number % 2)):
                    rate = _rate(strategies[name], n_rollouts, n_runners, seconds)
                    found[f"{name}_{kind}"] = max(rate, found.get(f"{name}_{kind}", 0.0))
            found[f"overhead_{kind}"] = found[f"client_server_{kind}"] / found[f"ray_{kind}"]
    return found


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    for measure, value in measure_ray(*(given + [400, 4][len(given) :])).items():
        print(f"{measure:>24} {value:10.2f}")
