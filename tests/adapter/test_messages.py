"""Conversations in OpenAI's format, from the two ways in which GenAI conventions write messages."""

import json

from hypothesis import given, strategies as st

from sharpen.adapter import TraceToMessages

from .traces import llm, operation, scoring, span


def conversations(*spans, **options):
    return TraceToMessages(**options).adapt(spans)


def recorded(prompt, answers, *, tools=None, **more):
    """A call in the current conventions: messages of typed parts, as JSON."""
    attributes = {"gen_ai__input__messages": json.dumps(prompt), "gen_ai__output__messages": json.dumps(answers)}
    if tools is not None:
        attributes["gen_ai__tool__definitions"] = json.dumps(tools)
    return llm("call", 1.0, 2.0, **attributes, **more)


def message(role, *parts, **more):
    return {"role": role, "parts": list(parts), **more}


def text(content):
    return {"type": "text", "content": content}


def flat(*, prompt=(), completion=(), **more):
    """A call in the older conventions: one attribute for each leaf."""
    made = span("openai.chat.completion", 1.0, 2.0, **more)
    for prefix, items in (("gen_ai.prompt", prompt), ("gen_ai.completion", completion)):
        for number, item in enumerate(items):
            made.attributes.update({f"{prefix}.{number}.{key}": value for key, value in item.items()})
    return made


HI = message("user", text("hi"))
HELLO = message("assistant", text("hello"))


# -- as AgentOps records -----------------------------------------------------------------------------

WEATHER = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
NOW = {"id": "b", "type": "function", "function": {"name": "now", "arguments": "{}"}}


def tool_span(call, start, *, parent="call"):
    made = span(f"tool_call.{call['function']['name']}", start, start, parent=parent)
    made.attributes.update({"tool.name": call["function"]["name"], "tool.parameters": call["function"]["arguments"]})
    made.attributes.update({"tool.call.id": call["id"], "tool.call.type": "function"})
    return made


def test_tool_calls_that_agentops_records_as_spans_are_part_of_the_answer():
    asked, end = {"role": "user", "content": "hi"}, {"role": "assistant", "finish_reason": "tool_calls"}
    call = flat(prompt=[asked], completion=[end], id="call", gen_ai__request__functions__0__name="weather")
    call.attributes["gen_ai.request.functions.0.parameters"] = '{"type": "object"}'
    (read,) = conversations(tool_span(NOW, 1.6), call, tool_span(WEATHER, 1.5))
    assert read["messages"] == [asked, {"role": "assistant", "content": None, "tool_calls": [WEATHER, NOW]}]
    assert read["tools"] == [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_a_streamed_answer_of_tool_calls_alone_is_read():
    call = flat(prompt=[{"role": "user", "content": "hi"}], id="call")
    (read,) = conversations(call, tool_span(WEATHER, 1.5))
    assert read["messages"][-1] == {"role": "assistant", "content": None, "tool_calls": [WEATHER]}


def test_tool_spans_go_to_the_one_choice_that_ended_with_tool_calls():
    said = {"role": "assistant", "content": "hello", "finish_reason": "stop"}
    end = {"role": "assistant", "finish_reason": "tool_calls"}
    prompt = [{"role": "user", "content": "hi"}]
    found = conversations(flat(prompt=prompt, completion=[said, end], id="call"), tool_span(WEATHER, 1.5))
    assert [each["messages"][-1].get("tool_calls") for each in found] == [None, [WEATHER]]
    found = conversations(flat(prompt=prompt, completion=[end, end], id="call"), tool_span(WEATHER, 1.5))
    assert [each["messages"][-1].get("tool_calls") for each in found] == [None, None]  # nobody knows whose


def test_a_tool_that_runs_below_a_call_without_an_id_is_no_tool_call():
    call = flat(prompt=[{"role": "user", "content": "hi"}], completion=[{"content": "hello"}], id="call")
    (read,) = conversations(call, span("search", 1.5, 1.6, parent="call", tool__name="search"))
    assert "tool_calls" not in read["messages"][-1]


def test_the_role_of_an_earlier_turn_follows_from_its_tool_calls():
    earlier = {"tool_calls.0.id": "a", "tool_calls.0.name": "weather", "tool_calls.0.arguments": '{"city": "Rome"}'}
    result = {"tool_call_id": "a", "content": "rain"}
    (read,) = conversations(flat(prompt=[earlier, result], completion=[{"content": "It rains."}]))
    assert read["messages"][:2] == [
        {"role": "assistant", "content": None, "tool_calls": [WEATHER]},
        {"role": "tool", "content": "rain", "tool_call_id": "a"},
    ]


# -- messages of typed parts -------------------------------------------------------------------------


def test_a_plain_conversation_is_read():
    assert conversations(recorded([message("system", text("Be brief.")), HI], [HELLO])) == [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "hello"},
            ],
            "tools": None,
        }
    ]


