"""Conversations as a text that a model can read."""

import itertools
from typing import Any

import pytest

from tests.algorithm.internals import NO_CONVERSATION, clip, conversations_text

USER = {"role": "user", "content": "What is 2 + 3?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}
ANSWER = {"role": "assistant", "content": "It is 5."}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def text_of(*conversations: dict[str, Any]) -> str:
    return conversations_text(conversations, most_of_message=3_000)


def talk(*messages: dict[str, Any], tools: Any = None) -> dict[str, Any]:
    return {"messages": list(messages), "tools": tools}


def test_calls_of_tools_can_be_read() -> None:
    assert text_of(talk(USER, CALLING, RESULT, ANSWER, tools=TOOLS)).splitlines() == [
        "(the model can call: add)",
        "[user] What is 2 + 3?",
        '[assistant] -> calls add({"a": 2, "b": 3})',
        "[tool] 5",
        "[assistant] It is 5.",
    ]


def test_a_conversation_that_a_later_call_repeats_is_shown_once() -> None:
    shown = text_of(talk(USER, CALLING, tools=TOOLS), talk(USER, CALLING, RESULT, ANSWER, tools=TOOLS))
    assert shown.count("What is 2 + 3?") == 1


def test_other_conversations_of_a_rollout_are_told_apart() -> None:
    shown = text_of(talk(USER, ANSWER), talk(ANSWER, USER))
    assert shown.index("--- Conversation 1 ---") < shown.index("--- Conversation 2 ---")


def test_a_plain_list_of_messages_is_one_conversation() -> None:
    assert text_of(USER, ANSWER) == "[user] What is 2 + 3?\n[assistant] It is 5."


def test_that_there_is_none_is_said() -> None:
    assert text_of() == text_of(talk()) == NO_CONVERSATION


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ({"role": "assistant", "content": ""}, "[assistant] (nothing)"),
        ({"role": "assistant", "content": None, "refusal": "no"}, "[assistant] (refuses: no)"),
        ({"role": "assistant", "content": "", "reasoning_content": "hm"}, "[assistant] (thinks, and says nothing: hm)"),
        ({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url"}]}, "see\n(image_url)"),
        ({"role": "user", "content": {"a": "ü"}}, '[user] {"a": "ü"}'),
        ({"role": "assistant", "tool_calls": [{"custom": {"name": "sql", "input": "select 1"}}]}, "sql(select 1)"),
    ],
)
def test_messages_of_every_kind_can_be_read(message: dict[str, Any], line: str) -> None:
    assert text_of(talk(message)).endswith(line)


@pytest.mark.parametrize(("length", "most"), list(itertools.product([0, 1, 50, 100, 101, 5000], [0, 10, 60, 100])))
def test_a_clipped_text_keeps_to_its_bound_and_says_what_is_left_out(length: int, most: int) -> None:
    text = "".join(chr(ord("a") + number % 26) for number in range(length))
    found = clip(text, most)
    assert len(found) <= most
    if "left out" in found:
        start, _, rest = found.partition("\n[... ")
        count, _, end = rest.partition(" characters left out ...]\n")
        assert text.startswith(start)
        assert text.endswith(end)
        assert len(start) + len(end) + int(count.replace(",", "")) == length
    else:
        assert text.startswith(found)
