"""Entries: what happened in an attempt, one after the other, from its spans.

One LLM call is one entry, however many spans tell about it. Spans that say nothing to a person (those of frameworks)
have no entry, unless they failed; the waterfall shows them.
"""

from typing import Literal

import msgspec

from ..adapter.calls import is_gateway_call, is_llm_call
from ..adapter.rewards import reward_of
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
from .conversation import Message, ToolCall, Usage, as_text
from .tokens import TokenStrip

EntryKind = Literal["call", "message", "tool", "operation", "object", "annotation", "reward", "error"]

_TOOL_NAMES = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
_TOOL_ARGUMENTS = ("gen_ai.tool.call.arguments", "tool.parameters", "traceloop.entity.input", "input.value")
_TOOL_RESULTS = ("gen_ai.tool.call.result", "tool.result", "traceloop.entity.output", "output.value")
_KIND_KEYS = ("traceloop.span.kind", "openinference.span.kind", "agentops.span.kind")
_OURS: dict[str, EntryKind] = {
    AGL_MESSAGE: "message",
    AGL_OBJECT: "object",
    AGL_ANNOTATION: "annotation",
    AGL_EXCEPTION: "error",
    AGL_OPERATION: "operation",
}


class RewardMark(msgspec.Struct, frozen=True):
    """One reward of a span; the plain one has no name. `turn` is the number, from 1, of the agent's call that it came
    after."""

    span_id: str
    sequence_id: int
    name: str | None
    value: float
    turn: int | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened.

    Of a `call` the `messages` are what is new in it, and `num_repeated` is how many it sent again; `answer` is the
    first choice; `reward` is the first that came after this turn; `turn` is its number from 1, None where the call was
    made to find a reward; `text` tells of tries that failed before. A `tool` has one of `tool_calls`, an `operation`
    `input` and `output`; others have their words in `text`. Results of tools stand with the calls that asked for them,
    not among the messages.
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


def kind_of(span: Span) -> EntryKind | None:
    """What a span is to a person; None for spans that only hold others."""
    if is_call(span):
        return "call"
    if is_tool(span):
        return "tool"
    if span.name in _OURS:
        return _OURS[span.name]
    if reward_of(span) is not None:
        return "reward"
    if LightningSpanAttributes.OPERATION_NAME.value in span.attributes:
        return "operation"
    return "error" if span.status.status_code == "ERROR" else None


def is_call(span: Span) -> bool:
    """Whether a span tells of an LLM call; also of one that only embeds."""
    return span.name == SHARPEN_LLM_CALL or is_gateway_call(span) or is_llm_call(span)


def is_tool(span: Span) -> bool:
    """Whether an agent ran a tool in this span, in the words of any of the usual recorders."""
    if span.attributes.get("gen_ai.operation.name") == "execute_tool":
        return True
    return any(str(span.attributes.get(key, "")).lower() == "tool" for key in _KIND_KEYS)


def tool_call_of(span: Span) -> ToolCall:
    """The call that a tool's span recorded."""
    call_id = span.attributes.get("gen_ai.tool.call.id")
    result = _first(span, _TOOL_RESULTS)
    return ToolCall(
        None if call_id is None else str(call_id),
        as_text(_first(span, _TOOL_NAMES)) or span.name.removeprefix("execute_tool "),
        as_text(_first(span, _TOOL_ARGUMENTS)),
        None if result is None else as_text(result),
    )


def error_of(span: Span) -> str | None:
    """What went wrong in a span, in its own words; None where nothing did."""
    if span.status.status_code != "ERROR":
        return None
    if span.status.description:
        return span.status.description
    thrown = next((event for event in span.events if event.name == "exception"), None)
    if thrown is not None:
        kind, message = (str(thrown.attributes.get(f"exception.{key}") or "") for key in ("type", "message"))
        return f"{kind}: {message}" if message else kind
    return str(span.attributes.get("error.type") or "it failed, and nobody said why")


def _first(span: Span, keys: tuple[str, ...]) -> object:
    return next((span.attributes[key] for key in keys if span.attributes.get(key) is not None), None)
