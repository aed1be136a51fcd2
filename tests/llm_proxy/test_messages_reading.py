"""Answers of Anthropic's messages API, whole and streamed."""

import json

from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings, strategies as st
from pydantic import TypeAdapter

from tests.llm_proxy.internals import Usage

from .answers import counts, json_values, parts_of, read_events, read_stream, read_whole, some_text, sse, texts

EVENT = TypeAdapter(RawMessageStreamEvent)


def answer(*content, stop_reason="end_turn", usage=None):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "small",
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 3, "output_tokens": 2},
    }


def text(words):
    return {"type": "text", "text": words, "citations": None}


def tool_use(arguments, *, call_id="toolu_1"):
    return {"type": "tool_use", "id": call_id, "name": "add", "input": arguments}


def thinking(words):
    return {"type": "thinking", "thinking": words, "signature": "sig"}


def streamed(blocks, final):
    """The events of an answer, in the order in which Anthropic sends them."""
    start = {**final, "content": [], "stop_reason": None, "usage": {**final["usage"], "output_tokens": 1}}
    events = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, (block, deltas) in enumerate(blocks):
        empty = {key: value for key, value in BLANK.items() if key in block}
        events.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": final["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": final["usage"]["output_tokens"]}
    return [*events, {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


BLANK = {"text": "", "thinking": "", "input": {}, "signature": ""}


def text_deltas(pieces):
    return [{"type": "text_delta", "text": piece} for piece in pieces]


def thinking_deltas(pieces):
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    return [*deltas, {"type": "signature_delta", "signature": "sig"}]


def json_deltas(pieces):
    return [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def test_a_whole_answer_with_thoughts_words_and_a_tool_call():
    body = answer(thinking("hm"), text("hi"), tool_use({"a": 1}), stop_reason="tool_use")
    Message.model_validate(body)
    said = read_whole("messages", body)
    assert parts_of(said) == [
        {"type": "reasoning", "content": "hm"},
        {"type": "text", "content": "hi"},
        {"type": "tool_call", "id": "toolu_1", "name": "add", "arguments": {"a": 1}},
    ]
    assert (said.response_id, said.model, said.usage) == ("msg_1", "small", Usage(3, 2))
    assert said.finish_reasons == ["tool_use"]
    assert (said.is_complete, said.has_begun, said.error) == (True, True, None)


def test_tokens_of_the_cache_are_counted_among_those_of_the_input():
    usage = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 5}
    final = answer(text("hi"), usage=usage)
    assert read_whole("messages", final).usage == Usage(18, 2, 10)
    assert read_events("messages", streamed([(text("hi"), text_deltas(["hi"]))], final)).usage == Usage(18, 2, 10)


def test_blocks_of_the_providers_own_tools():
    called = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "q"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}
    hidden = {"type": "redacted_thinking", "data": "abc"}
    kinds = [part["type"] for part in parts_of(read_whole("messages", answer(called, result, hidden)))]
    assert kinds == ["server_tool_call", "server_tool_call_response", "redacted_thinking"]


@settings(deadline=None)
@given(
    st.lists(texts, max_size=3),
    st.lists(some_text, max_size=3),
    st.lists(st.tuples(st.dictionaries(texts, st.integers() | texts, max_size=3), st.integers(1, 5)), max_size=3),
    st.tuples(counts, counts, counts),
    st.sampled_from(["end_turn", "max_tokens", "tool_use", "refusal", "stop_sequence"]),
    st.lists(st.integers(0, 5000), max_size=12),
    st.sampled_from(["\n", "\r\n"]),
)
def test_streamed_and_whole_answers_say_the_same_however_the_stream_is_cut(
    thoughts, words, calls, tokens, stop_reason, cuts, end
):
    blocks = [(thinking("".join(thoughts)), thinking_deltas(thoughts)), (text("".join(words)), text_deltas(words))]
    for number, (arguments, size) in enumerate(calls):
        written = json.dumps(arguments)
        pieces = [written[start : start + size] for start in range(0, len(written), size)]
        blocks.append((tool_use(arguments, call_id=f"toolu_{number}"), json_deltas(["", *pieces])))
    usage = dict(zip(("input_tokens", "output_tokens", "cache_read_input_tokens"), tokens, strict=True))
    final = answer(*(block for block, _ in blocks), stop_reason=stop_reason, usage=usage)
    Message.model_validate(final)
    events = streamed(blocks, final)
    for event in events:
        if event["type"] != "ping":
            EVENT.validate_python(event)
    data = sse(events, named=True, end=end)
    assert read_stream("messages", data, cuts=cuts) == read_whole("messages", final)


def test_a_cut_stream_keeps_what_came():
    blocks = [(text("hello"), text_deltas(["he", "llo"])), (tool_use({"a": 1}), json_deltas(['{"a"', ": 1}"]))]
    events = streamed(blocks, answer(text("hello"), tool_use({"a": 1})))
    said = read_events("messages", events[:8])
    assert parts_of(said) == [
        {"type": "text", "content": "hello"},
        {"type": "tool_call", "id": "toolu_1", "name": "add", "arguments": '{"a"'},
    ]
    assert not said.is_complete
    assert said.has_begun
    assert said.finish_reasons == []


def test_an_error_inside_a_stream_is_told():
    start = {"type": "message_start", "message": answer()}
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    said = read_events("messages", [start, error])
    assert said.error == "the upstream failed: Overloaded"
    assert not said.is_complete


def test_an_error_with_a_good_status_is_told():
    said = read_whole("messages", {"type": "error", "error": {"type": "api_error", "message": "no"}})
    assert said.error == "the upstream failed: no"
    assert said.output_messages == []


@given(json_values)
def test_no_json_makes_a_reading_raise(value):
    for body in (
        value,
        {"content": [value]},
        {"content": [{"type": "tool_result", "content": [value]}], "usage": value},
    ):
        assert read_whole("messages", body) is not None
    for kind in ("message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"):
        event = {"type": kind, "message": value, "delta": value, "content_block": value, "index": value, "usage": value}
        assert read_events("messages", [json.dumps(event), json.dumps(value)]) is not None