def test_instructions_that_stand_apart_become_the_system_message():
    call = recorded([HI], [HELLO], gen_ai__system_instructions=json.dumps([text("Be brief."), text("Be kind.")]))
    [read] = conversations(call)
    assert read["messages"][0] == {
        "role": "system",
        "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
    }


def test_tool_calls_and_their_results_take_openais_form():
    call_a = {"type": "tool_call", "id": "a", "name": "add", "arguments": {"x": 1, "y": "ü"}}
    call_b = {"type": "tool_call", "id": "b", "name": "now", "arguments": None}
    results = message(
        "user",
        {"type": "tool_call_response", "id": "a", "response": {"sum": 2}},
        {"type": "tool_call_response", "id": "b", "response": "noon"},
        text("Go on."),
    )
    [read] = conversations(recorded([HI, message("assistant", text("Wait."), call_a, call_b), results], [HELLO]))
    assert read["messages"][1:5] == [
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1, "y": "ü"}'}},
                {"id": "b", "type": "function", "function": {"name": "now", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": '{"sum": 2}'},
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "user", "content": "Go on."},
    ]


def test_tools_take_openais_form():
    parameters = {"type": "object", "properties": {}}
    add = {"type": "function", "name": "add", "description": "Adds.", "parameters": parameters}
    nested = {"type": "function", "function": {"name": "now", "parameters": parameters}}
    [read] = conversations(recorded([HI], [HELLO], tools=[add, nested, {"type": "web_search", "name": "web"}]))
    assert read["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}},
        nested,
        {"type": "web_search", "name": "web"},
    ]


