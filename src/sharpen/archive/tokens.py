"""Token strips: what a model read and sampled in one call, token by token, as far as its spans hold it.

Texts of tokens stand only in the raw exchanges of a gateway that records, where log-probabilities were asked for.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from ..adapter.calls import (
    PROMPT_TOKEN_IDS,
    RESPONSE_LOGPROBS,
    RESPONSE_TOKEN_IDS,
    LLMCall,
    find_calls,
    is_gateway_call,
    is_llm_call,
)
from ..adapter.tree import build_tree
from ..chat.reading import ResponseReader
from ..checks import is_int
from ..llm_proxy.recording.exchanges import exchange_of_span
from ..semconv import LightningLLMAttributes
from ..types import Span

_VERSION = LightningLLMAttributes.WEIGHTS_VERSION.value


class TokenStrip(msgspec.Struct, frozen=True):
    """The tokens of one call. `logprobs` and `texts` are as long as `response_ids`, or as the answer where only they
    are known; a log-probability that nobody told is None, and `texts` is None where the spans hold no texts."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float | None]
    texts: list[str] | None = None
    weights_version: str | None = None


def token_strip(call: LLMCall) -> TokenStrip | None:
    """The strip of a call's first choice; None where its spans know no tokens."""
    prompt_ids = _ids(call.numbers(*PROMPT_TOKEN_IDS))
    response_ids = _ids(call.numbers(*RESPONSE_TOKEN_IDS))
    logprobs = [_number(value) for value in call.numbers(*RESPONSE_LOGPROBS)]
    if not response_ids and not logprobs:
        return None
    count = len(response_ids) or len(logprobs)
    texts = _token_texts(call.spans)
    return TokenStrip(
        prompt_ids,
        response_ids,
        (logprobs + [None] * count)[:count],
        texts if len(texts) == count else None,
        _version(call),
    )


def token_strips(spans: Sequence[Span]) -> dict[str, TokenStrip]:
    """The strips of all calls among the spans, by the id of the call's span."""
    calls = find_calls(build_tree(spans), lambda span: is_llm_call(span) or is_gateway_call(span))
    found = ((call.node.span.span_id, token_strip(call)) for call in calls)
    return {span_id: strip for span_id, strip in found if strip is not None}


def _token_texts(spans: Sequence[Span]) -> list[str]:
    """Return the texts of the first choice; nothing where no span holds them."""
    for span in spans:
        exchange = exchange_of_span(span)
        if exchange is not None and exchange.content_encoding is None and b'"logprobs"' in exchange.body:
            reader = ResponseReader(exchange.api, is_stream="event-stream" in exchange.content_type)
            reader.feed(exchange.body)
            return next((choice.token_texts for choice in reader.finish().choices), [])
    return []


def _ids(values: Sequence[Any]) -> list[int]:
    return [value for value in values if is_int(value)]


def _number(value: Any) -> float | None:
    return float(value) if is_int(value) or isinstance(value, float) else None


def _version(call: LLMCall) -> str | None:
    value = call.written(_VERSION)
    return None if value is None else str(value)
