"""The courier: heartbeats and uploads on a thread of their own, so that a blocking agent keeps its lease."""

import asyncio
import contextlib
import logging
import math
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from ..errors import InvalidInputError
from ..store import LightningStore
from ..store.methods import call_method
from ..types import Span
from .outbox import Outbox

log = logging.getLogger(__name__)
_jitter = random.Random()  # apart from the user's own random numbers, which may be seeded
TICK_SECONDS = 0.5
SHORT_LEASE_SECONDS = 3.0
SIGN_SECONDS = 1.0  # how often a supervisor hears of the longest lease in hand
MAX_SPANS = 2_000


class Courier:
    """Carries spans to the store and brings back which attempts are no longer wanted."""

    def __init__(
        self,
        store: LightningStore,
        worker_name: str,
        *,
        heartbeat_interval: float,
        interval_jitter: float,
        statistics: Callable[[], dict[str, Any]],
        on_unwanted: Callable[[Iterable[str]], None],
    ) -> None:
        self._store, self._worker_name = store, worker_name
        self._interval, self._jitter = heartbeat_interval, interval_jitter
        self._statistics, self._on_unwanted = statistics, on_unwanted
        self._boxes: dict[str, Outbox] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._beating: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._sign: Callable[[float | None], None] | None = None
        self._signed_lease = 0.0

    def start(self, sign: Callable[[float | None], None] | None = None) -> None:
        """Start the thread. It calls `sign` every second with the longest lease in hand, and with None at its end."""
        if self._thread is None:
            ready: Future[None] = Future()
            self._is_stopping, self._sign = False, sign
            self._thread = threading.Thread(target=self._run, args=(ready,), name="sharpen-courier", daemon=True)
            self._thread.start()
            ready.result()

    def stop(self) -> None:
        """Send what waits, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._is_stopping = True
        self._hurry()
        self._soon(self._cut_beat)
        thread.join()

    def take(self, box: Outbox) -> None:
        """From now on look after this attempt."""
        self._boxes[box.attempt_id] = box
        if (box.lease_seconds or 0.0) > self._signed_lease:
            self._send_sign()  # the agent that starts now may keep this thread from running
        if box.lease_seconds is not None and box.lease_seconds < SHORT_LEASE_SECONDS:
            self._hurry()

    def drop(self, box: Outbox) -> None:
        self._boxes.pop(box.attempt_id, None)

    def _hurry(self) -> None:
        if self._wake is not None:
            self._soon(self._wake.set)

    def _soon(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed in this very moment
                self._loop.call_soon_threadsafe(call)

    def _cut_beat(self) -> None:
        """A store that is away is asked again and again: the last heartbeat is not worth the wait."""
        if self._beating is not None and getattr(self._store, "is_away", False):
            self._beating.cancel()

    def _run(self, ready: "Future[None]") -> None:
        asyncio.run(self._rounds(ready))

    async def _rounds(self, ready: "Future[None]") -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        ready.set_result(None)
        signing = asyncio.create_task(self._keep_signing())
        last_beat, interval = -math.inf, 0.0
        while not self._is_stopping:
            if self._loop.time() >= self._next_beat(last_beat, interval):
                self._beating = asyncio.create_task(self._beat())
                await asyncio.wait({self._beating})
                last_beat = self._loop.time()
                interval = self._interval + _jitter.uniform(-self._jitter, self._jitter)
            await self._upload()
            await self._pause(self._next_beat(last_beat, interval) - self._loop.time())
        await self._upload()
        await self._release()
        signing.cancel()
        if self._sign is not None:
            self._sign(None)

    async def _keep_signing(self) -> None:
        """A task of its own, as a heartbeat waits for a store that does not answer."""
        while True:
            self._send_sign()
            await asyncio.sleep(SIGN_SECONDS)

    def _send_sign(self) -> None:
        if self._sign is not None:
            self._signed_lease = max((box.lease_seconds or 0.0 for box in list(self._boxes.values())), default=0.0)
            self._sign(self._signed_lease)

    async def _pause(self, until_beat: float) -> None:
        assert self._wake is not None
        try:
            await asyncio.wait_for(self._wake.wait(), max(min(TICK_SECONDS, until_beat), 0.01))
        except TimeoutError:
            return
        self._wake.clear()

    def _next_beat(self, last: float, interval: float) -> float:
        """Leases are renewed at a third of the shortest, so that one lost heartbeat cannot free a live rollout."""
        leases = [box.lease_seconds for box in list(self._boxes.values()) if box.lease_seconds is not None]
        return last + max(min([interval, *(lease / 3 for lease in leases)]), 0.02)

    async def _beat(self) -> None:
        try:
            in_hand = {"attempt_ids": list(self._boxes)}
            arguments = (self._worker_name, self._statistics())
            worker = await call_method(self._store, "update_worker", arguments, in_hand)
        except Exception as error:  # noqa: BLE001 - a store of the user's own may raise anything
            log.warning("a heartbeat of %s was lost: %s", self._worker_name, error)
        else:
            self._tell(getattr(worker, "unwanted_attempts", ()))

    def _tell(self, unwanted: Iterable[str]) -> None:
        if unwanted:
            self._on_unwanted(unwanted)

    async def _upload(self) -> None:
        """Send what waits in all boxes, in as few calls as possible."""
        taken = [(box, spans) for box in list(self._boxes.values()) if (spans := box.begin_sending())]
        if not taken:
            return
        unsent: list[Span] = []
        try:
            every = [span for _, spans in taken for span in spans]
            for start in range(0, len(every), MAX_SPANS):
                unsent = every[start:]
                await self._send(every[start : start + MAX_SPANS])
            unsent = []
        except Exception as error:  # noqa: BLE001 - the same
            log.warning("%d spans could not be stored and will be sent again: %s", len(unsent), error)
        finally:
            left = {id(span) for span in unsent}
            for box, spans in taken:
                box.end_sending(unsent=[span for span in spans if id(span) in left])

    async def _send(self, spans: list[Span]) -> None:
        try:
            stored = await self._store.add_many_spans(spans)
        except InvalidInputError as error:
            await send_one_by_one(self._store, spans, error)
        else:
            self._tell(getattr(stored, "unwanted", ()))

    async def _release(self) -> None:
        """Give back what the store keeps for this loop, which ends now."""
        release = getattr(self._store, "release_loop", None)
        if release is not None:
            await release()


async def send_one_by_one(store: LightningStore, spans: Iterable[Span], error: Exception) -> None:
    """One bad span refuses its whole batch: keep the good ones."""
    for span in spans:
        try:
            await store.add_many_spans([span])
        except InvalidInputError:
            log.warning("the span %r was refused and is left out: %s", span.name, error)
