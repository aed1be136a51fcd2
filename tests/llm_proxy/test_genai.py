"""Calls as spans with GenAI names, and what the adapters read from them."""

import json
import logging

import msgspec
import pytest
from hypothesis import given, strategies as st

from sharpen.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from sharpen.semconv import SHARPEN_LLM_CALL, LightningLLMAttributes as Ours
from sharpen.types import Span
from tests.llm_proxy.internals import Call, Place, Said, attributes_of, span_of

from .answers import json_values, read_events, read_whole

PLACE = Place("ro-1", "at-1")


def call_of(api, request, *, place=PLACE, headers=None, added=()):
    body = json.dumps(request).encode()
    made = Call("call-1", api, place, body, json.loads(body), headers or {}, start_time=100.0)
    made.added = frozenset(added)
    return made


def attributes(api, request, answer=None, *, status=200, **more):
    said = read_whole(api, answer if answer is not None else {}, status=status)
    return attributes_of(call_of(api, request), said, status=status, **more)


def span(api, request, answer, **more):
    """As the store gives it back: parsed from JSON."""
    call = call_of(api, request, **more)
    said = read_whole(api, answer)
    assert said.error is None
    made = span_of(call, said, attributes_of(call, said, last_seconds=1.0))
    return msgspec.json.decode(msgspec.json.encode(made), type=Span)


def chat_answer(content="hi", **more):
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop", **more}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    return {"id": "chatcmpl-1", "model": "small-2", "choices": [choice], "usage": usage}


def ask(*messages, **more):
    return {"model": "small", "messages": list(messages or [{"role": "user", "content": "hello"}]), **more}


def conversation(api, request, answer, **more):
    found = TraceToMessages()([span(api, request, answer, **more)])
    assert len(found) == 1
    return found[0]


# -- attributes ------------------------------------------------------------------------------------------


def test_names_numbers_and_times():
    request = ask(temperature=0.5, top_p=0.9, max_tokens=7, stop="x", seed=3, n=1, presence_penalty=1, stream=False)
    more = {"upstream_name": "small at host", "engine": "vllm", "cost": 0.25, "first_seconds": 0.5, "last_seconds": 2.0}
    found = attributes("chat", request, chat_answer(), **more)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "small",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.stop_sequences": ["x"],
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.presence_penalty": 1,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "small-2",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.input.messages": '[{"role":"user","parts":[{"type":"text","content":"hello"}]}]',
        "gen_ai.output.messages": (
            '[{"role":"assistant","parts":[{"type":"text","content":"hi"}],"finish_reason":"stop"}]'
        ),
        Ours.CALL_ID: "call-1",
        Ours.API: "chat",
        Ours.UPSTREAM: "small at host",
        Ours.ENGINE: "vllm",
        Ours.COST: 0.25,
        Ours.TIME_TO_FIRST_TOKEN: 0.5,
        Ours.TIME_TO_LAST_TOKEN: 2.0,
    }
    assert found == expected
    assert all(type(key) is str for key in found)


@pytest.mark.parametrize(
    ("api", "operation", "provider"),
    [
        ("chat", "chat", "openai"),
        ("completions", "text_completion", "openai"),
        ("responses", "chat", "openai"),
        ("embeddings", "embeddings", "openai"),
        ("messages", "chat", "anthropic"),
    ],
)
def test_operation_and_provider_of_every_api(api, operation, provider):
    found = attributes(api, {"model": "small"})
    assert (found["gen_ai.operation.name"], found["gen_ai.provider.name"]) == (operation, provider)


@pytest.mark.parametrize(
    ("api", "more"),
    [
        ("chat", {"max_completion_tokens": 9}),
        ("responses", {"max_output_tokens": 9}),
        ("messages", {"max_tokens": 9}),
    ],
)
def test_the_limit_of_tokens_by_every_name(api, more):
    assert attributes(api, ask(**more))["gen_ai.request.max_tokens"] == 9


@pytest.mark.parametrize(
    ("api", "more", "kind"),
    [
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "json"),
        ("chat", {"response_format": {"type": "json_object"}}, "json"),
        ("chat", {"response_format": {"type": "text"}}, None),
        ("chat", {"modalities": ["text", "audio"]}, "speech"),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "json"),
        ("messages", {"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "json"),
        ("messages", {"output_format": {"type": "json_schema", "schema": {}}}, "json"),
    ],
)
def test_structured_outputs_are_told(api, more, kind):
    assert attributes(api, ask(**more)).get("gen_ai.output.type") == kind


