"""`LightningStoreThreaded`: any store, used from any thread, by running it in a loop of its own."""

import asyncio
import contextlib
import threading
from typing import Any

from ..types import Span
from .base import LightningStore, LightningStoreCapabilities
from .methods import Method, StoreWrapper, call_method


class LightningStoreThreaded(StoreWrapper):
    """A thread-safe wrapper of any store: calls from many threads and event loops run one at a time."""

    def __init__(self, store: LightningStore) -> None:
        super().__init__(store)
        self.store_id = getattr(store, "store_id", None)
        self._lock = threading.Lock()
        self._one_at_a_time = asyncio.Lock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sharpen-store-loop", daemon=True)
        self._thread.start()

    async def _call(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A call that waits for others must let them act meanwhile.
        waits = method.name == "wait_for_rollouts" or (
            "wait_seconds" in method.parameters and bool(method.bind(args, kwargs).get("wait_seconds"))
        )
        return await self._in_loop(self._run(method.name, args, kwargs, waits=waits))

    async def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, waits: bool) -> Any:
        """One call after another, also where a store is left in the middle of one by an `await`."""
        async with contextlib.nullcontext() if waits else self._one_at_a_time:
            return await call_method(self.store, name, args, kwargs)

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        arguments = (rollout_id, attempt_id, readable_span, sequence_id)
        stored: Span | None = await self._in_loop(self._run("add_otel_span", arguments, {}, waits=False))
        return stored

    async def _in_loop(self, work: Any) -> Any:
        with self._lock:
            if self._is_closed:
                work.close()
                raise RuntimeError("the store is closed")
            sent = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wrap_future(sent)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_closed or (task is not None and task.cancelling()):
                raise
            raise RuntimeError("the store is closed") from None

    async def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            closing = asyncio.run_coroutine_threadsafe(self._end_calls(), self._loop)
        try:
            await asyncio.wrap_future(closing)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
            self._loop.close()

    async def _end_calls(self) -> None:
        """Other threads may still wait, and once the loop has stopped nobody would answer them."""
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self.store.close()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.store.capabilities, "thread_safe": True}
