"""What a test expects to find in the span of a call."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sharpen.semconv import LightningLLMAttributes
from sharpen.types import Span

_IDS = ("token_ids", "prompt_token_ids", "logprobs")


@dataclass(frozen=True)
class Read:
    """The parts of a span that tests compare."""

    text: str
    reasoning: str
    tool_calls: list[tuple[str, Any]]
    finish_reasons: list[str]
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]


def read_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def said_by(span: Span) -> Read:
    """The first choice."""
    attributes = span.attributes
    messages = read_json(attributes.get("gen_ai.output.messages") or "[]")
    parts = messages[0]["parts"] if messages else []
    return Read(
        text="".join(part["content"] for part in parts if part["type"] == "text"),
        reasoning="".join(part["content"] for part in parts if part["type"] == "reasoning"),
        tool_calls=[(part["name"], read_json(part["arguments"])) for part in parts if part["type"] == "tool_call"],
        finish_reasons=list(attributes.get("gen_ai.response.finish_reasons") or []),  # type: ignore[arg-type]
        prompt_ids=_numbers(attributes, LightningLLMAttributes.PROMPT_TOKEN_IDS),
        response_ids=_numbers(attributes, LightningLLMAttributes.RESPONSE_TOKEN_IDS),
        logprobs=_numbers(attributes, LightningLLMAttributes.RESPONSE_LOGPROBS),
    )


def _numbers(attributes: Mapping[str, Any], name: str) -> list[Any]:
    value = read_json(attributes.get(name) or [])
    return list(value[0]) if value and isinstance(value[0], Sequence) else list(value)


def is_complete(span: Span, request: Mapping[str, Any], *, has_ids: bool = False) -> None:
    """Everything that is known of a call that went well stands in its span."""
    attributes = span.attributes
    assert span.status.status_code != "ERROR", span.status
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time
    assert attributes["gen_ai.request.model"] == request["model"]
    if _has_usage(request):
        assert attributes["gen_ai.usage.input_tokens"]
    if "messages" in request or "prompt" in request or "instructions" in request:
        _has_said(span)
    if "temperature" in request:
        assert attributes["gen_ai.request.temperature"] == request["temperature"]
    if "tools" in request:
        assert "weather" in json.dumps(attributes["gen_ai.tool.definitions"])
    if has_ids:
        read = said_by(span)
        assert read.prompt_ids
        assert len(read.response_ids) == len(read.logprobs) > 0


def _has_usage(request: Mapping[str, Any]) -> bool:
    """OpenAI's streams tell their usage only when asked; the other APIs always do."""
    is_silent = request.get("stream") and ("messages" in request or "prompt" in request) and "max_tokens" not in request
    return not is_silent or "include_usage" in (request.get("stream_options") or {})


def _has_said(span: Span) -> None:
    attributes, read = span.attributes, said_by(span)
    assert attributes["gen_ai.response.id"]
    assert attributes["gen_ai.response.model"] == attributes["gen_ai.request.model"]
    assert read.finish_reasons
    assert read.text or read.tool_calls
    assert "gen_ai.input.messages" in attributes


def without_ids(result: Any) -> Any:
    """A result of the SDK as plain data, without what an engine adds when it is asked for token ids."""
    if isinstance(result, BaseModel):
        return without_ids(result.model_dump())
    if isinstance(result, list | tuple):
        return [without_ids(each) for each in result]
    if isinstance(result, dict):
        return {key: without_ids(value) for key, value in result.items() if key not in _IDS}
    return result