def test_other_parameters_are_kept_as_json():
    found = attributes("chat", ask(min_p=0.1, tool_choice="auto", temperature=1))
    assert json.loads(found[Ours.PARAMETERS]) == {"min_p": 0.1, "tool_choice": "auto"}
    assert Ours.PARAMETERS not in attributes("chat", ask(temperature=1))


def test_keys_in_a_request_are_never_written():
    server = {"type": "mcp", "server_url": "https://x", "authorization": "SECRET", "headers": {"x": "SECRET"}}
    request = {"model": "small", "input": "hi", "tools": [server], "extra_headers": {"a": "SECRET"}}
    other = ask(mcp_servers=[{"url": "https://x", "authorization_token": "SECRET"}], api_key="SECRET")
    headers = {"authorization": "Bearer SECRET", "x-api-key": "SECRET"}
    for api, body in (("responses", request), ("messages", other), ("chat", other)):
        call = call_of(api, body, headers=headers)
        made = span_of(call, Said(), attributes_of(call, Said()))
        assert b"SECRET" not in msgspec.json.encode(made)
        assert b"https://x" in msgspec.json.encode(made)


def test_the_agents_name_and_the_fields_that_were_added():
    call = call_of("chat", ask(), place=Place("ro-1", "at-1", "judge"), added=["return_token_ids", "logprobs"])
    found = attributes_of(call, read_whole("chat", chat_answer()))
    assert found["gen_ai.agent.name"] == "judge"
    assert found[Ours.ADDED_FIELDS] == ["logprobs", "return_token_ids"]


def test_streams_tell_their_first_chunk():
    found = attributes("chat", ask(stream=True), chat_answer(), first_seconds=0.5)
    assert found["gen_ai.request.stream"] is True
    assert found["gen_ai.response.time_to_first_chunk"] == 0.5


def test_without_content_only_numbers_and_names_are_kept():
    answer = chat_answer("WORDS", token_ids=[4, 5], logprobs={"content": [{"token": "W", "logprob": -1}]})
    answer |= {"prompt_token_ids": [1, 2, 3], "weights_version": "8"}
    request = ask({"role": "user", "content": "WORDS"}, tools=[{"type": "function", "function": {"name": "WORDS"}}])
    request |= {"temperature": 0.5, "metadata": {"a": "WORDS"}, "prompt": [1, 2, 3]}
    found = attributes("chat", request, answer, capture_content=False)
    assert "WORDS" not in str(found)
    assert not {Ours.PROMPT_TOKEN_IDS, Ours.RESPONSE_TOKEN_IDS, Ours.RESPONSE_LOGPROBS} & set(found)
    assert found["gen_ai.usage.output_tokens"] == 2
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert found[Ours.WEIGHTS_VERSION] == "8"


def test_an_error_is_told_in_words_only_with_content():
    body = {"error": {"message": "WORDS are too long"}}
    for captures in (True, False):
        call, said = call_of("chat", ask()), read_whole("chat", body, status=400)
        found = attributes_of(call, said, status=400, capture_content=captures)
        made = span_of(call, said, found)
        assert found["error.type"] == "400"
        assert made.status.status_code == "ERROR"
        assert ("WORDS" in made.status.description) is captures
        assert (Ours.ERROR in found) is captures


def test_of_embeddings_the_text_and_the_length_are_kept():
    answer = {"data": [{"embedding": [1.0, 2.0]}], "model": "small", "usage": {"prompt_tokens": 2}}
    found = attributes("embeddings", {"model": "small", "input": ["a", "b"], "encoding_format": "float"}, answer)
    assert found["gen_ai.embeddings.dimension.count"] == 2
    assert found["gen_ai.request.encoding_formats"] == ["float"]
    assert [each["parts"][0]["content"] for each in json.loads(found["gen_ai.input.messages"])] == ["a", "b"]


# -- spans -----------------------------------------------------------------------------------------------


def test_a_span_has_its_attempt_times_and_own_ids():
    one, other = (span("chat", ask(), chat_answer()) for _ in range(2))
    assert (one.rollout_id, one.attempt_id, one.sequence_id, one.name) == ("ro-1", "at-1", 0, SHARPEN_LLM_CALL)
    assert (one.start_time, one.end_time, one.status.status_code) == (100.0, 101.0, "OK")
    assert len(one.trace_id) == 32
    assert len(one.span_id) == 16
    assert one.parent_id is None
    assert one.trace_id != other.trace_id


