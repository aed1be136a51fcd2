"""The store in memory: for tests and throwaway work, and for tasks that are not JSON."""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ..errors import InvalidInputError
from .base import LightningStoreCapabilities
from .ledger import StoreRules
from .local import LocalStore
from .memory_tables import MemoryTables


class InMemoryLightningStore(LocalStore):
    """A store in the memory of this process. A task can be any Python object; values are not copied.

    Args:
        thread_safe: Whether the store can be used from several threads.
        max_span_bytes: The memory for spans; beyond it, the spans of the oldest finished rollouts are dropped.
        clock: The time in seconds since 1970.
    """

    def __init__(
        self,
        *,
        thread_safe: bool = True,
        max_span_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_span_bytes is not None and max_span_bytes < 0:
            raise InvalidInputError(f"max_span_bytes is {max_span_bytes}: use 0 or more bytes, or None for no limit")
        super().__init__(clock=clock)
        self._lock = threading.RLock() if thread_safe else nullcontext()
        self._thread_safe = thread_safe
        self._ledger = StoreRules(
            MemoryTables(max_span_bytes), clock=self._clock, name="InMemoryLightningStore", keeps_secrets=True
        )

    async def _read(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return getattr(self._ledger, name)(*args, **kwargs)

    async def _write(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._write_now(name, *args, **kwargs)

    def _write_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        ledger = self._ledger
        with self._lock:
            try:
                return getattr(ledger, name)(*args, **kwargs)
            finally:
                if not ledger.events.is_empty():
                    self._announce(ledger.take_events())

    def _next_deadline(self) -> float | None:
        with self._lock:
            return self._ledger.next_deadline()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": self._thread_safe, "async_safe": True, "zero_copy": True, "otlp_traces": False}
