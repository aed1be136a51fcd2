"""Streams of events, read as the whole responses that they make."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.chat.internals import ResponseReader, TextPart, parse_response, parse_stream

from ..llm_proxy.answers import pieces
from .bodies import BODIES, CHAT, MESSAGE
from .events import DONE, event_bytes, events_of


@pytest.mark.parametrize("api", BODIES)
def test_a_response_comes_back_from_its_events(api: Any) -> None:
    assert parse_stream(api, b"".join(events_of(api, BODIES[api]))) == parse_response(api, BODIES[api])


@pytest.mark.parametrize("api", BODIES)
def test_a_stream_that_is_cut_is_told_and_keeps_what_came(api: Any) -> None:
    events = list(events_of(api, BODIES[api]))
    reader = ResponseReader(api, is_stream=True)
    reader.feed(b"".join(events[: len(events) // 2]))
    found = reader.finish(is_complete=False)
    assert not found.is_complete
    assert found.error is not None
    assert found.model == BODIES[api]["model"]


@pytest.mark.parametrize("api", BODIES)
def test_a_malformed_event_costs_nothing_but_itself(api: Any) -> None:
    events = list(events_of(api, BODIES[api]))
    found = parse_stream(api, b"".join([*events[:1], b"data: {oops\n\n", b"data: [1]\n\n", *events[1:]]))
    assert found.error is not None
    assert found.is_complete
    assert found.messages == parse_response(api, BODIES[api]).messages


def test_numbers_of_the_wrong_kind_cost_their_event_alone() -> None:
    chunk = {"index": 0, "delta": {"content": "a"}, "finish_reason": None, "token_ids": [1]}
    odd = {"index": 0, "delta": {"content": "b"}, "finish_reason": "stop", "token_ids": ["x"], "logprobs": 3}
    found = parse_stream(
        "chat", b"".join(b"data: %b\n\n" % json.dumps({"choices": [each]}).encode() for each in (chunk, odd))
    )
    assert found.messages[0].parts == [TextPart("ab")]
    assert found.choices[0].token_ids == [1]


def test_versions_of_weights_that_change_on_the_way_are_told_of_each_token() -> None:
    events = [
        {"weights_version": version, "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": ids}]}
        for version, ids in (("1", [5, 6]), ("2", [7]))
    ]
    found = parse_stream("chat", b"".join(event_bytes(event) for event in events))
    assert found.weights_version == "1"
    assert found.choices[0].weights_versions == ["1", "1", "2"]


def test_the_version_of_the_weights_may_come_without_a_choice() -> None:
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "token_ids": [5]}
    events = [{"weights_version": "3", "choices": []}, {"choices": [choice]}]
    found = parse_stream("chat", b"".join(event_bytes(event) for event in events))
    assert (found.weights_version, found.choices[0].weights_versions) == ("3", [])


def test_ids_of_the_prompt_may_come_after_an_event_without_them() -> None:
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "token_ids": [5]}
    events = [{"prompt_token_ids": None, "choices": []}, {"prompt_token_ids": [1, 2], "choices": [choice]}]
    found = parse_stream("chat", b"".join(event_bytes(event) for event in events))
    assert found.prompt_token_ids == [1, 2]


def test_choices_that_are_no_list_are_malformed() -> None:
    found = parse_stream("chat", event_bytes({"choices": {"index": 0}}) + DONE)
    assert "malformed" in (found.error or "")


def test_a_message_that_starts_twice_is_read_from_its_second_start() -> None:
    start = {"type": "message_start", "message": {"role": "assistant", "content": []}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    found = parse_stream("messages", b"".join(event_bytes(event, event["type"]) for event in (delta, start)))
    assert [part for choice in found.choices for part in choice.message.parts] == []


@given(st.lists(st.integers(0, 10_000), max_size=6))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    reader = ResponseReader("chat", is_stream=True)
    for piece in pieces(b"".join(events_of("chat", CHAT)), cuts):
        reader.feed(piece)
    assert reader.finish() == parse_response("chat", CHAT)


def test_arguments_that_are_cut_stay_the_text_that_they_are() -> None:
    events = b"".join(events_of("messages", MESSAGE))
    cut = events.replace(b'{\\"city\\":\\"Rome\\"}', b'{\\"city\\":')
    assert cut != events
    assert parse_stream("messages", cut).messages[0].tool_calls[0].arguments == '{"city":'


def test_the_first_id_and_the_last_usage_count() -> None:
    first = {"id": "a", "model": "small", "usage": {"prompt_tokens": 1}, "choices": []}
    later = {"id": "b", "model": "other", "usage": {"prompt_tokens": 2}, "choices": []}
    last = {"id": "c", "model": "other", "usage": None, "choices": []}
    found = parse_stream("chat", b"".join(event_bytes(event) for event in (first, later, last)))
    assert found.usage is not None
    assert (found.id, found.model, found.usage.input_tokens) == ("a", "small", 2)
