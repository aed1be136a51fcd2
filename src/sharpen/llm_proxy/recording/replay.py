"""Answers from a record instead of an upstream: by the request's content, and in the order of the record.

Each recorded exchange answers once. Where a request was recorded several times, an attempt goes on with the answers of
the recorded attempt that it began with, and one that has the same ids as in the record gets its own. A replay of one
rollout starts anew for every rollout that asks, so that an agent can be run again and again.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from ...errors import ConfigError, UnknownIdError
from ...semconv import SHARPEN_LLM_CALL
from ...store import LightningStore
from ..calls import Call, Place, Refusal
from .differences import nearest_difference
from .exchanges import Exchange, exchange_of_span, key_of
from .record import WrittenRecord
from .shelf import Reader, Shelf

PAGE = 100
MAX_READERS = 10_000


class ReplayedAnswer:
    """A recorded answer, part by part as it came."""

    def __init__(self, exchange: Exchange) -> None:
        self.status: int = exchange.status
        self.headers: Sequence[tuple[str, str]] = exchange.headers
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _, data in self._exchange.chunks():
            yield data
        if not self._exchange.is_complete:
            raise ConnectionResetError("the recorded response ends here: it was incomplete when it was recorded")

    async def aclose(self) -> None:
        """There is no connection to give back."""


class Replay:
    """An upstream that answers from a record, without delay: a file, or exchanges that were read from the store."""

    def __init__(self, record: str | os.PathLike[str] | Sequence[Exchange], rollout_id: str | None = None) -> None:
        self._record, where = _opened(record)
        self._shelf = Shelf(self._record, rollout_id)
        if rollout_id is not None and not len(self._shelf):
            raise ConfigError(f"{where} has no call of rollout {rollout_id!r}{_known_rollouts(self._record)}")
        self._where = f"{where} of rollout {rollout_id!r}" if rollout_id else where
        self.name = self._where
        self._rollout_id = rollout_id
        self._searching = asyncio.Lock()
        self._readers: OrderedDict[str | None, Reader] = OrderedDict()

    @classmethod
    async def of_rollout(cls, store: LightningStore, rollout_id: str) -> "Replay":
        """A replay of what the store holds of a rollout."""
        return cls(await record_of_rollout(store, rollout_id), rollout_id)

    async def send(self, call: Call) -> ReplayedAnswer:
        """The recorded answer; `Refusal` where there is none, or none is left."""
        call.added, call.changes = frozenset(), {}
        key = key_of(call.api, call.request)
        if key not in self._shelf:
            raise await self._not_recorded(call)
        attempt = (call.place.rollout_id, call.place.attempt_id) if call.place else None
        index = self._reader(call.place).take(key, attempt)
        if index is None:
            raise self._used_up(call, len(self._shelf.with_key(key)))
        return ReplayedAnswer(self._record[index])

    async def aclose(self) -> None:
        """Close the file."""
        if isinstance(self._record, WrittenRecord):
            self._record.close()

    def _reader(self, place: Place | None) -> Reader:
        """All use up a whole record together; the record of one rollout is there for each that asks."""
        whose = place.rollout_id if place and self._rollout_id else None
        reader = self._readers.setdefault(whose, Reader(self._shelf))
        self._readers.move_to_end(whose)
        if len(self._readers) > MAX_READERS:
            self._readers.popitem(last=False)
        return reader

    async def _not_recorded(self, call: Call) -> Refusal:
        # One search at a time, beside the loop: it reads the whole record.
        async with self._searching:
            candidates = (self._record[index] for index in self._shelf.order)
            nearest = await asyncio.to_thread(nearest_difference, call, candidates)
        message = f"this {call.api} request for model {call.model!r} is not in {self._where}. {nearest}"
        return Refusal(404, "not_recorded", message, should_retry=False)

    def _used_up(self, call: Call, count: int) -> Refusal:
        times, was = ("once", "this response has") if count == 1 else (f"{count} times", "all these responses have")
        message = (
            f"this {call.api} request for model {call.model!r} was recorded {times} in {self._where}, and {was} "
            "been used: the agent sends it more often than in the recording; restart the gateway to start over"
        )
        return Refusal(404, "record_used_up", message, should_retry=False)


async def record_of_rollout(store: LightningStore, rollout_id: str) -> list[Exchange]:
    """Return the recorded exchanges of a rollout from its spans in the store.

    Raises:
        UnknownIdError: If the rollout does not exist.
        ConfigError: If no call of it was recorded.
    """
    found: list[Exchange] = []
    offset = 0
    while True:
        page = await store.query_spans(rollout_id, name=SHARPEN_LLM_CALL, limit=PAGE, offset=offset)
        found += [exchange for exchange in map(exchange_of_span, page) if exchange is not None]
        offset += len(page)
        if not len(page) or offset >= page.total:
            break
    if not found:
        if await store.get_rollout_by_id(rollout_id) is None:
            raise UnknownIdError(f"rollout {rollout_id!r} does not exist in the store")
        raise ConfigError(
            f"rollout {rollout_id!r} has {offset} LLM calls in the store, none of them with its raw exchange: "
            "only calls through a gateway with mode='record' can be replayed"
        )
    return found


def _opened(record: str | os.PathLike[str] | Sequence[Exchange]) -> tuple[Sequence[Exchange], str]:
    """The exchanges, and what errors call them."""
    if isinstance(record, str | os.PathLike):
        path = Path(record)
        return WrittenRecord(path), f"the record {str(path)!r}"
    return record, "the record"


def _known_rollouts(record: Sequence[Exchange]) -> str:
    known = sorted({each.rollout_id for each in record if each.rollout_id})
    more = f" and {len(known) - 5} more" if len(known) > 5 else ""
    return f": it has {', '.join(known[:5])}{more}" if known else ": its calls do not belong to any rollout"
