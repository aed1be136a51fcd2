"""Entries of a transcript: what happened in an attempt, as a person reads it, and what a single span says of it.

One LLM call is one entry, however many spans recorded it. Spans that mean nothing to a person (those of frameworks)
have no entry, unless they failed; the waterfall shows them.
"""

from typing import Any, Literal

import msgspec

from ..adapter.base import OPERATION_NAME, is_gateway_call, is_llm_call
from ..adapter.tree import reward_of
from ..chat.wire import json_text
from ..semconv import (
    AGL_ANNOTATION,
    AGL_EXCEPTION,
    AGL_MESSAGE,
    AGL_OBJECT,
    AGL_OPERATION,
    SHARPEN_LLM_CALL,
    LightningSpanAttributes,
)
from ..types import Span

EntryKind = Literal["call", "message", "tool", "operation", "object", "annotation", "reward", "error"]

OPERATION = LightningSpanAttributes.OPERATION_NAME.value
_TOOL_NAMES = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
_TOOL_ARGUMENTS = ("gen_ai.tool.call.arguments", "tool.parameters", "traceloop.entity.input", "input.value")
_TOOL_RESULTS = ("gen_ai.tool.call.result", "tool.result", "traceloop.entity.output", "output.value")
_KIND_KEYS = ("traceloop.span.kind", "openinference.span.kind", "agentops.span.kind")
_EMITTED: dict[str, EntryKind] = {
    AGL_MESSAGE: "message",
    AGL_OBJECT: "object",
    AGL_ANNOTATION: "annotation",
    AGL_EXCEPTION: "error",
    AGL_OPERATION: "operation",
}


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call that a model requested or an agent ran; `result` is None if none was recorded."""

    id: str | None
    name: str
    arguments: str
    result: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message. `name` is the speaker, or the id of the call if the message is the result of a tool; `thoughts` is
    the reasoning before the answer."""

    role: str
    text: str
    tool_calls: list[ToolCall] = []
    name: str | None = None
    thoughts: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """What calls used. `cost` is in US dollars, None if no price is known; `seconds` is the duration of the calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    calls: int = 0
    seconds: float = 0.0

    def plus(self, other: "Usage") -> "Usage":
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            sum(costs) if costs else None,
            self.calls + other.calls,
            self.seconds + other.seconds,
        )


class TokenStrip(msgspec.Struct, frozen=True):
    """The tokens of one call.

    `logprobs` and `texts` are as long as `response_ids`, or as the answer if only they are known. A missing
    log-probability is None, and `texts` is None if the spans hold no texts.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float | None]
    texts: list[str] | None = None
    weights_version: str | None = None


class RewardMark(msgspec.Struct, frozen=True):
    """One reward of a span; the default one has no name. `turn` is the number, from 1, of the agent's call before
    it."""

    span_id: str
    sequence_id: int
    name: str | None
    value: float
    turn: int | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened.

    For a `call`, `messages` are those that are new in it and `num_repeated` is the number of messages it sent again;
    `answer` is the first choice; `reward` is the first one after this turn; `turn` is its number from 1, None if the
    call was made to compute a reward; `text` reports failed tries before it. A `tool` has one of `tool_calls`, an
    `operation` has `input` and `output`; all others have their content in `text`. Results of tools are kept with the
    calls that requested them, not among the messages.
    """

    kind: EntryKind
    span_id: str
    title: str
    start: float | None = None
    end: float | None = None
    messages: list[Message] = []
    answer: Message | None = None
    tool_calls: list[ToolCall] = []
    text: str | None = None
    reward: float | None = None
    rewards: dict[str, float] = {}
    error: str | None = None
    model: str | None = None
    usage: Usage | None = None
    tokens: TokenStrip | None = None
    num_repeated: int = 0
    turn: int | None = None
    agent: str | None = None
    further_answers: list[Message] = []
    input: str | None = None
    output: str | None = None


# -- what a span says --------------------------------------------------------------------------------


def kind_of(span: Span) -> EntryKind | None:
    """Return the kind of entry that a span makes; None for spans that only contain others."""
    if is_call(span):
        return "call"
    if is_tool(span):
        return "tool"
    if span.name in _EMITTED:
        return _EMITTED[span.name]
    if reward_of(span) is not None:
        return "reward"
    if OPERATION in span.attributes:
        return "operation"
    return "error" if span.status.status_code == "ERROR" else None


def is_call(span: Span) -> bool:
    """Return whether a span records an LLM call, including one for embeddings."""
    return span.name == SHARPEN_LLM_CALL or is_gateway_call(span) or is_llm_call(span)


def is_tool(span: Span) -> bool:
    """Return whether an agent ran a tool in this span, as any of the usual recorders writes it."""
    if span.attributes.get(OPERATION_NAME) == "execute_tool":
        return True
    return any(str(span.attributes.get(key, "")).lower() == "tool" for key in _KIND_KEYS)


def tool_call_of(span: Span) -> ToolCall:
    """Return the call that a tool's span recorded."""
    call_id = span.attributes.get("gen_ai.tool.call.id")
    result = _first(span, _TOOL_RESULTS)
    return ToolCall(
        None if call_id is None else str(call_id),
        as_text(_first(span, _TOOL_NAMES)) or span.name.removeprefix("execute_tool "),
        as_text(_first(span, _TOOL_ARGUMENTS)),
        None if result is None else as_text(result),
    )


def error_of(span: Span) -> str | None:
    """Return the error that a span recorded; None if it did not fail."""
    if span.status.status_code != "ERROR":
        return None
    if span.status.description:
        return span.status.description
    raised = next((event for event in span.events if event.name == "exception"), None)
    if raised is not None:
        kind, message = (str(raised.attributes.get(f"exception.{key}") or "") for key in ("type", "message"))
        return f"{kind}: {message}" if message else kind
    return str(span.attributes.get("error.type") or "it failed without a recorded reason")


def as_text(value: Any) -> str:
    """Return a string as it is, None as an empty string, and everything else as JSON."""
    return "" if value is None else json_text(value)


def _first(span: Span, keys: tuple[str, ...]) -> object:
    return next((span.attributes[key] for key in keys if span.attributes.get(key) is not None), None)