def test_the_agents_span_is_the_parent_where_it_sent_its_trace():
    trace, parent = "a" * 32, "b" * 16
    made = span("chat", ask(), chat_answer(), headers={"traceparent": f"00-{trace}-{parent}-01"})
    assert (made.trace_id, made.parent_id) == (trace, parent)


@pytest.mark.parametrize("header", ["", "x", f"00-{'0' * 32}-{'b' * 16}-01", f"ff-{'a' * 32}-{'b' * 16}-01"])
def test_a_trace_that_is_none_is_not_followed(header):
    made = span("chat", ask(), chat_answer(), headers={"traceparent": header})
    assert made.parent_id is None
    assert made.trace_id not in ("0" * 32, "a" * 32)


def test_a_cut_answer_says_so():
    call = call_of("chat", ask(stream=True))
    said = read_events("chat", [{"id": "x", "choices": [{"index": 0, "delta": {"content": "h"}}]}])
    made = span_of(call, said, attributes_of(call, said))
    assert made.status.status_code == "ERROR"
    assert "ended early" in made.status.description
    assert made.attributes[Ours.IS_COMPLETE] is False
    assert made.attributes["error.type"] == "incomplete"


def test_a_refused_call_says_why_also_without_content():
    call, said = call_of("chat", ask()), Said(error="too many", is_complete=False)
    found = attributes_of(call, said, capture_content=False) | {Ours.REFUSED.value: "rollout_calls"}
    assert span_of(call, said, found).status.description == "the gateway refused the call (rollout_calls)"


def test_a_call_without_a_place_has_a_span_without_one():
    call = call_of("chat", ask(), place=None)
    assert span_of(call, Said(), attributes_of(call, Said())).rollout_id == ""


# -- what the adapters read --------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [TracerTraceToTriplet, LlmProxyTraceToTriplet])
def test_triplets_have_the_ids_that_were_read_and_sampled(adapter):
    answer = chat_answer(token_ids=[4, 5], logprobs={"content": [{"logprob": -1}, {"logprob": -0.5}]})
    answer |= {"prompt_token_ids": [1, 2, 3], "weights_version": 8}
    (triplet,) = adapter()([span("chat", ask(), answer, place=Place("ro-1", "at-1", "judge"))])
    assert triplet.prompt == {"token_ids": [1, 2, 3]}
    assert triplet.response == {"token_ids": [4, 5], "logprobs": [-1.0, -0.5]}
    assert triplet.metadata["response_id"] == "chatcmpl-1"
    assert triplet.metadata["agent_name"] == "judge"
    assert triplet.metadata["weights_version"] == "8"


def several(*ids, **more):
    """Choices with one log-probability for all of their tokens."""
    return [
        {
            "index": number,
            "finish_reason": "stop",
            "token_ids": each,
            "logprobs": {"token_logprobs": [-1.0] * len(each)},
        }
        | more
        for number, each in enumerate(ids)
    ]


def test_of_several_choices_a_triplet_has_the_first_and_tells_the_others():
    answer = chat_answer(token_ids=[4, 5])
    answer["choices"].append(
        {**answer["choices"][0], "index": 1, "token_ids": [6], "logprobs": {"content": [{"logprob": -2}]}}
    )
    made = span("chat", ask(n=2), answer)
    (triplet,) = LlmProxyTraceToTriplet()([made])
    assert triplet.response["token_ids"] == [4, 5]
    assert triplet.metadata["further_choices"] == [{"token_ids": [6], "logprobs": [-2.0], "finish_reason": "stop"}]
    assert json.loads(made.attributes[Ours.RESPONSE_TOKEN_IDS]) == [[4, 5], [6]]
    assert len(TraceToMessages()([made])) == 2


