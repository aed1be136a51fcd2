"""Runners and store servers killed at random points, while a run goes on."""

import asyncio
import os
import random
import signal
import threading

import pytest

from sharpen.execution import ClientServerExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import SQLiteStore
from sharpen.types import RolloutConfig
from tests.execution.internals import pool

from .bundles import Enqueue, Work
from .processes import child_pids

MANY = RolloutConfig(max_attempts=50, retry_condition=["unresponsive"], unresponsive_seconds=30)


async def sleepy(task):
    await asyncio.sleep(0.05)
    return 1.0


async def run_agents(store, worker_id, event) -> None:
    own = Runner(concurrency=4)
    with own.run_context(agent=sleepy, store=store, worker_id=worker_id):
        await own.iter(event=event)


class Killer(threading.Thread):
    """Kills a child of this process now and then; spares too."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._is_over = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._is_over.wait(self._random.uniform(0.2, 1.0)):
            victims = child_pids()
            if victims:
                os.kill(self._random.choice(victims), signal.SIGKILL)
                self.count += 1

    def end(self) -> None:
        self._is_over.set()
        self.join()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("runner", [Work(), run_agents], ids=["plain", "agents"])
def test_whoever_is_killed_every_rollout_is_finished_once(store_path, seed, runner):
    store, algorithm = SQLiteStore(store_path), Enqueue(*({"sleep": 0.05} for _ in range(150)), config=MANY)
    killer = Killer(seed)
    killer.start()
    try:
        ClientServerExecutionStrategy(n_runners=2).execute(algorithm, runner, store)
    finally:
        killer.end()
    assert algorithm.statuses == ["succeeded"] * 150
    assert killer.count > 0
    statistics = asyncio.run(store.statistics())
    assert (statistics["open_attempts"], statistics["queue_length"]) == (0, 0)
    for rollout in algorithm.rollouts:
        attempts = asyncio.run(store.query_attempts(rollout.rollout_id))
        assert [attempt.status for attempt in attempts].count("succeeded") == 1
        assert {attempt.status for attempt in attempts[:-1]} <= {"unresponsive"}
    asyncio.run(store.close())
    pool.close()
