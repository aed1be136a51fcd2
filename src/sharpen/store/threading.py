"""`LightningStoreThreaded`: any store, used from any thread, by running it in a loop of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from .base import LightningStore, LightningStoreCapabilities
from .methods import Method, forward_methods


def _send_to_loop(method: Method) -> Callable[..., Awaitable[Any]]:
    async def call(self: "LightningStoreThreaded", *args: Any, **kwargs: Any) -> Any:
        return await self._in_loop(getattr(self.store, method.name)(*args, **kwargs))

    return call


@forward_methods(_send_to_loop)
class LightningStoreThreaded(LightningStore):
    """Makes a store that is not thread-safe usable from many threads and loops at once."""

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sharpen-store-loop", daemon=True)
        self._thread.start()

    async def _in_loop(self, work: Any) -> Any:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the store is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def close(self) -> None:
        if self._loop.is_closed():
            return
        await self._in_loop(self.store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.store.capabilities, "thread_safe": True}

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()