def test_choices_of_one_prompt_are_told_and_those_of_other_prompts_are_counted():
    def metadata(request, *ids):
        made = span("completions", {"model": "small", **request}, {"id": "c", "choices": several(*ids, text="hi")})
        (triplet,) = LlmProxyTraceToTriplet()([made])
        return triplet.metadata

    told = metadata({"prompt": [1, 2], "n": 2}, [3], [4])
    assert told["further_choices"] == [{"token_ids": [4], "logprobs": [-1.0], "finish_reason": "stop"}]
    for others in (metadata({"prompt": [[1], [2]]}, [3], [4]), metadata({"prompt": ["a", "b"], "n": 1}, [3], [4])):
        assert others["num_untrained_choices"] == 1
        assert "further_choices" not in others
    assert metadata({"prompt": [[1], [2]], "n": 2}, [3], [4], [5], [6])["num_untrained_choices"] == 3


def test_the_top_k_of_a_call_is_recorded():
    made = span("chat", ask(top_k=20, top_p=0.5), chat_answer(token_ids=[4]))
    assert made.attributes["gen_ai.request.top_k"] == 20
    (triplet,) = LlmProxyTraceToTriplet()([made])
    assert (triplet.metadata["top_k"], triplet.metadata["top_p"]) == (20, 0.5)


def test_ids_that_the_agent_sent_as_prompt_are_its_prompt():
    answer = {"id": "c", "choices": [{"index": 0, "text": "hi", "finish_reason": "stop", "token_ids": [9]}]}
    for prompt in ([1, 2], [[1, 2]]):
        (triplet,) = LlmProxyTraceToTriplet()([span("completions", {"model": "small", "prompt": prompt}, answer)])
        assert triplet.prompt == {"token_ids": [1, 2]}


