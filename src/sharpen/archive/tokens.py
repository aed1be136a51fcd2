"""Token strips: what a model read and sampled in one call, token by token, as far as its spans hold it."""

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
from ..semconv import LightningLLMAttributes
from ..types import Span
from .token_texts import token_texts

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
    texts = token_texts(call.spans)
    return TokenStrip(
        prompt_ids,
        response_ids,
        (logprobs + [None] * count)[:count],
        texts if texts is not None and len(texts) == count else None,
        _version(call),
    )


def token_strips(spans: Sequence[Span]) -> dict[str, TokenStrip]:
    """The strips of all calls among the spans, by the id of the call's span."""
    calls = find_calls(build_tree(spans), lambda span: is_llm_call(span) or is_gateway_call(span))
    found = ((call.node.span.span_id, token_strip(call)) for call in calls)
    return {span_id: strip for span_id, strip in found if strip is not None}


def _ids(values: Sequence[Any]) -> list[int]:
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _version(call: LLMCall) -> str | None:
    value = call.written(_VERSION)
    return None if value is None else str(value)
