"""Requests that cannot be honoured are refused in OpenAI's shape, with the field and what to do."""

import logging
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from sharpen.llm.server import EngineServer

from .conftest import NAME

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def ask(server: EngineServer, path: str = "chat/completions", **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.base_url}/{path}", json={**CHAT, **fields})


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert answer.headers["x-should-retry"] == "false"
    return error


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": -1}, "temperature", "temperature is -1"),
        ({"temperature": 1e9}, "temperature", "0 to 100"),
        ({"temperature": "hot"}, "temperature", "expected `float"),
        ({"top_p": 0}, "top_p", "top_p is 0"),
        ({"top_p": 1.5}, "top_p", "top_p is 1.5"),
        ({"top_k": -2}, "top_k", "top_k is -2"),
        ({"n": 0}, "n", "n is 0"),
        ({"n": 10**9}, "n", "1 to 1024"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"max_completion_tokens": -5}, "max_completion_tokens", "max_completion_tokens is -5"),
        ({"max_tokens": 1.5}, "max_tokens", "expected `int"),
        ({"seed": 2**70}, "seed", "seed"),
        ({"stop": [""]}, "stop", "at least one character"),
        ({"stop": ["a"] * 65}, "stop", "at most 64"),
        ({"stop": 7}, "stop", "wrong type"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "stop_token_ids is -1"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs", "set both"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options", "stream_options.include_usage"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "is 0.5"),
        ({"presence_penalty": -1}, "presence_penalty", "is -1"),
        ({"logit_bias": {"5": 100}}, "logit_bias", "leave it out"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "json_schema"),
        ({"add_special_tokens": True}, "add_special_tokens", "is True"),
        ({"tool_choice": "required"}, "tool_choice", "cannot force a call"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0]"),
        ({"tools": "add"}, "tools", "list of objects"),
        ({"messages": []}, "messages", "messages is empty"),
        ({"messages": "hi"}, "messages", "list of objects"),
        ({"messages": [{"content": "hi"}]}, "messages", "messages[0].role is None"),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0] has no content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "messages[0].content is 5"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "messages",
            "messages[0].content[0] has type 'image_url'",
        ),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs", "'chat_template'"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "add_generation_prompt",
            "continue_final_message",
        ),
    ],
)
def test_what_cannot_be_is_a_400_that_names_the_field(
    server: EngineServer, fields: dict[str, Any], param: str, words: str
) -> None:
    error = refused(ask(server, **fields))
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert words in error["message"]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty list"),
        ("", "empty"),
        (7, "expected `str | array`"),
        ([[]], "prompt[0] is []"),
        (["a", 5], "prompt[1] is 5"),
        ([10**6], "token id 1000000"),
        ([-1], "token id -1"),
        ([[5]] * 1025, "1025 prompts"),
    ],
)
def test_a_prompt_that_is_none_is_a_400(server: EngineServer, prompt: Any, words: str) -> None:
    error = refused(ask(server, "completions", prompt=prompt))
    assert error["param"] == "prompt"
    assert words in error["message"]


def test_more_samples_than_are_allowed_together_are_refused(server: EngineServer) -> None:
    assert "more than 1024 samples" in refused(ask(server, "completions", prompt=["a", "b"], n=600))["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "malformed_json"),
        (b"[]", "malformed_request"),
        (b"{}", "malformed_request"),
        (b"\xff", "malformed_json"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "malformed_json"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "malformed_json"),
        (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "malformed_json"),
        (b'{"messages": [], "tool_choice": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", "malformed_json"),
        (b'{"messages": [], "logit_bias": "\\ud800"}', "malformed_json"),
    ],
)
def test_a_body_that_is_no_request_is_a_400(server: EngineServer, body: bytes, code: str) -> None:
    url, headers = f"{server.base_url}/chat/completions", {"content-type": "application/json"}
    assert refused(httpx.post(url, content=body, headers=headers))["code"] == code


def test_values_that_ask_for_nothing_are_taken(server: EngineServer) -> None:
    nothing = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": None,
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "top_k": -1,
        "stop": None,
        "n": None,
        "user": "me",
        "metadata": {"run": "1"},
    }
    assert ask(server, **nothing).status_code == 200


def test_a_field_that_nobody_knows_is_told_once(server: EngineServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert ask(server, temprature=0.5).status_code == 200
    assert caplog.text.count("'temprature'") == 1


def test_errors_are_those_of_the_sdk(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=CHAT["messages"])  # type: ignore[arg-type]
    assert missing.value.code == "model_not_found"
    assert "this server has 'tiny'" in missing.value.message
    with pytest.raises(BadRequestError) as long:
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "clips " * 500}])
    assert long.value.code == "context_length_exceeded"
    assert "maximum context length is 256" in long.value.message
    with pytest.raises(BadRequestError) as ids:
        client.completions.create(model=NAME, prompt=[5] * 256)
    assert (ids.value.code, ids.value.param) == ("context_length_exceeded", "prompt")
