"""Joining events into a response, and writing a response as events."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.chat.internals import (
    EventStream,
    ResponseReader,
    TextPart,
    events_of,
    join_events,
    parse_response,
    parse_stream,
)

from ..llm_proxy.answers import pieces
from .bodies import BODIES, CHAT, MESSAGE


def data_of(stream: bytes) -> list[bytes]:
    events = EventStream()
    return [*events.feed(stream), *events.end()]


@pytest.mark.parametrize("api", BODIES)
def test_a_response_comes_back_from_its_events(api: Any) -> None:
    stream = b"".join(events_of(api, BODIES[api]))
    assert without_nothing(join_events(api, data_of(stream))) == without_nothing(BODIES[api])
    assert parse_stream(api, stream) == parse_response(api, BODIES[api])


def without_nothing(value: Any) -> Any:
    """Fields that are null stand for the same as fields that are not there."""
    if isinstance(value, dict):
        return {key: without_nothing(each) for key, each in value.items() if each is not None}
    return [without_nothing(each) for each in value] if isinstance(value, list) else value


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
    joined = join_events("chat", [msgspec.json.encode(event) for event in events])
    assert joined["weights_version"] == "1"
    assert joined["choices"][0]["weights_versions"] == ["1", "1", "2"]
    assert parse_response("chat", joined).choices[0].weights_versions == ["1", "1", "2"]


@given(st.lists(st.integers(0, 10_000), max_size=6))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    reader = ResponseReader("chat", is_stream=True)
    for piece in pieces(b"".join(events_of("chat", CHAT)), cuts):
        reader.feed(piece)
    assert reader.finish() == parse_response("chat", CHAT)


def test_fields_that_no_reader_knows_survive_the_joining() -> None:
    body = {**CHAT, "service_tier": "flex", "provider": {"name": "x"}}
    assert (
        join_events("chat", data_of(b"".join(events_of("chat", body)))).items()
        >= {
            "service_tier": "flex",
            "provider": {"name": "x"},
        }.items()
    )


def test_arguments_that_are_cut_stay_the_text_that_they_are() -> None:
    events = data_of(b"".join(events_of("messages", MESSAGE)))
    cut = [event.replace(b'{\\"city\\":\\"Rome\\"}', b'{\\"city\\":') for event in events]
    assert cut != events
    assert join_events("messages", cut)["content"][-1]["input"] == '{"city":'


def test_the_first_id_and_the_last_known_fields_count() -> None:
    first = {"id": "a", "model": "small", "service_tier": "flex", "choices": []}
    later = {"id": "b", "model": "other", "service_tier": None, "choices": []}
    joined = join_events("chat", [msgspec.json.encode(event) for event in (first, later)])
    assert joined == first
