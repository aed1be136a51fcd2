"""Heartbeats and uploads, on a thread of their own, so that a blocking agent keeps its lease.

An attempt's spans are put into its `Outbox` at once and leave in batches: the thread sends them while the agent runs,
and the rest goes with the completion. So a slow store slows only the end of an attempt, and all spans are stored before
the attempt counts as finished.
"""

import asyncio
import contextlib
import logging
import math
import os
import random
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError
from ..store import LightningStore
from ..store.methods import StoreWrapper, call_method
from ..types import AttemptedRollout, Span, StoredSpans

if TYPE_CHECKING:
    from .base import Runner

log = logging.getLogger(__name__)
_jitter = random.Random()  # apart from the user's own random numbers, which may be seeded
TICK_SECONDS = 0.5
SHORT_LEASE_SECONDS = 3.0
SIGN_SECONDS = 1.0  # how often a supervisor is sent a sign of life
MAX_SPANS = 2_000


class HeartbeatThread:
    """Renews the leases of a runner's attempts, sends their spans, and stops those that are no longer wanted."""

    def __init__(self, runner: "Runner[Any]") -> None:
        self._runner, self._store = runner, runner.get_store()
        self._thread: threading.Thread | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._send_sign: Callable[[float | None], None] | None = None
        self._signed_lease = 0.0

    def start(self, send_sign: Callable[[float | None], None] | None = None) -> None:
        """Start the thread, unless it runs.

        Args:
            send_sign: Called every second with the longest lease of the running attempts, and with None at the end.
        """
        if self._thread is None:
            self._loop, self._wake = asyncio.new_event_loop(), asyncio.Event()
            self._is_stopping, self._send_sign = False, send_sign
            self._thread = threading.Thread(target=self._run_loop, name="sharpen-heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Send the spans that are left, and end the thread."""
        if self._thread is not None:
            self._is_stopping = True
            self._call_soon(self._end_wait)
            self._thread.join()
            self._thread = None

    def note_lease(self, seconds: float) -> None:
        """Renew the lease of an attempt that starts now in time."""
        if self._thread is not None and seconds > self._signed_lease:
            self._sign()  # its agent may keep this thread from running
        if self._thread is not None and seconds < SHORT_LEASE_SECONDS:
            self._call_soon(self._wake.set)

    def _call_soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            self._loop.call_soon_threadsafe(call)

    def _end_wait(self) -> None:
        """An unreachable store is tried again and again: the last heartbeat is not worth the wait."""
        self._wake.set()
        if self._heartbeat is not None and getattr(self._store, "is_away", False):
            self._heartbeat.cancel()

    # -- on the thread -------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        signing = asyncio.create_task(self._keep_signing())
        last, interval = -math.inf, 0.0
        while not self._is_stopping:
            if self._loop.time() >= self._next_heartbeat(last, interval):
                self._heartbeat = asyncio.create_task(self._send_heartbeat())
                await asyncio.wait({self._heartbeat})
                last, jitter = self._loop.time(), self._runner.interval_jitter
                interval = self._runner.heartbeat_interval + _jitter.uniform(-jitter, jitter)
            await self._upload()
            seconds = self._next_heartbeat(last, interval) - self._loop.time()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(min(TICK_SECONDS, seconds), 0.01))
                self._wake.clear()
        await self._upload()
        if (release_loop := getattr(self._store, "release_loop", None)) is not None:
            await release_loop()  # what the store keeps for this loop, which ends now
        signing.cancel()
        if self._send_sign is not None:
            self._send_sign(None)

    async def _keep_signing(self) -> None:
        """In a task of its own, since a heartbeat waits for a store that does not answer."""
        while True:
            self._sign()
            await asyncio.sleep(SIGN_SECONDS)

    def _sign(self) -> None:
        if self._send_sign is not None:
            self._signed_lease = max(self._leases(), default=0.0)
            self._send_sign(self._signed_lease)

    def _outboxes(self) -> "list[Outbox]":
        return [attempt.outbox for attempt in list(self._runner._attempts.values())]

    def _leases(self) -> list[float]:
        return [each.lease_seconds for each in self._outboxes() if each.lease_seconds is not None]

    def _next_heartbeat(self, last: float, interval: float) -> float:
        """Leases are renewed at a third of the shortest, so that one lost heartbeat cannot free a live rollout."""
        return last + max(min([interval, *(lease / 3 for lease in self._leases())]), 0.02)

    async def _send_heartbeat(self) -> None:
        """Renew the leases of all attempts, and tell the store how the runner is."""
        runner = self._runner
        attempt_ids = list(runner._attempts)
        statistics = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "slots": runner.concurrency,
            "in_hand": len(attempt_ids),
            "finished": runner.finished,
            "failed": runner.failed,
            "hook_errors": runner.hooks.errors,
            "abandoned_threads": runner.abandoned,
        }
        try:
            arguments = (runner.worker_name, statistics)
            worker = await call_method(self._store, "update_worker", arguments, {"attempt_ids": attempt_ids})
        except Exception as error:  # noqa: BLE001 - a store of the user's own may raise anything
            log.warning("a heartbeat of %s failed: %s", runner.worker_name, error)
        else:
            self._cancel_unwanted(getattr(worker, "unwanted_attempts", ()))

    def _cancel_unwanted(self, attempt_ids: Iterable[str]) -> None:
        for attempt_id in attempt_ids:
            attempt = self._runner._attempts.get(attempt_id)
            if attempt is not None and not attempt.is_unwanted:
                log.info("rollout %s is no longer wanted; stopping its agent", attempt.rollout.rollout_id)
                attempt.cancel()

    async def _upload(self) -> None:
        """Send what waits in all outboxes, in as few calls as possible."""
        taken = [(each, spans) for each in self._outboxes() if (spans := each.begin_sending())]
        unsent = [span for _, spans in taken for span in spans]
        try:
            while unsent:
                await self._send(unsent[:MAX_SPANS])
                del unsent[:MAX_SPANS]
        except Exception as error:  # noqa: BLE001 - the same
            log.warning("could not store %d spans; they will be sent again: %s", len(unsent), error)
        finally:
            left = {id(span) for span in unsent}
            for outbox, spans in taken:
                outbox.end_sending([span for span in spans if id(span) in left])

    async def _send(self, spans: list[Span]) -> None:
        try:
            stored = await self._store.add_many_spans(spans)
        except InvalidInputError as error:
            await send_one_by_one(self._store, spans, error)
        else:
            self._cancel_unwanted(getattr(stored, "unwanted", ()))


