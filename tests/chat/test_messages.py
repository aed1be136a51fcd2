"""Messages of requests and spans, and the form of OpenAI's chat API."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from sharpen.adapter import TraceToMessages
from sharpen.errors import InvalidInputError
from sharpen.semconv import SHARPEN_LLM_CALL
from sharpen.types import Span, TraceStatus
from tests.algorithm.internals import conversations_text
from tests.chat.internals import (
    Message,
    TextPart,
    ToolCall,
    ToolResult,
    openai_message,
    parse_request,
    parse_response,
    read_messages,
    request_attributes,
    response_attributes,
    results_apart,
)
from tests.llm.internals import read_messages as template_messages

from ..adapter.test_messages import _chat
from .bodies import BODIES

WEATHER = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}], "name": "ada"},
    {"role": "assistant", "content": None, "tool_calls": [WEATHER]},
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
    {"role": "assistant", "content": "It rains.", "reasoning_content": "hm"},
]


def openai_messages(messages: list[Message]) -> list[dict[str, Any]]:
    return [openai_message(message) for message in results_apart(messages)]


def test_messages_of_a_chat_request_come_back_as_they_were_sent() -> None:
    assert openai_messages(parse_request("chat", {"messages": TALK}).messages) == TALK


@given(_chat)
def test_any_chat_comes_back_from_a_request_and_from_a_span(chat: list[dict[str, Any]]) -> None:
    request = parse_request("chat", {"model": "small", "messages": chat})
    assert openai_messages(request.messages) == chat
    recorded = json.loads(request_attributes(request)["gen_ai.input.messages"])  # type: ignore[arg-type]
    assert read_messages(recorded, role="user") == request.messages


def test_the_other_apis_say_the_same_in_their_own_way() -> None:
    call, result = WEATHER["function"], {"role": "tool", "tool_call_id": "a", "content": "rain"}
    expected = [{"role": "user", "content": "Hi"}, TALK[2], result]
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "a", **call},  # type: ignore[dict-item]
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
    ]
    assert openai_messages(parse_request("responses", {"input": items}).messages) == expected
    blocks = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "rain"}]},
    ]
    assert openai_messages(parse_request("messages", {"messages": blocks}).messages) == expected


def test_results_of_tools_stand_before_the_rest_of_their_message() -> None:
    both = Message("user", [TextPart("Go on."), ToolResult("a", "rain")])
    assert [each.role for each in results_apart([both])] == ["tool", "user"]


@pytest.mark.parametrize("api", BODIES)
def test_a_recorded_call_is_read_from_its_span_as_from_its_bodies(api: Any) -> None:
    """The gateway may store either: what a conversation is made of is the same."""
    question = {"prompt": "Hi"} if api == "completions" else {"input": "Hi"}
    question = {"messages": [{"role": "user", "content": "Hi"}]} if api in ("chat", "messages") else question
    request, response = parse_request(api, {"model": "small", **question}), parse_response(api, BODIES[api])
    attributes = request_attributes(request) | response_attributes(response)
    span = Span("ro", "at", 0, "t" * 32, "s" * 16, None, SHARPEN_LLM_CALL, TraceStatus("OK"), attributes)
    stored = msgspec.json.decode(msgspec.json.encode(span), type=Span)
    found = TraceToMessages().adapt([stored])
    assert [each["messages"] for each in found] == [
        [{"role": "user", "content": "Hi"}, openai_message(answer)] for answer in response.messages
    ]


def test_content_is_left_out_of_attributes_where_it_should_be() -> None:
    request = parse_request("chat", {"model": "small", "messages": TALK, "temperature": 0.5, "user": "ada"})
    found = request_attributes(request, capture_content=False)
    found |= response_attributes(parse_response("chat", BODIES["chat"]), capture_content=False)
    text = json.dumps(found)
    assert "brief" not in text
    assert "Rome" not in text
    assert "ada" not in text
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.usage.output_tokens"] == 3


def test_keys_in_a_request_are_not_written() -> None:
    tool = {"type": "mcp", "server_url": "https://x", "headers": {"authorization": "Bearer 123"}}
    request = parse_request("responses", {"model": "small", "input": "Hi", "tools": [tool], "api_key": "123"})
    assert "123" not in json.dumps(request_attributes(request))
    assert request.tools == [tool]


def test_parts_of_unknown_types_are_kept() -> None:
    odd = {"type": "hologram", "depth": 3}
    request = parse_request("chat", {"messages": [{"role": "user", "content": [odd]}]})
    assert request.messages == [Message("user", [odd])]
    assert read_messages([{"role": "user", "parts": [odd]}], role="user") == request.messages


def test_arguments_that_are_not_json_are_kept() -> None:
    message = {"content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"a":'}}]}
    response = parse_response("chat", {"choices": [{"message": message}]})
    assert response.messages[0].tool_calls == [ToolCall("a", "f", '{"a":')]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b"\xff"], ids=repr)
def test_a_request_that_is_not_an_object_is_refused_and_such_a_response_is_told(body: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parse_request("chat", body)
    for api in ("chat", "completions", "responses", "messages", "embeddings"):
        found = parse_response(api, body)  # type: ignore[arg-type]
        assert not found.is_complete
        assert found.error is not None


# -- other readers of the package ----------------------------------------------------------------------


def test_the_engine_server_finds_its_template_messages_in_a_parsed_request() -> None:
    """Chat templates take texts instead of parts, and arguments as objects."""
    expected = template_messages(json.dumps(TALK).encode())
    for message, wanted in zip(
        results_apart(parse_request("chat", {"messages": TALK}).messages), expected, strict=True
    ):
        found = openai_message(message)
        content = found["content"] or ""
        found["content"] = "\n".join(each["text"] for each in content) if isinstance(content, list) else content
        for call in found.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        assert found == wanted


def test_a_critic_reads_the_same_conversation() -> None:
    found = openai_messages(parse_request("chat", {"messages": TALK}).messages)
    assert conversations_text(found, most_of_message=1000) == conversations_text(TALK, most_of_message=1000)
