"""Texts of sampled tokens: only in the raw exchanges of a gateway that records, where log-probabilities were asked."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..llm_proxy.reading.sse import EventStream
from ..llm_proxy.recording.exchanges import Exchange, exchange_of_span
from ..types import Span

log = logging.getLogger(__name__)
_LOGPROBS = b'"logprobs"'


def token_texts(spans: Sequence[Span]) -> list[str] | None:
    """The text of each token of the first choice; None where no span holds them."""
    for span in spans:
        exchange = exchange_of_span(span)
        if exchange is not None and exchange.content_encoding is None and _LOGPROBS in exchange.body:
            return [text for body in _bodies(exchange) for text in _texts(body)] or None
    return None


def _bodies(exchange: Exchange) -> Iterator[Mapping[str, Any]]:
    """The answer, or the events of its stream."""
    events = [exchange.body]
    if "event-stream" in exchange.content_type:
        stream = EventStream()
        events = [*stream.feed(exchange.body), *stream.end()]
    for event in events:
        if event.strip() == b"[DONE]":
            continue
        try:
            body = msgspec.json.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.debug("a part of the answer of call %s is no JSON: %s", exchange.call_id, error)
            continue
        if isinstance(body, dict):
            yield body


def _texts(body: Mapping[str, Any]) -> Iterator[str]:
    """In the form of chat, or in that of completions."""
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        logprobs = choice.get("logprobs") if isinstance(choice, dict) and not choice.get("index") else None
        if not isinstance(logprobs, dict):
            continue
        content = logprobs.get("content")
        told = [each.get("token") for each in content if isinstance(each, dict)] if isinstance(content, list) else None
        yield from (text for text in told or logprobs.get("tokens") or [] if isinstance(text, str))
