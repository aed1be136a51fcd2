"""`Recorder`: brings spans to the store, many in one call.

Invariants:
- `write` returns when the store has the span, or after `record_seconds`; then the span is still on its way;
- spans that arrive while a call to the store is under way leave together in the next one;
- a span that the store refuses is left out and named in the log; one that it cannot take now is kept and tried again,
  up to `max_bytes` for all that wait.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..errors import StoreError, describe
from ..store import LightningStore
from ..types import Span, StoredSpans

log = logging.getLogger(__name__)

MAX_TOGETHER = 1000
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
SPAN_BYTES = 512  # of a span without its attributes

Heard = Callable[[Sequence[Span], StoredSpans], object]


class _Entry:
    """A span on its way, and whoever waits for it."""

    __slots__ = ("arrived", "size", "span")

    def __init__(self, span: Span, arrived: "asyncio.Future[bool]") -> None:
        self.span, self.arrived, self.size = span, arrived, _size_of(span)

    def tell(self, *, is_stored: bool) -> None:
        if not self.arrived.done():
            self.arrived.set_result(is_stored)


class Recorder:
    """Belongs to one event loop. `heard` is called with every receipt of the store."""

    def __init__(
        self,
        store: LightningStore,
        *,
        record_seconds: float = 5.0,
        max_bytes: int = 256 * 2**20,
        heard: Heard | None = None,
    ) -> None:
        self.lost = 0
        """Spans that never reached the store."""
        self._store, self._record_seconds, self._max_bytes, self._heard = store, record_seconds, max_bytes, heard
        self._waiting: list[_Entry] = []
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._is_away = self._is_slow = False

    @property
    def waiting_bytes(self) -> int:
        """Roughly how much waits for the store."""
        return self._bytes

    async def write(self, span: Span) -> bool:
        """Whether the store has the span now. When the caller is cancelled, the span is written all the same."""
        loop = asyncio.get_running_loop()
        entry = _Entry(span, loop.create_future())
        if self._bytes + entry.size > self._max_bytes:
            self._lose(entry, "the buffer for a store that does not respond is full")
            return False
        self._waiting.append(entry)
        self._bytes += entry.size
        if self._sending is None:
            self._sending = loop.create_task(self._send_all())
        timer = loop.call_later(self._record_seconds, self._let_go, entry)
        try:
            return await entry.arrived
        finally:
            timer.cancel()

    async def aclose(self, timeout: float = 30.0) -> None:
        """Write what is left, for at most `timeout` seconds."""
        if self._sending is None:
            return
        await asyncio.wait((self._sending,), timeout=timeout)
        if self._sending is not None:
            self._sending.cancel()
            left, self._waiting = self._waiting, []
            for entry in left:
                self._lose(entry, "the gateway stopped while the store did not respond")

    # -- the way to the store ------------------------------------------------------------------------

    async def _send_all(self) -> None:
        pause = FIRST_PAUSE
        try:
            while self._waiting:
                batch = self._waiting[:MAX_TOGETHER]
                kept = await self._send(batch)
                self._waiting[: len(batch)] = kept
                if kept:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    pause = FIRST_PAUSE
        finally:
            self._sending = None

    async def _send(self, entries: list[_Entry]) -> list[_Entry]:
        """Those that the store cannot take now."""
        spans = [entry.span for entry in entries]
        try:
            stored = await self._store.add_many_spans(spans)
        except (StoreError, OSError) as error:
            self._note_away(error)
            return entries
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one span must not hold up the others
            return await self._send_apart(entries, error)
        self._is_away = self._is_slow = False
        for entry in entries:
            self._bytes -= entry.size
            entry.tell(is_stored=True)
        if self._heard is not None:
            self._heard(spans, stored)
        return []

    async def _send_apart(self, entries: list[_Entry], error: Exception) -> list[_Entry]:
        """One bad span refuses its whole batch: keep the good ones."""
        if len(entries) > 1:
            return [kept for entry in entries for kept in await self._send([entry])]
        self._bytes -= entries[0].size
        self._lose(entries[0], f"the store refused it: {describe(error)}")
        return []

    def _lose(self, entry: _Entry, why: str) -> None:
        self.lost += 1
        span = entry.span
        log.error("a call of rollout %r, attempt %r was not recorded: %s", span.rollout_id, span.attempt_id, why)
        entry.tell(is_stored=False)

    def _let_go(self, entry: _Entry) -> None:
        """The store is slow: the agent gets the end of its answer, and the span follows."""
        if not self._is_slow:
            self._is_slow = True
            log.warning(
                "the store has not stored a span within %g s; agents no longer wait for it", self._record_seconds
            )
        entry.tell(is_stored=False)

    def _note_away(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            log.error("the store cannot store spans at the moment (%s); they are buffered and retried", error)


def _size_of(span: Span) -> int:
    """Roughly, and cheap: texts and lists are what is large."""
    size = SPAN_BYTES
    for value in span.attributes.values():
        kind = type(value)
        if kind is str:
            size += len(value)
        elif kind is list:
            size += 16 * len(value)
    return size