def test_other_kinds_of_parts_find_their_place():
    parts = [
        {"type": "uri", "modality": "image", "mime_type": None, "uri": "http://localhost/a.png"},
        {"type": "blob", "modality": "image", "mime_type": "image/jpeg", "content": "aGk="},
        {"type": "blob", "modality": "audio", "mime_type": "audio/mp3", "content": "aGk="},
        {"type": "file", "modality": "document", "mime_type": None, "file_id": "file-1"},
        {"type": "compaction"},
    ]
    [read] = conversations(recorded([message("user", *parts)], [HELLO]))
    assert read["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]


def test_documents_and_films_find_their_place():
    film = {"type": "uri", "modality": "video", "uri": "https://x/film.mp4"}
    paper = {"type": "blob", "modality": "document", "mime_type": "application/pdf", "content": "QUJD"}
    [read] = conversations(recorded([message("user", film, paper, {**paper, "filename": "a.pdf"})], [HELLO]))
    assert read["messages"][0]["content"] == [
        {"type": "video_url", "video_url": {"url": "https://x/film.mp4"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
    ]


def test_a_refusal_stands_beside_the_content():
    refusal = {"type": "refusal", "content": "no"}
    [read] = conversations(recorded([HI], [message("assistant", refusal)]))
    assert read["messages"][-1] == {"role": "assistant", "content": None, "refusal": "no"}
    [read] = conversations(recorded([HI], [message("assistant", text("well"), refusal)]))
    assert read["messages"][-1] == {"role": "assistant", "content": "well", "refusal": "no"}


def test_a_tool_of_ones_own_format_keeps_its_input():
    call = {"type": "tool_call", "id": "a", "name": "sh", "arguments": "ls", "kind": "custom"}
    [read] = conversations(recorded([HI], [message("assistant", call)]))
    assert read["messages"][-1]["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    ]


def test_a_result_made_of_parts_stays_so_and_other_lists_are_json():
    image = {"type": "uri", "modality": "image", "uri": "https://x/y.png"}
    parts = {"type": "tool_call_response", "id": "a", "response": [text("look"), image]}
    other = {"type": "tool_call_response", "id": "b", "response": [{"type": "row", "n": 1}]}
    [read] = conversations(recorded([message("tool", parts), message("tool", other)], [HELLO]))
    assert [each["content"] for each in read["messages"][:2]] == [
        [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}],
        '[{"type": "row", "n": 1}]',
    ]


def test_reasoning_is_kept_beside_the_answer():
    thought = {"type": "reasoning", "content": "hm"}
    [read] = conversations(recorded([HI], [message("assistant", thought, text("hello"))]))
    assert read["messages"][-1] == {"role": "assistant", "content": "hello", "reasoning_content": "hm"}


def test_roles_and_names_are_kept():
    [read] = conversations(recorded([message("user", text("hi"), name="ada")], [message("model", text("hello"))]))
    assert read["messages"][0] == {"role": "user", "content": "hi", "name": "ada"}
    assert read["messages"][1]["role"] == "assistant"


def test_an_empty_message_is_an_empty_text():
    [read] = conversations(recorded([message("user"), {"role": "user", "content": "plain"}], [message("assistant")]))
    assert [m["content"] for m in read["messages"]] == ["", "plain", ""]


def test_messages_that_are_no_json_string_are_read_as_they_are():
    call = llm("call", 1.0, gen_ai__input__messages=[HI], gen_ai__output__messages=[HELLO])
    assert len(conversations(call)[0]["messages"]) == 2


def test_each_choice_ends_a_conversation_of_its_own():
    read = conversations(recorded([HI], [HELLO, message("assistant", text("hey"))]))
    assert [c["messages"][-1]["content"] for c in read] == ["hello", "hey"]
    assert [c["messages"][0] for c in read] == [{"role": "user", "content": "hi"}] * 2


def test_prompts_that_were_sent_together_are_conversations_of_their_own():
    answers = [message("assistant", text(each)) for each in "abcd"]
    prompts = [message("user", text("A")), message("user", text("B"))]
    together = recorded(prompts, answers, gen_ai__operation__name="text_completion")
    read = [[each["content"] for each in talk["messages"]] for talk in conversations(together)]
    assert read == [["A", "a"], ["A", "b"], ["B", "c"], ["B", "d"]]


def remembered(id, said, *, previous=None):
    more = {} if previous is None else {"sharpen__llm__previous_response_id": previous}
    return llm(id, said=said, response_id=id, **more)


def test_a_conversation_that_the_api_remembers_is_put_together():
    calls = [remembered("1", "a"), remembered("2", "b", previous="1"), remembered("3", "c", previous="2")]
    read = [[each["content"] for each in talk["messages"]] for talk in conversations(*calls)]
    assert read == [["a", "A"], ["a", "A", "b", "B"], ["a", "A", "b", "B", "c", "C"]]


def test_conversations_that_name_each_other_or_nobody_end():
    calls = [remembered("1", "a", previous="2"), remembered("2", "b", previous="1"), remembered("3", "c", previous="x")]
    read = [[each["content"] for each in talk["messages"]] for talk in conversations(*calls)]
    assert read == [["b", "B", "a", "A"], ["a", "A", "b", "B"], ["c", "C"]]


def test_a_call_without_recorded_messages_gives_no_conversation(caplog):
    cut = recorded([HI], [HELLO])
    cut.attributes["gen_ai.output.messages"] = cut.attributes["gen_ai.output.messages"][:-5]
    assert conversations(llm("empty", 1.0), cut) == []
    assert "gen_ai.output.messages" in caplog.text


# -- one attribute for each leaf ---------------------------------------------------------------------


def test_the_older_attributes_give_the_same_conversation():
    call = flat(
        prompt=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "tool_calls.0.id": "a",
                "tool_calls.0.name": "weather",
                "tool_calls.0.arguments": '{"city": "Rome"}',
                "tool_calls.1.id": "b",
                "tool_calls.1.function.name": "now",
                "tool_calls.1.function.arguments": "{}",
            },
            {"role": "tool", "tool_call_id": "a", "content": "21"},
        ],
        completion=[{"role": "assistant", "content": "It is 21.", "finish_reason": "stop"}],
        llm__request__functions__0__name="weather",
        llm__request__functions__0__description="The weather.",
        llm__request__functions__0__parameters='{"type": "object"}',
    )
    assert conversations(call) == [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "a",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
                        },
                        {"id": "b", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                    ],
                },
                {"role": "tool", "content": "21", "tool_call_id": "a"},
                {"role": "assistant", "content": "It is 21."},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "weather", "description": "The weather.", "parameters": {"type": "object"}},
                }
            ],
        }
    ]


