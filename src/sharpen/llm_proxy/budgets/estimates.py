"""Tokens that nobody has told: of an answer that was read without its usage, and of a call that is yet to be answered.

A token of text is taken to have four bytes. Images and sounds do not count: their bytes say nothing about tokens.
"""

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from ..asking.asked import asked
from ..calls import Call, Said, Usage

BYTES_A_TOKEN = 4
UNKNOWN_ANSWER = 1000  # tokens of an answer, as long as none has come
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MEDIA = ("blob", "uri", "file")
_NO_TEXT = ("type", "id", "name", "modality", "mime_type")


def with_estimate(call: Call, said: Said) -> Said:
    """What was said with at least the tokens that were read, where the upstream did not tell them all."""
    told = said.usage
    if said.response_token_ids or (told is not None and said.is_complete):
        return said
    output = _tokens(said.output_messages)
    if told is not None and told.output_tokens >= output:
        return said
    input_tokens = _question_tokens(call) if told is None else told.input_tokens
    said.usage = Usage(input_tokens, output, 0 if told is None else told.cached_tokens)
    said.is_usage_estimated = True
    return said


def longest_answer(call: Call) -> int | None:
    """The tokens that a request allows its answer, if it says."""
    found = (call.request.get(name) for name in _LIMITS)
    return next((each for each in found if isinstance(each, int) and not isinstance(each, bool) and each > 0), None)


def body_tokens(call: Call) -> int:
    """Roughly, and cheap."""
    return len(call.body) // BYTES_A_TOKEN


def _question_tokens(call: Call) -> int:
    try:
        question = asked(call.api, call.request)
        return _tokens(question.messages) + _tokens([{"parts": [*question.instructions, *question.tools]}])
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError):
        return body_tokens(call)  # a request that nobody foresaw


def _tokens(messages: Iterable[dict[str, Any]]) -> int:
    parts = (part for message in messages for part in message.get("parts") or ())
    size = sum(_size(value) for part in parts if part.get("type") not in _MEDIA for value in _texts(part))
    return math.ceil(size / BYTES_A_TOKEN)


def _texts(part: dict[str, Any]) -> list[Any]:
    return [value for name, value in part.items() if name not in _NO_TEXT and value is not None]


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return 0  # no text