async def send_one_by_one(store: LightningStore, spans: Iterable[Span], error: Exception) -> None:
    """Store the valid spans of a batch that was refused as a whole."""
    for span in spans:
        try:
            await store.add_many_spans([span])
        except InvalidInputError:
            log.warning("the store rejected span %r, which is dropped: %s", span.name, error)


class Outbox(StoreWrapper):
    """The store as one attempt sees it: a sink of spans for tracers, and a whole store for whoever needs more of it."""

    def __init__(self, store: LightningStore, rollout: AttemptedRollout) -> None:
        super().__init__(store)
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
        if any(span.attempt_id != self.attempt_id for span in spans):
            return await self.store.add_many_spans(spans)
        for span in spans:
            self.put(span)
        return StoredSpans(spans)

    # By way of `add_many_spans` too.
    add_span = LightningStore.add_span
    add_otel_span = LightningStore.add_otel_span

    def begin_sending(self) -> list[Span]:
        """Return the spans to send now; `end_sending` must follow."""
        with self._lock:
            if self._waiting:
                self._sending = Future()
            spans, self._waiting = self._waiting, []
        return spans

    def end_sending(self, unsent: Sequence[Span]) -> None:
        """Put what could not be sent back to the front."""
        with self._lock:
            self._waiting[:0] = unsent
            sending, self._sending = self._sending, None
        if sending is not None:
            sending.set_result(None)

    async def close_and_take(self) -> list[Span]:
        """Wait for the spans that are being sent, take no more, and return those that are left."""
        while True:
            with self._lock:
                if self._sending is None:
                    self._is_closed = True
                    spans, self._waiting = self._waiting, []
                    return spans
                sending = self._sending
            await asyncio.shield(asyncio.wrap_future(sending))
