"""A stream says what a whole answer says."""

from typing import Any

import httpx
import pytest
from openai import OpenAI

from sharpen.llm.server import EngineServer

from .conftest import NAME

ASKED: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "\u20ac clips?"}],
    "max_tokens": 24,
    "seed": 4,
    "extra_body": {"return_token_ids": True},
}


@pytest.mark.parametrize("n", [1, 3])
def test_a_streamed_chat_is_the_whole_one(client: OpenAI, n: int) -> None:
    asked = ASKED | {"n": n, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    for choice in whole.choices:
        own = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert own[0].delta.role == "assistant"
        assert "".join(each.delta.content or "" for each in own) == choice.message.content
        assert [token for each in own for token in each.token_ids] == choice.token_ids
        told = [token for each in own for token in each.logprobs.content]
        assert [each.token for each in told] == [each.token for each in choice.logprobs.content]
        assert [each.finish_reason for each in own] == [None] * (len(own) - 1) + [choice.finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_streamed_completions_of_several_prompts_are_the_whole_ones(client: OpenAI, tokenizer: Any) -> None:
    asked: dict[str, Any] = {"model": NAME, "prompt": ["Natalia sold", "Final"], "n": 2, "max_tokens": 12, "seed": 1}
    asked |= {"logprobs": 0, "extra_body": {"return_token_ids": True}}
    whole = client.completions.create(**asked)
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    for choice in whole.choices:
        own = [each for each in chunks if each.index == choice.index]
        assert "".join(each.text for each in own) == choice.text
        assert [token for each in own for token in each.token_ids] == choice.token_ids
        assert own[0].prompt_token_ids == choice.prompt_token_ids
        assert [place for each in own for place in each.logprobs.text_offset] == choice.logprobs.text_offset


def test_a_stop_string_is_never_streamed(client: OpenAI) -> None:
    plain = ASKED | {"temperature": 0, "max_tokens": 40}
    text = client.chat.completions.create(**plain).choices[0].message.content
    stop = text[len(text) // 2 :][:3]
    whole = client.chat.completions.create(**plain, stop=stop).choices[0]
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**plain, stop=stop, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content == text.partition(stop)[0]
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", stop)


def test_a_plain_stream_is_made_of_events_and_ends_with_its_mark(server: EngineServer) -> None:
    body = {name: value for name, value in ASKED.items() if name != "extra_body"} | {"stream": True}
    answer = httpx.post(f"{server.base_url}/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    assert "token_ids" not in answer.text


def test_what_is_wrong_with_a_streamed_request_is_a_status_not_an_event(server: EngineServer) -> None:
    body = {"messages": [{"role": "user", "content": "clips " * 500}], "stream": True}
    answer = httpx.post(f"{server.base_url}/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
