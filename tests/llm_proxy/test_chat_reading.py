"""Answers of the chat and completions APIs, whole and streamed."""

import json
from itertools import zip_longest

from hypothesis import given, settings, strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.llm_proxy.internals import Usage

from .answers import (
    counts,
    json_values,
    logprobs,
    parts_of,
    read_events,
    read_stream,
    read_whole,
    some_text,
    sse,
    texts,
    token_ids,
)

HEAD = {"id": "chatcmpl-1", "created": 1, "model": "small"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def whole(*messages, **more):
    choices = [
        {"index": number, "message": {"role": "assistant", **message}, "logprobs": None, "finish_reason": "stop"}
        for number, message in enumerate(messages)
    ]
    return {**HEAD, "object": "chat.completion", "choices": choices, "usage": USAGE, **more}


def chunk(delta, *, index=0, finish_reason=None, head=None, **more):
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason, **more}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], **(head or {})}


def call(number, name, arguments, call_id):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, "index": number}


def said_text(text):
    return {"role": "assistant", "parts": [{"type": "text", "content": text}], "finish_reason": "stop"}


def test_a_whole_answer():
    said = read_whole("chat", whole({"content": "hi"}))
    assert said.output_messages == [said_text("hi")]
    assert (said.response_id, said.model, said.usage) == ("chatcmpl-1", "small", Usage(3, 2))
    assert said.finish_reasons == ["stop"]
    assert said.is_complete
    assert said.has_begun
    assert said.error is None


def test_a_streamed_answer():
    events = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "h"}),
        chunk({"content": "i"}),
        chunk({}, finish_reason="stop"),
        {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE},
        "[DONE]",
    ]
    for event in events[:-1]:
        ChatCompletionChunk.model_validate(event, strict=True)
    assert read_events("chat", events) == read_whole("chat", whole({"content": "hi"}))


def test_cached_tokens_are_read():
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 2}}
    assert read_whole("chat", whole({"content": "hi"}, usage=usage)).usage == Usage(3, 2, 2)


