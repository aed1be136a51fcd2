"""The store as one attempt sees it: its spans are put down at once, and leave in batches.

The courier takes them while the agent runs; the rest travels with the completion. So a slow store slows nothing but
the end of the attempt, and all spans are stored before the attempt counts as finished.
"""

import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ..store import LightningStore
from ..store.base import LightningStoreCapabilities
from ..store.methods import Method, call_method, forward_methods
from ..types import AttemptedRollout, Span, StoredSpans


def _pass_on(method: Method) -> Callable[..., Awaitable[Any]]:
    async def call(self: "Outbox", *args: Any, **kwargs: Any) -> Any:
        return await call_method(self.store, method.name, args, kwargs)

    return call


@forward_methods(_pass_on)
class Outbox(LightningStore):
    """A sink of spans for tracers, and a whole store for whoever needs more of it."""

    def __init__(self, store: LightningStore, rollout: AttemptedRollout) -> None:
        self.store = store
        self.attempt_id = rollout.attempt.attempt_id
        self.lease_seconds = rollout.config.unresponsive_seconds
        self._lock = threading.Lock()
        self._waiting: list[Span] = []
        self._is_closed = False
        self._sending: Future[None] | None = None

    def put(self, span: Span) -> None:
        """Take a span; what comes after the attempt was completed is dropped."""
        with self._lock:
            if not self._is_closed:
                self._waiting.append(span)

    async def add_many_spans(self, spans: Sequence[Span]) -> StoredSpans:
        for span in spans:
            if span.attempt_id != self.attempt_id:
                return await self.store.add_many_spans(spans)
        for span in spans:
            self.put(span)
        return StoredSpans(spans)

    def begin_sending(self) -> list[Span]:
        """The spans to send now; `end_sending` must follow."""
        with self._lock:
            if self._waiting:
                self._sending = Future()
            spans, self._waiting = self._waiting, []
        return spans

    def end_sending(self, *, unsent: Sequence[Span] = ()) -> None:
        """What could not be sent goes back to the front."""
        with self._lock:
            self._waiting[:0] = unsent
            sending, self._sending = self._sending, None
        if sending is not None:
            sending.set_result(None)

    def seal(self) -> "tuple[list[Span], Future[None] | None]":
        """Take nothing more: the spans that are left, and what to wait for before they are complete."""
        with self._lock:
            if self._sending is not None:
                return [], self._sending
            self._is_closed = True
            spans, self._waiting = self._waiting, []
        return spans, None

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.store.capabilities

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()
