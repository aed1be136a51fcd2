"""What a strategy sends to the workers of a run, and how a runner process unpacks it.

A runner process imports the module of everything that it unpickles. So what travels there lives here, in a room that
knows neither the trainer nor algorithms. `unpack` is the only place in the package where anything is unpickled.
"""

import asyncio
import copy
import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from ..litagent import LitAgent
from ..store import LightningStore
from ..types import Hook
from .base import Runner
from .claim_loop import StopEvent


class RunnerBundle:
    """Runs the agent in one worker: a strategy calls `await bundle(store, worker_id, event)` for each of them.

    Every call works with a copy of the runner and of its tracer, since workers may be threads of one process.
    """

    def __init__(self, agent: LitAgent[Any], runner: Runner[Any], hooks: Sequence[Hook]) -> None:
        self.agent, self.runner, self.hooks = agent, runner, list(hooks)

    def parts(self) -> dict[str, object]:
        """Return what travels, under the names that users know."""
        return {"agent": self.agent, "runner": self.runner, "hooks": self.hooks}

    async def __call__(self, store: LightningStore, worker_id: int, event: StopEvent) -> None:
        runner = copy.copy(self.runner)
        if getattr(runner, "tracer", None) is not None:
            runner.tracer = copy.copy(runner.tracer)
        runner.init(self.agent, hooks=self.hooks)
        try:
            runner.init_worker(worker_id, store)
            try:
                await runner.iter(event=event)
            finally:
                await asyncio.to_thread(runner.teardown_worker, worker_id)
        finally:
            runner.teardown()


def unpack(data: bytes | bytearray) -> Any:
    """Return what `execution.transport.pack` has packed, in a process of the same run."""
    return pickle.loads(data)


def cached_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Return the function with an empty cache: the results of another process stay there."""
    return functools.lru_cache(**parameters)(function)
