"""The messages of LLM calls, as spans recorded them, and conversations in OpenAI's chat format, ready for fine-tuning.

AgentOps records the tool calls of a response as spans below the call, and leaves out an earlier response that was
passed back as the client's own object: both are put back in their place.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ..chat.messages import (
    FLAT_INPUT,
    FLAT_OUTPUT,
    FLAT_TOOLS,
    INPUT,
    INSTRUCTIONS,
    OUTPUT,
    TOOLS,
    Message,
    OpenAIMessage,
    Tool,
    joined,
    openai_contents,
    openai_message,
    parts_of,
    read_flat,
    read_flat_messages,
    read_messages,
    read_tools,
    results_apart,
)
from ..types import Span
from .base import OPERATION_NAME, LLMCall, LLMCallAdapter
from .tree import SpanNode

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class OpenAIMessages(TypedDict):
    """One conversation, which ends with the model's response, and the tools that the model was given."""

    messages: list[OpenAIMessage]
    tools: list[Tool] | None


class TraceToMessages(LLMCallAdapter[list[OpenAIMessages]]):
    """One conversation for every LLM call that counts, in the order of time, and for every choice of a call.

    A call whose messages were not recorded has none.
    """

    def adapt(self, source: "Sequence[Span] | Sequence[ReadableSpan]", /) -> list[OpenAIMessages]:
        calls = self._calls(self._tree(source))
        return [conversation for call in calls for conversation in _conversations(call)]


def _conversations(call: LLMCall) -> Iterator[OpenAIMessages]:
    prompt = [openai_message(each) for each in prompt_messages(call)]
    answers = [openai_message(each) for each in response_messages(call)]
    is_batch = call.written(OPERATION_NAME) == "text_completion" and all(each["role"] == "user" for each in prompt)
    if prompt:
        for number, answer in enumerate(answers):
            # One completion call may have several prompts; the responses to each come together.
            given = [prompt[number * len(prompt) // len(answers)]] if is_batch else prompt
            yield {"messages": [*given, answer], "tools": _tools(call)}


def prompt_messages(call: LLMCall) -> list[Message]:
    """Return the prompt, with the conversation that the API kept; results of tools are separate messages."""
    system = openai_contents(parts_of(call.read(INSTRUCTIONS)))
    opening = [Message("system", [], content=joined(system))] if system else []
    return opening + _remembered(call) + _input_messages(call)


def response_messages(call: LLMCall) -> list[Message]:
    """Return the response of the model: one message for each choice."""
    found = list(results_apart(read_messages(call.read(OUTPUT), role="assistant")))
    return found or read_flat_messages(_with_tool_spans(call, _flat(call, FLAT_OUTPUT)), role="assistant")


def _input_messages(call: LLMCall) -> list[Message]:
    found = list(results_apart(read_messages(call.read(INPUT), role="user")))
    return found or _with_lost_responses(call, read_flat_messages(_flat(call, FLAT_INPUT), role="user"))


def _remembered(call: LLMCall) -> list[Message]:
    """Return the messages before the call, from the first; APIs do not keep instructions."""
    chain: list[LLMCall] = []
    earlier = call.previous
    while earlier is not None and earlier is not call and earlier not in chain:
        chain.append(earlier)
        earlier = earlier.previous
    return [message for each in reversed(chain) for message in _input_messages(each) + response_messages(each)[:1]]


def _tools(call: LLMCall) -> list[Tool] | None:
    """Return the tools that the model could call."""
    found = read_tools(call.read(TOOLS))
    return found or read_tools(next(filter(None, (_flat(call, prefix) for prefix in FLAT_TOOLS)), [])) or None


def _flat(call: LLMCall, prefix: str) -> list[dict[str, Any]]:
    return next(filter(None, (read_flat(span.attributes, prefix) for span in call.spans)), [])


# -- what AgentOps leaves out ------------------------------------------------------------------------


def _with_tool_spans(call: LLMCall, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the responses with the tool calls that AgentOps records as spans.

    The spans do not say which of several choices they belong to: they are added to the only one that ended with tool
    calls.
    """
    called = list(_tool_spans(call, call.node))
    if not called or any("tool_calls" in answer for answer in answers):
        return answers
    answers = answers or [{}]
    places = [number for number, answer in enumerate(answers) if answer.get("finish_reason") == "tool_calls"]
    if len(answers) > 1 and len(places) != 1:
        return answers
    place = places[0] if places else 0
    return [*answers[:place], {**answers[place], "tool_calls": called}, *answers[place + 1 :]]


def _with_lost_responses(call: LLMCall, messages: list[Message]) -> list[Message]:
    """Insert the response that called a tool before the tool's result, if the messages lack it."""
    found: list[Message] = []
    known: set[Any] = set()
    for message in messages:
        wanted = None if message.result is None else message.result.id
        lost = None if wanted is None or wanted in known else _response_with(call, wanted)
        found += [message] if lost is None else [lost, message]
        known |= {each.id for part in found[-2:] for each in part.tool_calls}
    return found


def _response_with(call: LLMCall, tool_call_id: Any) -> Message | None:
    earlier = call.before
    while earlier is not None:
        if any(each["id"] == tool_call_id for each in _tool_spans(earlier, earlier.node)):
            return next((each for each in response_messages(earlier) if each.tool_calls), None)
        earlier = earlier.before
    return None


def _tool_spans(call: LLMCall, node: SpanNode) -> Iterator[dict[str, Any]]:
    """Yield the tool calls below the span of the call, or below another span of the same call."""
    for child in node.children:
        attributes = child.span.attributes
        if "tool.call.id" in attributes and attributes.get("tool.name"):
            arguments = attributes.get("tool.parameters")
            yield {"id": attributes["tool.call.id"], "name": attributes["tool.name"], "arguments": arguments or None}
        elif child.span in call.spans:
            yield from _tool_spans(call, child)
