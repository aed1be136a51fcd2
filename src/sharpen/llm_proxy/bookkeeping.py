"""What is written down about a call when it ends: its cost, its span, and its line in the record.

Everything is written once, whatever way a call ends. What an agent sent or got passes the redaction first.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

from ..errors import describe
from ..semconv import LightningLLMAttributes
from .budgets.budget import Budget
from .budgets.estimates import with_estimate
from .calls import Call, Refusal, Said, Upstream, UpstreamAnswer
from .genai import attributes_of, span_of
from .models.keys import HIDDEN
from .reading.base import Reading, reading_for
from .recorder import Recorder
from .recording.exchanges import MAX_TAPE_BYTES, Tape, exchange_attributes, exchange_in
from .recording.record import RecordFile
from .recording.redaction import Redact
from .retries import Choice
from .upstreams.outgoing import secrets_of

log = logging.getLogger(__name__)

WEIGHTS_VERSION_HEADERS = ("x-sharpen-weights-version", "x-weights-version")


class Passage:
    """One call on its way, and what is known about it so far."""

    __slots__ = ("call", "first_seconds", "has_entered", "is_admitted", "is_answering", "is_counted", "is_noted",
                 "reading", "started", "status", "tape", "upstream")  # fmt: skip

    def __init__(self, call: Call) -> None:
        self.call = call
        self.started = time.monotonic()
        self.first_seconds: float | None = None
        self.upstream: Upstream | None = None
        self.status: int | None = None
        self.reading: Reading | None = None
        self.tape: Tape | None = None
        self.has_entered = False
        """Whether it came through the gate."""
        self.is_admitted = False
        self.is_counted = False
        """Whether the budget has counted it as refused."""
        self.is_answering = False
        """Whether the agent has the head of an answer."""
        self.is_noted = False

    def begin(self, upstream: Upstream, answer: UpstreamAnswer) -> dict[str, str]:
        """The head of an answer has come; gives its headers by name."""
        headers = dict(answer.headers)
        self.upstream, self.status = upstream, answer.status
        told = (headers.get(name) for name in WEIGHTS_VERSION_HEADERS)
        version = next(filter(None, told), None) or getattr(_entry(upstream), "weights_version", None)
        self.reading = reading_for(
            self.call.api,
            headers.get("content-type", ""),
            status=answer.status,
            content_encoding=headers.get("content-encoding", ""),
            weights_version=None if version is None else str(version),
        )
        if self.tape is not None:
            self.tape.begin(answer.status, answer.headers)
        return headers

    def secrets(self) -> list[str]:
        """Keys that were sent along, which nobody may read where they are repeated."""
        return secrets_of(self.call.headers, _entry(self.upstream))

    def feed(self, piece: bytes) -> None:
        """A piece of the answer has come."""
        assert self.reading is not None
        if self.first_seconds is None:
            self.first_seconds = time.monotonic() - self.started
        self.reading.feed(piece)
        if self.tape is not None:
            self.tape.feed(piece)


class Books:
    """Settles calls and writes their spans; with a `record` or `keeps_exchanges`, the exchange itself as well.

    `redaction` must not raise: a `Redaction` does not, whatever the user's hook does.
    """

    def __init__(
        self,
        budget: Budget,
        recorder: Recorder,
        choice: Choice,
        *,
        capture_content: bool = True,
        redaction: Redact | None = None,
        record: RecordFile | None = None,
        keeps_exchanges: bool = False,
    ) -> None:
        self.budget, self.recorder, self._choice = budget, recorder, choice
        self._capture_content, self._redact, self._record = capture_content, redaction or None, record
        self._keeps_exchanges = keeps_exchanges or record is not None
        self._has_told_of_parts = False

    def open(self, call: Call) -> Passage:
        passage = Passage(call)
        if self._keeps_exchanges:
            passage.tape = Tape(call)
        return passage

    async def note(self, passage: Passage, *, error: str | None = None) -> None:
        """The answer has come to its end or, where there is an `error`, will not. Returns when the span is stored."""
        if passage.is_noted:
            return
        passage.is_noted = True
        try:
            await self._settle(passage, error)
        except Exception:
            # The agent's answer is worth more than its record.
            log.exception("call %s could not be recorded", passage.call.call_id)

    async def _settle(self, passage: Passage, error: str | None) -> None:
        reading, upstream = passage.reading, passage.upstream
        said = Said(is_complete=False) if reading is None else reading.finish(error is None)
        if error is not None:
            said.error = error
        if reading is not None and (passage.status or 0) < 300:
            said = with_estimate(passage.call, said)
        cost = self.budget.settle(passage.call, said, _entry(upstream))
        if upstream is not None:
            self._choice.settled(upstream, said.usage)
        await self._write(passage, said, self._attributes(passage, said, cost))

    async def note_refusal(self, passage: Passage, refusal: Refusal) -> None:
        """The gateway answers by itself."""
        passage.is_noted = True
        if not passage.is_counted:
            self.budget.refuse(passage.call)
        if refusal.code in ("unknown_attempt", "store_unavailable"):
            return  # there is nothing that a span could belong to, or nobody to ask
        said = Said(error=refusal.message, is_complete=False)
        try:
            refused = {LightningLLMAttributes.REFUSED.value: refusal.code}
            await self._write(passage, said, self._attributes(passage, said, None) | refused)
        except Exception:
            log.exception("the refusal of call %s could not be recorded", passage.call.call_id)

    def _attributes(self, passage: Passage, said: Said, cost: float | None) -> dict[str, Any]:
        if passage.call.place is None:
            return {}  # there is no attempt that a span could belong to
        upstream = passage.upstream
        return attributes_of(
            passage.call,
            said,
            upstream_name=None if upstream is None else upstream.name,
            engine=getattr(upstream, "engine", None),
            cost=cost,
            first_seconds=passage.first_seconds,
            last_seconds=time.monotonic() - passage.started,
            capture_content=self._capture_content,
            status=passage.status,
        )

    async def _write(self, passage: Passage, said: Said, attributes: dict[str, Any]) -> None:
        call, exchange = passage.call, _exchange(passage, said)
        attributes = _hidden(attributes | exchange, passage.secrets())
        if self._redact is not None:
            attributes = self._redact(attributes)
        if exchange:
            self._append(call, attributes)
        if exchange and not self._capture_content:
            attributes = {name: value for name, value in attributes.items() if name not in exchange}
        if call.place is not None:
            await self.recorder.write(span_of(call, said, attributes))

    async def aclose(self) -> None:
        """Write what is left."""
        await self.recorder.aclose()
        if self.recorder.lost:
            log.error("%d calls are missing in the store: their spans could not be written", self.recorder.lost)
        await self.budget.aclose()

    def _append(self, call: Call, attributes: dict[str, Any]) -> None:
        """The record holds what the redaction let through."""
        if self._record is None and self._redact is None:
            return
        rollout_id, attempt_id = (call.place.rollout_id, call.place.attempt_id) if call.place else (None, None)
        exchange = exchange_in(attributes, rollout_id=rollout_id, attempt_id=attempt_id)
        if exchange is None:
            self._tell_of_parts()
            return
        try:
            if self._record is not None:
                self._record.append(exchange)
        except (OSError, ValueError) as error:
            log.error("call %s is missing in the record: %s", call.call_id, describe(error))

    def _tell_of_parts(self) -> None:
        if not self._has_told_of_parts:
            log.warning("the redaction removes parts of raw exchanges: these calls cannot be replayed (logged once)")
        self._has_told_of_parts = True


def _exchange(passage: Passage, said: Said) -> dict[str, Any]:
    if passage.tape is None or passage.reading is None:
        return {}
    if passage.tape.is_too_long:
        log.warning(
            "the exchange of call %s exceeds %d bytes: it is not recorded and cannot be replayed",
            passage.call.call_id,
            MAX_TAPE_BYTES,
        )
        return {}
    try:
        return exchange_attributes(passage.tape.exchange(is_complete=said.is_complete))
    except RecursionError:
        log.warning("call %s is missing in the record: its request is nested too deeply", passage.call.call_id)
        return {}


def _hidden(attributes: dict[str, Any], secrets: Sequence[str]) -> dict[str, Any]:
    """Without keys that an upstream, or the agent itself, has repeated."""
    for secret in secrets:
        for name, value in attributes.items():
            if isinstance(value, str) and secret in value:
                attributes[name] = value.replace(secret, HIDDEN)
    return attributes


def _entry(upstream: Upstream | None) -> Any:
    """The entry of the model list that an upstream stands for; a replay has none."""
    return getattr(upstream, "entry", None)