@pytest.mark.parametrize("adapter", [TracerTraceToTriplet(), LlmProxyTraceToTriplet(), TraceToMessages()])
def test_embeddings_and_failed_calls_are_no_samples(adapter):
    embedded = span("embeddings", {"model": "small", "input": "a"}, {"data": [{"embedding": [1.0]}]})
    call = call_of("chat", ask())
    failures = [read_whole("chat", {"error": "no"}, status=500), Said(error="client hung up", is_complete=False)]
    failures.append(read_events("chat", [{"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}]))
    failed = [span_of(call, said, attributes_of(call, said)) for said in failures]
    assert adapter([embedded, *failed]) == []


def test_messages_of_a_chat_come_back_as_they_were():
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "name": "ann", "content": "what is in it?"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}},
                {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
                {"type": "video_url", "video_url": {"url": "https://x/y.mp4"}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                {"id": "c1", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "3"},
        {"role": "tool", "tool_call_id": "c1", "content": "a b"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "user", "content": "please"},
    ]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    function = {"name": "add", "description": "adds", "parameters": schema, "strict": True}
    tools = [{"type": "function", "function": function}, {"type": "custom", "custom": {"name": "sh"}}]
    found = conversation("chat", ask(*messages, tools=tools), chat_answer("done"))
    assert found["messages"] == [*messages, {"role": "assistant", "content": "done"}]
    assert found["tools"] == tools


def test_results_of_tools_in_parts():
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = conversation("chat", ask({"role": "tool", "tool_call_id": "c", "content": texts}), chat_answer())
    assert found["messages"][0]["content"] == "ab"


def test_old_functions_are_tools():
    request = ask(
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{}"}},
        {"role": "function", "name": "add", "content": "3"},
        functions=[{"name": "add", "parameters": {"type": "object"}}],
    )
    found = conversation("chat", request, chat_answer())
    assert found["messages"][0]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
    assert found["messages"][1] == {"role": "function", "name": "add", "content": "3"}
    assert found["tools"][0]["function"]["name"] == "add"


def test_what_a_model_answers_comes_back():
    answer = chat_answer(None)
    calls = [{"id": "c0", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    answer["choices"][0]["message"] |= {"reasoning": "hm", "tool_calls": calls}
    told = conversation("chat", ask(), answer)["messages"][-1]
    assert told == {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls}
    answer["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "no"}
    assert conversation("chat", ask(), answer)["messages"][-1] == {
        "role": "assistant",
        "content": None,
        "refusal": "no",
    }


def test_completions_of_several_prompts_are_conversations_of_their_own():
    choices = [{"index": number, "text": text, "finish_reason": "stop"} for number, text in enumerate("abcd")]
    made = span("completions", {"model": "small", "prompt": ["A", "B"], "n": 2}, {"id": "c", "choices": choices})
    found = [[each["content"] for each in talk["messages"]] for talk in TraceToMessages()([made])]
    assert found == [["A", "a"], ["A", "b"], ["B", "c"], ["B", "d"]]


def responses_answer(response_id, *items):
    return {"id": response_id, "model": "small", "status": "completed", "output": list(items)}


def words(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_items_of_the_responses_api_become_messages():
    items = [
        {"role": "developer", "content": "be brief"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
                {"type": "input_file", "file_id": "file-1"},
            ],
        },
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        words("one moment"),
        {"type": "function_call", "call_id": "c0", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c0", "output": "3"},
        {"type": "item_reference", "id": "x"},
    ]
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
    request = {"model": "small", "instructions": "be good", "input": items, "tools": [tool, {"type": "web_search"}]}
    found = conversation("responses", request, responses_answer("r1", words("done")))
    system, developer, user, assistant, result, _, answer = found["messages"]
    assert system == {"role": "system", "content": "be good"}
    assert developer == {"role": "developer", "content": "be brief"}
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "file"]
    assert (assistant["content"], assistant["reasoning_content"]) == ("one moment", "hm")
    assert assistant["tool_calls"][0]["id"] == "c0"
    assert result == {"role": "tool", "tool_call_id": "c0", "content": "3"}
    assert answer == {"role": "assistant", "content": "done"}
    assert found["tools"] == [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": True}},
        {"type": "web_search"},
    ]


def test_a_conversation_that_the_api_remembers_is_whole():
    first = span("responses", {"model": "small", "instructions": "x", "input": "a"}, responses_answer("r1", words("A")))
    next_one = {"model": "small", "input": "b", "previous_response_id": "r1"}
    second = span("responses", next_one, responses_answer("r2", words("B")))
    lost = {"model": "small", "input": "c", "previous_response_id": "unknown"}
    third = span("responses", lost, responses_answer("r3", words("C")))
    found = [[each["content"] for each in talk["messages"]] for talk in TraceToMessages()([first, second, third])]
    assert found == [["x", "a", "A"], ["a", "A", "b", "B"], ["c", "C"]]


def test_blocks_of_the_messages_api_become_messages():
    cache = {"cache_control": {"type": "ephemeral"}}
    request = {
        "model": "small",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "be good", **cache}],
        "tools": [
            {"name": "add", "description": "adds", "input_schema": {"type": "object"}, **cache},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look", **cache},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                    {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
                    {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "text", "text": "one moment"},
                    {"type": "tool_use", "id": "t0", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t0", "content": [{"type": "text", "text": "3"}]},
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
    }
    answer = {"id": "m", "role": "assistant", "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"}
    found = conversation("messages", request, answer)
    assert "ephemeral" not in str(found)
    assert found["messages"] == [
        {"role": "system", "content": "be good"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
        },
        {
            "role": "assistant",
            "content": "one moment",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "t0", "content": "3"},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "done"},
    ]
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
    assert found["tools"] == [
        {"type": "function", "function": function},
        {"type": "web_search_20250305", "name": "web_search"},
    ]


# -- bad input -------------------------------------------------------------------------------------------


@given(json_values, st.sampled_from(["chat", "completions", "responses", "embeddings", "messages"]))
def test_no_request_makes_it_raise(value, api):
    keys = ("messages", "input", "prompt", "system", "instructions", "tools", "stop", "text", "temperature", "stream")
    block = {"type": "tool_result", "content": [value], "source": value, "tool_calls": [value], "file": value}
    for request in (
        dict.fromkeys(keys, value),
        {key: [value] for key in keys},
        {key: [{"role": value, "type": value, "content": [value, block], "function": value}] for key in keys},
        {key: [{"role": "assistant", "content": value, "tool_calls": [block]}, block] for key in keys},
    ):
        call = call_of(api, request)
        made = span_of(call, Said(), attributes_of(call, Said()))
        again = msgspec.json.decode(msgspec.json.encode(made), type=Span)
        for adapter in (TraceToMessages(), LlmProxyTraceToTriplet()):
            assert adapter([again]) is not None


def test_a_request_nested_without_end_is_left_out(caplog):
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    call = Call("call-1", "chat", PLACE, b"", {"model": "small", "metadata": deep}, {})
    with caplog.at_level(logging.WARNING):
        found = attributes_of(call, Said())
    assert found["gen_ai.request.model"] == "small"
    assert "could not be recorded" in caplog.text
    while deep:
        deep = deep.pop("a")
