"""Answers of the responses API, whole and streamed."""

import json

from hypothesis import given, settings, strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.llm_proxy.internals import Usage

from .answers import json_values, parts_of, read_events, read_stream, read_whole, some_text, sse, texts

USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 14,
}
EVENT = TypeAdapter(ResponseStreamEvent)


def response(*items, status="completed", **more):
    return {
        "id": "resp_1",
        "created_at": 1.0,
        "model": "small",
        "object": "response",
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": status,
        "usage": USAGE if status in ("completed", "incomplete") else None,
        **more,
    }


def message(*content, status="completed"):
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": list(content)}


def output_text(text, logprobs=()):
    found = [{"token": "x", "logprob": value, "bytes": [120], "top_logprobs": []} for value in logprobs]
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": found}


def reasoning(text):
    return {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def function_call(arguments, *, call_id="call_1", status="completed"):
    item = {"id": "fc_1", "type": "function_call", "call_id": call_id, "name": "add", "arguments": arguments}
    return {**item, "status": status}


def event(kind, **more):
    return {"type": f"response.{kind}", "sequence_number": 0, **more}


def streamed(items, final):
    """The events of an answer, in the order in which OpenAI sends them."""
    events = [event("created", response=response(status="in_progress"))]
    for index, (item, deltas) in enumerate(items):
        blank = {**item, **{key: empty for key, empty in BLANK.items() if key in item}}
        if "status" in item:
            blank["status"] = "in_progress"
        events.append(event("output_item.added", item=blank, output_index=index))
        events += [{**delta, "output_index": index} for delta in deltas]
        events.append(event("output_item.done", item=item, output_index=index))
    return [*events, event("completed", response=final)]


BLANK = {"content": [], "summary": [], "arguments": "", "input": ""}


def text_delta(piece, logprobs=()):
    found = [{"token": "x", "logprob": value, "top_logprobs": []} for value in logprobs]
    return event("output_text.delta", delta=piece, content_index=0, item_id="msg_1", logprobs=found)


def arguments_delta(piece):
    return event("function_call_arguments.delta", delta=piece, item_id="fc_1")


def summary_delta(piece):
    return event("reasoning_summary_text.delta", delta=piece, summary_index=0, item_id="rs_1")


def test_a_whole_answer_with_thoughts_words_and_a_tool_call():
    body = response(reasoning("hm"), message(output_text("hi", [-0.5])), function_call('{"a": 1}'))
    Response.model_validate(body)
    said = read_whole("responses", body)
    assert parts_of(said) == [
        {"type": "reasoning", "content": "hm"},
        {"type": "text", "content": "hi"},
        {"type": "tool_call", "id": "call_1", "name": "add", "arguments": '{"a": 1}'},
    ]
    assert said.usage == Usage(9, 5, 4)
    assert said.finish_reasons == ["tool_calls"]
    assert said.response_logprobs == [[-0.5]]
    assert (said.response_id, said.model, said.is_complete, said.error) == ("resp_1", "small", True, None)


def test_refusals_custom_tools_and_tools_of_the_provider():
    custom = {"id": "ct", "type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"}
    search = {"id": "ws", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
    said = read_whole("responses", response(message({"type": "refusal", "refusal": "no"}), custom, search))
    refusal, call, server = parts_of(said)
    assert refusal == {"type": "refusal", "content": "no"}
    assert call == {"type": "tool_call", "id": "c", "name": "sh", "arguments": "ls", "kind": "custom"}
    assert (server["type"], server["name"]) == ("server_tool_call", "web_search_call")


def test_the_reason_of_an_answer_that_stopped_early():
    for reason, told in (("max_output_tokens", "length"), ("content_filter", "content_filter")):
        body = response(message(output_text("hi")), status="incomplete", incomplete_details={"reason": reason})
        said = read_whole("responses", body)
        assert said.finish_reasons == [told]
        assert said.error is None


def test_a_failed_answer_is_an_error():
    error = {"code": "server_error", "message": "overloaded"}
    failed = response(status="failed", error=error)
    for said in (read_whole("responses", failed), read_events("responses", [event("failed", response=failed)])):
        assert said.error == "the upstream failed: overloaded"
        assert said.finish_reasons == ["error"]
    told = read_events("responses", [{"type": "error", "code": "x", "message": "too many", "sequence_number": 1}])
    assert told.error == "the upstream failed: too many"


@settings(deadline=None)
@given(
    st.lists(texts, max_size=3),
    st.lists(st.tuples(some_text, st.floats(-9, 0)), min_size=1, max_size=4),
    st.lists(st.lists(texts, max_size=3), max_size=3),
    st.lists(st.integers(0, 5000), max_size=12),
)
def test_streamed_and_whole_answers_say_the_same_however_the_stream_is_cut(thoughts, words, calls, cuts):
    text, numbers = "".join(piece for piece, _ in words), [value for _, value in words]
    items = [
        (reasoning("".join(thoughts)), [summary_delta(piece) for piece in thoughts]),
        (message(output_text(text, numbers)), [text_delta(piece, [value]) for piece, value in words]),
    ]
    for number, pieces in enumerate(calls):
        call = function_call("".join(pieces), call_id=f"call_{number}")
        items.append((call, [arguments_delta(piece) for piece in pieces]))
    final = response(*(item for item, _ in items))
    events = streamed(items, final)
    for each in events:
        EVENT.validate_python(each)
    data = sse(events, named=True)
    expected = read_whole("responses", final)
    assert read_stream("responses", data, cuts=cuts) == expected
    # Without its last event the stream says the same, but is not complete.
    cut = read_stream("responses", sse(events[:-1]), cuts=cuts)
    assert parts_of(cut) == parts_of(expected)
    assert cut.response_logprobs == expected.response_logprobs
    assert not cut.is_complete


def test_a_stream_cut_in_the_middle_of_an_item_keeps_its_beginning():
    events = [
        event("created", response=response(status="in_progress")),
        event("output_item.added", item=message(status="in_progress"), output_index=0),
        text_delta("he", [-1]) | {"output_index": 0},
        text_delta("llo", [-2]) | {"output_index": 0},
        event("output_item.added", item=function_call("", status="in_progress"), output_index=1),
        arguments_delta('{"a"') | {"output_index": 1},
    ]
    said = read_events("responses", events)
    assert [part.get("content", part.get("arguments")) for part in parts_of(said)] == ["hello", '{"a"']
    assert said.response_logprobs == [[-1.0, -2.0]]
    assert said.response_id == "resp_1"
    assert said.has_begun
    assert not said.is_complete


def test_deltas_without_their_items_are_kept():
    said = read_events("responses", [text_delta("hi") | {"output_index": 0}])
    assert parts_of(said) == [{"type": "text", "content": "hi"}]


def test_token_ids_and_weights_version_of_engines_that_give_them():
    more = {"prompt_token_ids": [1, 2], "token_ids": [3], "weights_version": "4"}
    said = read_whole("responses", response(message(output_text("hi")), **more))
    assert (said.prompt_token_ids, said.response_token_ids, said.weights_version) == ([1, 2], [[3]], "4")


@given(json_values)
def test_no_json_makes_a_reading_raise(value):
    for body in (value, {"output": [value]}, {"output": [{"type": "message", "content": [value]}], "usage": value}):
        assert read_whole("responses", body) is not None
    for kind in ("output_item.added", "output_text.delta", "function_call_arguments.delta", "completed", "created"):
        bodies = [value, event(kind, item=value, response=value, delta=value, output_index=value)]
        assert read_events("responses", [json.dumps(body) for body in bodies]) is not None