def test_the_eleventh_message_comes_after_the_tenth():
    call = flat(prompt=[{"content": str(n)} for n in range(12)], completion=[{"content": "end"}])
    [read] = conversations(call)
    assert [m["content"] for m in read["messages"]] == [*map(str, range(12)), "end"]
    assert {m["role"] for m in read["messages"][:12]} == {"user"}


def test_content_of_several_parts_is_read_and_text_that_looks_like_it_is_kept():
    parts = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}]
    kept = ["[1, 2]", "[not json", '[{"type": "other"}]', "[]"]
    call = flat(
        prompt=[{"content": json.dumps(parts)}, *({"content": each} for each in kept)], completion=[{"content": "x"}]
    )
    [read] = conversations(call)
    assert [m["content"] for m in read["messages"]] == [parts, *kept, "x"]


def test_attributes_that_contradict_each_other_break_nothing():
    call = flat(
        prompt=[{"content": "hi", "tool_calls": "none", "role.0": "odd", "role": "user"}], completion=[{"content": "x"}]
    )
    call.attributes["gen_ai.prompt.prompt_filter_results"] = "[]"
    [read] = conversations(call)
    assert [m["content"] for m in read["messages"]] == ["hi", "x"]


# -- which calls -------------------------------------------------------------------------------------


def test_a_call_that_two_saw_is_one_conversation():
    outer = llm("outer", 1.0, 4.0, said="hi", response_id="r")
    inner = llm("inner", 2.0, 3.0, said="hi", response_id="r", parent="outer")
    assert len(conversations(outer, inner)) == 1


def test_conversations_of_one_agent_without_its_judge():
    spans = [
        operation("writer", 0.0, 9.0),
        llm("draft", 1.0, 2.0, said="draft", parent="writer"),
        scoring("judge", 3.0, 5.0, 1.0, parent="writer"),
        llm("verdict", 3.5, 4.5, said="verdict", parent="judge"),
        llm("other", 10.0, 11.0, said="other"),
    ]

    def asked(**options):
        return [c["messages"][0]["content"] for c in conversations(*spans, **options)]

    assert asked() == ["draft", "other"]
    assert asked(agent_match="writer") == ["draft"]
    assert asked(exclude_llm_call_in_reward=False) == ["draft", "verdict", "other"]


# -- round trips -------------------------------------------------------------------------------------

_words = st.text(min_size=1, max_size=20)
_tool_calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": _words,
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {
                    "name": _words,
                    "arguments": st.dictionaries(_words, st.integers() | _words).map(
                        lambda arguments: json.dumps(arguments, ensure_ascii=False)
                    ),
                }
            ),
        }
    ),
    min_size=1,
    max_size=3,
)
_chat = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": _words}),
        st.fixed_dictionaries({"role": st.just("tool"), "content": _words, "tool_call_id": _words}),
        st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none() | _words, "tool_calls": _tool_calls}),
    ),
    min_size=1,
    max_size=5,
)


def as_parts(sent):
    """An OpenAI message as the current conventions write it."""
    if sent["role"] == "tool":
        part = {"type": "tool_call_response", "id": sent["tool_call_id"], "response": sent["content"]}
        return message("tool", part)
    calls = [
        {"type": "tool_call", "id": call["id"], "name": call["function"]["name"], "arguments": json.loads(arguments)}
        for call in sent.get("tool_calls", [])
        for arguments in [call["function"]["arguments"]]
    ]
    return message(sent["role"], *([text(sent["content"])] if sent["content"] else []), *calls)


def as_leaves(sent):
    """An OpenAI message as the older conventions write it."""
    leaves = {key: value for key, value in sent.items() if key != "tool_calls" and value is not None}
    for number, call in enumerate(sent.get("tool_calls", [])):
        leaves[f"tool_calls.{number}.id"] = call["id"]
        leaves[f"tool_calls.{number}.name"] = call["function"]["name"]
        leaves[f"tool_calls.{number}.arguments"] = call["function"]["arguments"]
    return leaves


@given(_chat)
def test_what_was_sent_comes_back_from_the_current_conventions(chat):
    [read] = conversations(recorded([as_parts(sent) for sent in chat], [HELLO]))
    assert read["messages"] == [*chat, {"role": "assistant", "content": "hello"}]


@given(_chat)
def test_what_was_sent_comes_back_from_the_older_conventions(chat):
    [read] = conversations(flat(prompt=[as_leaves(sent) for sent in chat], completion=[as_leaves(chat[0])]))
    assert read["messages"] == [*chat, chat[0]]
