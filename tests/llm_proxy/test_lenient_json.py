"""Halves of characters: they pass, and what is written down is whole."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from sharpen.store import InMemoryLightningStore
from tests.chat.internals import decode, mended

from .answers import json_values, read_events, read_stream, read_whole
from .heart import CHAT, STREAM, one_span, served, start
from .readings import said_by
from .scripted import Reply, ScriptedUpstream

GRIN = "\U0001f600"
FIRST, SECOND = "\\ud83d", "\\ude00"


@pytest.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


# -- reading -------------------------------------------------------------------------------------------


@given(json_values)
def test_whole_json_is_read_as_ever_and_needs_no_mending(value: Any) -> None:
    assert decode(json.dumps(value).encode()) == value
    assert mended(value) == value


@given(st.lists(st.sampled_from(["\ud83d", "\ude00", "a", "é", GRIN])))
def test_mended_texts_can_be_written(pieces: list[str]) -> None:
    joined = mended("".join(pieces))
    assert joined.encode().decode() == joined
    assert "\ufffd" in joined or joined.count(GRIN) * 2 >= pieces.count("\ud83d") + pieces.count("\ude00")


@pytest.mark.parametrize("text", [b"{", b'{"a": NaN}', b'["\\ud83d", NaN]', b'["\\ud83d"', b"[1,]"])
def test_what_is_no_json_stays_none(text: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, ValueError)):
        decode(text)


def _delta(text: str, **more: Any) -> str:
    content = {"content": "@"}
    event = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": content, "finish_reason": None} | more]}
    return json.dumps(event).replace("@", text)


def test_an_emoji_in_two_events_of_a_chat_is_one() -> None:
    said = read_events("chat", [_delta("ok "), _delta(FIRST), _delta(SECOND, finish_reason="stop"), "[DONE]"])
    assert (said.error, said.is_complete) == (None, True)
    assert said.output_messages[0]["parts"] == [{"type": "text", "content": f"ok {GRIN}"}]


def test_a_half_that_stays_alone_is_replaced() -> None:
    said = read_events("chat", [_delta("ok"), _delta(FIRST), _delta("!", finish_reason="stop"), "[DONE]"])
    assert said.error is None
    assert said.output_messages[0]["parts"][0]["content"] == "ok\ufffd!"


def test_an_emoji_in_two_events_of_a_message_is_one() -> None:
    events = [
        '{"type": "message_start", "message": {"id": "m", "model": "m", "role": "assistant", "content": []}}',
        '{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}',
        *(
            '{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "@"}}'.replace(
                "@", half
            )
            for half in (FIRST, SECOND)
        ),
        '{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}',
        '{"type": "message_stop"}',
    ]
    said = read_events("messages", events)
    assert (said.error, said.output_messages[0]["parts"]) == (None, [{"type": "text", "content": GRIN}])


def test_an_emoji_in_two_events_of_a_response_is_one() -> None:
    events = [
        '{"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "@"}'.replace("@", half)
        for half in (FIRST, SECOND)
    ]
    said = read_stream("responses", "".join(f"data: {each}\n\n" for each in events).encode(), is_complete=False)
    assert said.output_messages[0]["parts"] == [{"type": "text", "content": GRIN}]


def test_a_whole_answer_with_a_half_is_read() -> None:
    body = json.dumps({"id": "c", "choices": [{"message": {"content": "a\ud83d"}, "finish_reason": "stop"}]})
    said = read_whole("chat", body.encode())
    assert (said.error, said.output_messages[0]["parts"][0]["content"]) == (None, "a\ufffd")


def test_an_error_with_a_half_is_told() -> None:
    said = read_whole("chat", b'{"error": {"message": "no \\ud83d here"}}', status=400)
    assert said.error == "the upstream answered 400: no \ufffd here"


# -- through the gateway -------------------------------------------------------------------------------


async def test_a_split_emoji_passes_and_its_span_is_whole(
    store: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    events = [_delta("hi "), _delta(FIRST), _delta(SECOND, finish_reason="stop"), "[DONE]"]
    body = "".join(f"data: {event}\n\n" for event in events).encode()
    upstream.script(Reply(body=body, content_type="text/event-stream"))
    rollout, path = await start(store)
    async with served(store, upstream.base_url) as gateway:
        _, _, data = await gateway.post(f"{path}/chat/completions", STREAM)
    span = await one_span(store, rollout)
    assert data == body
    assert (span.status.status_code, said_by(span).text) == ("OK", f"hi {GRIN}")


async def test_a_request_with_a_half_reaches_its_upstream_as_it_is(
    store: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    body = json.dumps(CHAT | {"messages": [{"role": "user", "content": "cut here: \ud83d"}]}).encode()
    rollout, path = await start(store)
    async with served(store, upstream.base_url) as gateway:
        status, _, _ = await gateway.post(f"{path}/chat/completions", body)
    span = await one_span(store, rollout)
    assert (status, upstream.requests[0].body) == (200, body)
    assert "cut here: \ufffd" in str(span.attributes["gen_ai.input.messages"])


async def test_a_request_with_a_half_keeps_it_when_its_model_is_renamed(
    store: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    entry = {"model_name": "ours", "model": "scripted", "base_url": upstream.base_url, "engine": "none"}
    body = json.dumps({"model": "ours", "messages": [{"role": "user", "content": "\ud83d"}]}).encode()
    async with served(store, entries=[entry]) as gateway:
        assert (await gateway.post("/v1/chat/completions", body))[0] == 200
    asked = json.loads(upstream.requests[0].body)
    assert (asked["model"], asked["messages"][0]["content"]) == ("scripted", "\ud83d")
