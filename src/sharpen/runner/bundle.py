"""What a strategy sends to the workers of a run, and how a runner process unpacks it.

A runner process imports the module of everything that it unpickles. So what travels there lives here, in a room that
knows neither the trainer nor algorithms. `unpack` is the only place in the package where anything is unpickled.
"""

import asyncio
import copy
import functools
import pickle
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from ..litagent import LitAgent
from ..store import LightningStore
from ..types import Hook
from .base import Runner
from .claim_loop import StopEvent

POLL_SECONDS = 0.05
MAX_NAME = 100


class RunnerBundle:
    """Runs the agent in one worker: a strategy calls `await bundle(store, worker_id, event)` for each of them.

    Every call works with a copy of the runner and of its tracer, since workers may be threads of one process.
    """

    def __init__(
        self,
        agent: LitAgent[Any],
        runner: Runner[Any],
        hooks: Sequence[Hook],
        gateway: "GatewayReadiness | None" = None,
    ) -> None:
        self.agent, self.runner, self.hooks = agent, runner, list(hooks)
        self.gateway = gateway

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
                if self.gateway is not None:
                    await self.gateway.wait(store, event)
                await runner.iter(event=event)
            finally:
                await asyncio.to_thread(runner.teardown_worker, worker_id)
        finally:
            runner.teardown()


class GatewayReadiness:
    """How runners learn that the gateway of their run answers, and a resumed run learns where it was before.

    It is the record of a worker in the store, which everybody can reach, wherever they run.
    """

    def __init__(self, run_name: str) -> None:
        self.run_name = re.sub(r"[^\w.-]", "-", run_name)[:MAX_NAME]
        self._worker_id = f"gateway-of-{self.run_name}"
        self._start = secrets.token_hex(6)

    async def announce(self, store: LightningStore, address: str | None) -> None:
        await store.update_worker(self._worker_id, {"start": self._start, "address": address})

    async def wait(self, store: LightningStore, event: StopEvent) -> None:
        """Wait until this start of the gateway is announced, or the run is over."""
        while (await self._announced(store)).get("start") != self._start:
            if await asyncio.to_thread(event.wait, POLL_SECONDS):
                return

    async def last_address(self, store: LightningStore) -> str | None:
        """Return where the gateway of this run was."""
        return (await self._announced(store)).get("address")

    async def _announced(self, store: LightningStore) -> dict[str, Any]:
        worker = await store.get_worker_by_id(self._worker_id)
        return {} if worker is None else worker.heartbeat_stats or {}


def unpack(data: bytes | bytearray) -> Any:
    """Return what `execution.transport.pack` has packed, in a process of the same run."""
    return pickle.loads(data)


def cached_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Return the function with an empty cache: the results of another process stay there."""
    return functools.lru_cache(**parameters)(function)