def test_parallel_tool_calls_are_merged_by_their_number():
    calls = [call(0, "add", '{"a": 1}', "c0"), call(1, "sub", '{"b": 2}', "c1")]
    expected = read_whole("chat", whole({"content": None, "tool_calls": calls}))
    assert parts_of(expected) == [
        {"type": "tool_call", "id": "c0", "name": "add", "arguments": '{"a": 1}'},
        {"type": "tool_call", "id": "c1", "name": "sub", "arguments": '{"b": 2}'},
    ]
    events = [
        chunk({"tool_calls": [call(0, "add", "", "c0")]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
        chunk({"tool_calls": [call(1, "sub", '{"b"', "c1")]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": ": 2}"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
        chunk({}, finish_reason="stop"),
        "[DONE]",
    ]
    assert read_events("chat", events).output_messages == expected.output_messages


def test_tool_calls_without_numbers_or_all_with_the_number_0_are_kept_apart():
    first, second = call(0, "add", "{}", "c0"), call(0, "sub", "{}", "c1")
    numbered = read_events("chat", [chunk({"tool_calls": [first]}), chunk({"tool_calls": [second]})])
    plain = [{key: value for key, value in each.items() if key != "index"} for each in (first, second)]
    unnumbered = read_events("chat", [chunk({"tool_calls": [each]}) for each in plain])
    assert [part["name"] for part in parts_of(numbered)] == ["add", "sub"]
    assert parts_of(unnumbered) == parts_of(numbered)


def test_tool_calls_of_other_kinds():
    custom = {"id": "c0", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    said = read_whole("chat", whole({"tool_calls": [custom]}))
    assert parts_of(said) == [{"type": "tool_call", "id": "c0", "name": "sh", "arguments": "ls", "kind": "custom"}]
    old = read_whole("chat", whole({"function_call": {"name": "add", "arguments": "{}"}}))
    assert parts_of(old) == [{"type": "tool_call", "id": None, "name": "add", "arguments": "{}"}]
    as_object = read_whole("chat", whole({"tool_calls": [call(0, "add", {"a": 1}, "c0")]}))
    assert parts_of(as_object)[0]["arguments"] == '{"a":1}'


def test_refusals_and_both_names_of_reasoning():
    said = read_whole("chat", whole({"content": None, "refusal": "no"}, {"content": "a", "reasoning_content": "hm"}))
    assert parts_of(said) == [{"type": "refusal", "content": "no"}]
    assert parts_of(said, 1) == [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "a"}]
    assert parts_of(read_whole("chat", whole({"content": "a", "reasoning": "hm"}))) == parts_of(said, 1)
    both = whole({"content": "a", "reasoning": "hm", "reasoning_content": "hm"})
    assert parts_of(read_whole("chat", both)) == parts_of(said, 1)


def test_audio_keeps_what_was_spoken():
    said = read_whole("chat", whole({"content": None, "audio": {"id": "a", "data": "QUJD", "transcript": "abc"}}))
    assert parts_of(said)[0]["transcript"] == "abc"


def test_content_as_a_list_of_parts():
    content = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]
    said = read_whole("chat", whole({"content": content}))
    assert parts_of(said) == [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "a"}]


# -- token ids and log-probabilities --------------------------------------------------------------------


def token(value):
    return {"token": "x", "logprob": value, "bytes": [120], "top_logprobs": []}


def test_token_ids_and_logprobs_of_a_whole_answer():
    body = whole({"content": "hi"}, prompt_token_ids=[1, 2, 3])
    body["choices"][0] |= {"token_ids": [4, 5], "logprobs": {"content": [token(-0.5), token(-1)]}}
    said = read_whole("chat", body)
    assert said.prompt_token_ids == [1, 2, 3]
    assert said.response_token_ids == [[4, 5]]
    assert said.response_logprobs == [[-0.5, -1.0]]


def test_token_ids_may_stand_in_the_choice():
    body = whole({"content": "hi"})
    body["choices"][0] |= {"token_ids": [4, 5], "prompt_token_ids": [1, 2, 3]}
    assert read_whole("chat", body).prompt_token_ids == [1, 2, 3]


def test_usage_is_counted_from_the_ids_where_a_stream_does_not_tell_it():
    events = [
        chunk({"content": "h"}, head={"prompt_token_ids": [1, 2, 3]}, token_ids=[4]),
        chunk({"content": "i"}, token_ids=[5], finish_reason="stop"),
        "[DONE]",
    ]
    assert read_events("chat", events).usage == Usage(3, 2)


def test_numbers_of_the_wrong_kind_do_not_cost_the_words():
    body = whole({"content": "hi"}, prompt_token_ids=["a"])
    said = read_whole("chat", body)
    assert said.output_messages == [said_text("hi")]
    assert said.prompt_token_ids == []
    assert said.error is None


def test_the_weights_version_by_any_of_its_names():
    for more in (
        {"weights_version": "7"},
        {"weight_version": 7},
        {"metadata": {"weight_version": "7"}},
        {"meta_info": {"weight_version": "7"}},
        {"sglext": {"weight_version": "7"}},
    ):
        assert read_whole("chat", whole({"content": "hi"}, **more)).weights_version == "7"
    body = whole({"content": "hi"})
    body["choices"][0]["meta_info"] = {"weight_version": "7"}
    assert read_whole("chat", body).weights_version == "7"
    assert read_whole("chat", whole({"content": "hi"}), weights_version="6").weights_version == "6"
    assert read_whole("chat", body, weights_version="6").weights_version == "7"


# -- completions ----------------------------------------------------------------------------------------


def test_of_several_prompts_the_first_ones_ids_are_read_whichever_is_answered_first():
    def event(index, prompt, sampled):
        choice = {"index": index, "text": "a", "finish_reason": "stop", "token_ids": sampled}
        return {**HEAD, "object": "text_completion", "choices": [{**choice, "prompt_token_ids": prompt}]}

    said = read_events("completions", [event(1, [7, 8], [9]), event(0, [1, 2], [3]), "[DONE]"])
    assert (said.prompt_token_ids, said.response_token_ids) == ([1, 2], [[3], [9]])


def test_completions_whole_and_streamed():
    choice = {"index": 0, "text": "abc", "finish_reason": "length", "token_ids": [4, 5], "prompt_token_ids": [1]}
    choice["logprobs"] = {
        "tokens": ["a", "bc"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": None,
        "text_offset": [],
    }
    body = {**HEAD, "object": "text_completion", "choices": [choice], "usage": USAGE}
    Completion.model_validate(body, strict=True)
    first = {**choice, "text": "a", "token_ids": [4], "finish_reason": None, "logprobs": {"token_logprobs": [-0.5]}}
    last = {**choice, "text": "bc", "token_ids": [5], "logprobs": {"token_logprobs": [-0.25]}}
    events = [{**body, "choices": [each], "usage": None} for each in (first, last)]
    streamed = read_events("completions", [*events, {**body, "choices": []}, "[DONE]"])
    assert streamed == read_whole("completions", body)
    assert streamed.response_logprobs == [[-0.5, -0.25]]
    assert streamed.prompt_token_ids == [1]
    assert streamed.finish_reasons == ["length"]


def test_versions_of_the_weights_are_told_by_token_where_they_changed():
    choice = {"index": 0, "message": {"content": "abc"}, "finish_reason": "stop", "token_ids": [4, 5, 6]}
    body = {**HEAD, "weights_version": "7", "choices": [choice]}
    assert read_whole("chat", body).response_weights_versions == []
    spanning = read_whole("chat", {**body, "choices": [{**choice, "weights_versions": ["7", "7", "8"]}]})
    assert (spanning.weights_version, spanning.response_weights_versions) == ("7", [["7", "7", "8"]])
    delta = {"index": 0, "delta": {"content": "a"}}
    events = [
        {**HEAD, "weights_version": "7", "choices": [{**delta, "token_ids": [4]}]},
        {**HEAD, "weights_version": "7", "choices": [{**delta, "token_ids": [5, 6], "weights_versions": ["7", "8"]}]},
        {**HEAD, "weights_version": "8", "choices": [{**delta, "token_ids": [7], "finish_reason": "stop"}]},
    ]
    assert read_events("chat", [*events, "[DONE]"]).response_weights_versions == [["7", "7", "8", "8"]]
    assert read_events("chat", [events[0], "[DONE]"]).response_weights_versions == []
    later = {**choice, "index": 1, "weights_versions": ["8", "8", "8"]}
    both = read_whole("chat", {**body, "choices": [choice, later]})
    assert both.response_weights_versions == [["7", "7", "7"], ["8", "8", "8"]]
    broken = read_whole("chat", {**body, "choices": [{**choice, "weights_versions": ["7"]}]})
    assert broken.response_weights_versions == []


def test_logprobs_of_an_echoed_prompt_are_left_out():
    choice = {"index": 0, "text": "abc", "finish_reason": "stop", "token_ids": [4]}
    choice["logprobs"] = {"token_logprobs": [None, -1.0, -0.5]}
    assert read_whole("completions", {**HEAD, "choices": [choice]}).response_logprobs == [[-0.5]]


# -- streamed and whole are the same --------------------------------------------------------------------

tool_calls = st.tuples(some_text, some_text, st.lists(texts, max_size=3))
choices = st.fixed_dictionaries(
    {
        "content": st.lists(texts, max_size=4),
        "reasoning_content": st.lists(texts, max_size=3),
        "refusal": st.lists(texts, max_size=2),
        "calls": st.lists(tool_calls, max_size=3, unique_by=lambda each: each[0]),
        "tokens": st.lists(st.tuples(token_ids, logprobs), max_size=6),
        "finish_reason": st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
    }
)


def whole_choice(number, made):
    message = {key: "".join(made[key]) or None for key in ("content", "reasoning_content", "refusal")}
    calls = [call(index, name, "".join(args), id_) for index, (id_, name, args) in enumerate(made["calls"])]
    return {
        "index": number,
        "message": {"role": "assistant", **message, "tool_calls": calls or None},
        "finish_reason": made["finish_reason"],
        "token_ids": [id_ for id_, _ in made["tokens"]],
        "logprobs": {"content": [token(value) for _, value in made["tokens"]]},
    }


def streamed_choice(number, made):
    deltas = [{key: piece} for key in ("content", "reasoning_content", "refusal") for piece in made[key]]
    for index, (id_, name, args) in enumerate(made["calls"]):
        deltas.append({"tool_calls": [call(index, name, "", id_)]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in args]
    events = [chunk({"role": "assistant"}, index=number)]
    for delta, pair in zip_longest(deltas, made["tokens"]):
        numbers = {"token_ids": [pair[0]], "logprobs": {"content": [token(pair[1])]}} if pair else {}
        events.append(chunk(delta or {}, index=number, **numbers))
    return [*events, chunk({}, index=number, finish_reason=made["finish_reason"])]


@settings(deadline=None)
@given(
    st.lists(choices, min_size=1, max_size=3),
    st.lists(token_ids, max_size=5),
    counts,
    st.lists(st.integers(0, 5000), max_size=12),
    st.sampled_from(["\n", "\r\n"]),
)
def test_streamed_and_whole_answers_say_the_same_however_the_stream_is_cut(made, prompt_ids, tokens, cuts, end):
    usage = {"prompt_tokens": tokens, "completion_tokens": 2, "total_tokens": tokens + 2}
    body = {**HEAD, "object": "chat.completion", "usage": usage, "prompt_token_ids": prompt_ids}
    body["choices"] = [whole_choice(number, each) for number, each in enumerate(made)]
    ChatCompletion.model_validate(body)
    by_choice = [streamed_choice(number, each) for number, each in enumerate(made)]
    mixed = [event for group in zip_longest(*by_choice) for event in group if event is not None]
    mixed[0]["prompt_token_ids"] = prompt_ids
    last = {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": usage}
    data = sse([*mixed, last, "[DONE]"], end=end)
    assert read_stream("chat", data, cuts=cuts) == read_whole("chat", body)


# -- what goes wrong ------------------------------------------------------------------------------------


def test_a_cut_stream_keeps_what_came():
    data = sse([chunk({"content": "h"}), chunk({"content": "i"})])
    said = read_stream("chat", data[:-20], is_complete=False)
    assert parts_of(said) == [{"type": "text", "content": "h"}]
    assert not said.is_complete
    assert said.has_begun
    assert "ended early" in said.error


def test_a_stream_that_ends_without_its_end_is_not_complete():
    said = read_events("chat", [chunk({"content": "hi"})])
    assert not said.is_complete
    assert "ended early" in said.error


def test_a_stream_without_the_last_mark_is_complete_when_every_choice_has_its_reason():
    said = read_events("chat", [chunk({"content": "hi"}, finish_reason="stop")])
    assert said.is_complete
    assert said.error is None


def test_an_error_inside_a_stream_is_told():
    said = read_events("chat", [chunk({"content": "hi"}), {"error": {"message": "out of memory", "code": 500}}])
    assert said.error == "the upstream failed: out of memory"
    assert not said.is_complete
    assert parts_of(said)


def test_malformed_answers_are_told():
    assert "malformed" in read_whole("chat", b"{oops").error
    assert "malformed" in read_events("chat", [chunk({"content": "hi"}), "{oops", "[DONE]"]).error
    assert read_whole("chat", b"").error is not None
    assert "malformed" not in (read_whole("chat", {"hello": 1}).error or "malformed")
    assert read_whole("chat", b"[]").error is not None


@given(json_values, st.sampled_from(["chat", "completions"]))
def test_no_json_makes_a_reading_raise(value, api):
    for body in (
        value,
        {**HEAD, "choices": [value]},
        {"choices": [{"message": value, "delta": value}], "usage": value},
    ):
        assert read_whole(api, body) is not None
        assert read_events(api, [json.dumps(body)]) is not None


@given(st.binary(max_size=200))
def test_no_bytes_make_a_reading_raise(data):
    assert read_whole("chat", data).error is not None
    assert read_stream("chat", b"data: " + data + b"\n\n") is not None
