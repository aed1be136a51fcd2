"""What the tests of this folder share: a strategy whose modules the nodes find by themselves, and agents that tell
where they were."""

import asyncio
import os
from typing import Any

from sharpen.execution import RayExecutionStrategy
from sharpen.runner import Runner
from sharpen.store import LightningStore

FOUND_THERE: dict[str, Any] = {"py_modules": []}
"""All nodes of the tests see the files of this machine: nothing has to travel."""
SMALL = {"CPU": 0.1}


def strategy(**settings: Any) -> RayExecutionStrategy:
    given = {"runner_resources": SMALL, "runtime_env": FOUND_THERE, "graceful_timeout": 3.0, "terminate_timeout": 3.0}
    return RayExecutionStrategy(**{**given, **settings})


def execute(bundle: Any, runner: Any, store: LightningStore, **settings: Any) -> None:
    strategy(**settings).execute(bundle, runner, store)


def node_here() -> str:
    import ray

    found: str = ray.get_runtime_context().get_node_id()
    return found


class Agents:
    """A bundle that runs an agent with a real runner."""

    def __init__(self, agent: Any, **options: Any) -> None:
        self.agent, self.options = agent, options

    async def __call__(self, store: LightningStore, worker_id: int, event: Any) -> None:
        runner: Runner[Any] = Runner(**self.options)
        with runner.run_context(agent=self.agent, store=store, worker_id=worker_id):
            await runner.iter(event=event)


def mark(task: dict[str, Any]) -> float:
    """An agent that appends a line to a file when it is done: how often that happens shows how often it completed."""
    import time

    time.sleep(task["seconds"])
    with open(task["file"], "a", encoding="utf-8") as file:
        file.write(f"{task['number']} {os.getpid()} {node_here()}\n")
    return float(task["number"])


def attempts_of(store: LightningStore, rollout_id: str) -> list[str]:
    return [each.status for each in asyncio.run(store.query_attempts(rollout_id))]
