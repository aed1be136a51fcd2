"""Tool calls are read out of the text, in whatever pieces it comes."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from openai import OpenAI

from sharpen.llm.engine import Engine
from sharpen.llm.server import EngineServer
from tests.llm.internals import ToolCall, ToolCallReader

from .conftest import NAME, client_of
from .models import TOOLS, reciting_model

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1,"b":2}}\n</tool_call>'


def read(*pieces: str, origin: bytes = b"p") -> tuple[str, list[ToolCall]]:
    reader = ToolCallReader(origin)
    parts = [part for piece in pieces for part in reader.feed(piece)] + list(reader.finish())
    text = "".join(part for part in parts if isinstance(part, str))
    return text, [part for part in parts if isinstance(part, ToolCall)]


def test_a_call_keeps_the_spelling_of_its_arguments() -> None:
    text, (call,) = read(f"I add. {ADD}")
    assert (text, call.name, call.arguments) == ("I add.", "add", '{"a": 1,"b":2}')


def test_several_calls_have_ids_of_their_own_that_are_the_same_every_time() -> None:
    text, calls = read(f"{ADD}\n{ADD}\n")
    assert text == ""
    assert len({call.id for call in calls}) == 2
    assert read(f"{ADD}\n{ADD}")[1] == calls
    assert read(ADD, origin=b"q")[1][0].id != calls[0].id


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "add"}', "{}"),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "add", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"arguments": {"a": "</b>"}, "name": "add"}', '{"a": "</b>"}'),
    ],
)
def test_other_spellings_are_understood(written: str, arguments: str) -> None:
    assert read(f"<tool_call>{written}</tool_call>")[1][0].arguments == arguments


def test_a_call_that_ends_with_the_text_needs_no_mark_at_its_end() -> None:
    assert read('<tool_call>{"name": "add", "arguments": {}}')[1][0].name == "add"


@pytest.mark.parametrize(
    "text",
    [
        "no call at all \n",
        "a < b, <tool",
        "<tool_call>no JSON</tool_call> and on",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "add", "arg',
        "</tool_call>",
        " \n ",
        "",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read(text) == (text, [])


@given(
    st.lists(st.sampled_from([ADD, "<tool_call>", "</tool_call>", "{}", " ", "\n", "<", "word"]), max_size=8).map(
        "".join
    ),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_the_pieces_in_which_text_comes_change_nothing(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert read(*(text[start:end] for start, end in itertools.pairwise(edges))) == read(text)


# -- over HTTP ---------------------------------------------------------------------------------------

PIECES = ["I add. ", "<tool_call>", '{"name": "add", "arguments": {"a": 1}}', "</tool_call>", "<tool_call> ",
          '{"name": "add", "arguments": {"a": 2}}', " </tool_call>"]  # fmt: skip
ASKED: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "1 + 1"}],
    "tools": TOOLS,
    "temperature": 0,
    "logprobs": True,
    "extra_body": {"return_token_ids": True},
}


@pytest.fixture(scope="module")
def caller() -> Iterator[OpenAI]:
    """A model that calls a tool twice."""
    model, tokenizer = reciting_model(*PIECES)
    engine = Engine(model, tokenizer, max_batch=2, max_tokens=512)
    with EngineServer(engine, tokenizer, name=NAME) as server, client_of(server) as client:
        yield client


def test_calls_come_out_as_such_with_all_their_tokens(caller: OpenAI) -> None:
    (choice,) = caller.chat.completions.create(**ASKED).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I add."
    assert [call.function.arguments for call in choice.message.tool_calls or []] == ['{"a": 1}', '{"a": 2}']
    assert len(choice.token_ids) == len(choice.logprobs.content) == len(PIECES) + 1


def test_a_streamed_call_is_the_same(caller: OpenAI) -> None:
    whole = caller.chat.completions.create(**ASKED).choices[0]
    chunks = [chunk.choices[0] for chunk in caller.chat.completions.create(**ASKED, stream=True)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert [call.index for call in calls] == [0, 1]
    told = [(call.id, call.function.name, call.function.arguments) for call in calls]
    assert told == [(call.id, call.function.name, call.function.arguments) for call in whole.message.tool_calls]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].finish_reason == "tool_calls"
    assert [each for chunk in chunks for each in chunk.token_ids] == whole.token_ids


def test_a_client_may_take_one_call_at_a_time_or_none(caller: OpenAI) -> None:
    (one,) = caller.chat.completions.create(**ASKED, parallel_tool_calls=False).choices
    assert len(one.message.tool_calls or []) == 1
    for options in ({"tool_choice": "none"}, {"tools": None}):
        (none,) = caller.chat.completions.create(**ASKED | options).choices
        assert none.message.tool_calls is None
        assert (none.message.content, none.finish_reason) == ("".join(PIECES), "stop")


def test_tools_and_calls_of_the_history_are_written_by_the_template(caller: OpenAI) -> None:
    model, tokenizer = reciting_model("ok")
    answered = caller.chat.completions.create(**ASKED).choices[0].message
    history = [
        *ASKED["messages"],
        answered.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": "x", "content": "2"},
    ]
    engine = Engine(model, tokenizer, max_batch=2, max_tokens=512)
    with EngineServer(engine, tokenizer, name=NAME) as server, client_of(server) as client:
        answer = client.chat.completions.create(**ASKED | {"messages": history})
    prompt = tokenizer.decode(answer.prompt_token_ids)
    assert json.dumps(TOOLS) in prompt
    assert '<tool_call>{"a": 1}</tool_call>' in prompt  # an object, not a text of it
    assert answer.choices[0].message.content == "ok"
