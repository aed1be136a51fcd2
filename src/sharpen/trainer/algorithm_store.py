"""The store as an algorithm sees it: rollouts that come without a configuration get the trainer's."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from ..store import LightningStore, LightningStoreCapabilities
from ..store.methods import METHODS, Method, forward_methods
from ..store.opening import StoreAddress
from ..types import AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig, RolloutMode, Span, TaskInput


def _pass_on(method: Method) -> Callable[..., Awaitable[Any]]:
    async def call(self: "AlgorithmStore", *args: Any, **kwargs: Any) -> Any:
        return await self._call(method.name, *args, **kwargs)

    return call


@forward_methods(_pass_on)
class AlgorithmStore(LightningStore):
    """Fills in the rollout configuration, and knows which event loops wait in it, so that they can be woken.

    Closing it closes nothing: the store belongs to the run.
    """

    def __init__(self, store: LightningStore, rollout_config: RolloutConfig) -> None:
        self.store = store
        self.rollout_config = rollout_config
        self._waiting: Counter[asyncio.AbstractEventLoop] = Counter()

    async def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        self._waiting[loop] += 1
        try:
            return await getattr(self.store, name)(*args, **kwargs)
        finally:
            self._waiting[loop] -= 1
            if not self._waiting[loop]:
                del self._waiting[loop]

    def wake_waiting(self) -> None:
        """Let every loop that waits here turn once: an exception that another thread raised in it takes effect."""
        for loop in list(self._waiting):
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: None)

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        rollout_id: str | None = None,
    ) -> Rollout:
        config = config or self.rollout_config
        found: Rollout = await self._call("enqueue_rollout", input, mode, resources_id, config, metadata, rollout_id)
        return found

    async def enqueue_many_rollouts(
        self,
        requests: Sequence[EnqueueRolloutRequest] = (),
        *,
        rollouts: Sequence[EnqueueRolloutRequest] = (),
    ) -> list[Rollout]:
        filled = [
            request if request.config is not None else msgspec.structs.replace(request, config=self.rollout_config)
            for request in (*requests, *rollouts)
        ]
        found: list[Rollout] = await self._call("enqueue_many_rollouts", filled)
        return found

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        rollout_id: str | None = None,
    ) -> AttemptedRollout:
        config = config or self.rollout_config
        arguments = (input, mode, resources_id, config, metadata, worker_id, rollout_id)
        found: AttemptedRollout = await self._call("start_rollout", *arguments)
        return found

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        stored: Span | None = await self._call("add_otel_span", rollout_id, attempt_id, readable_span, sequence_id)
        return stored

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.store.capabilities

    def address(self) -> StoreAddress | None:
        return self.store.address()

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # a half-made copy has none yet
            raise AttributeError(name)
        return getattr(self.store, name)


# What the contract derives from other methods is passed on as well: a store may have its own way to do it.
for _method in METHODS.values():
    if _method.kind == "derived" and _method.name not in vars(AlgorithmStore):
        setattr(AlgorithmStore, _method.name, _pass_on(_method))
