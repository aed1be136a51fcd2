"""The scripted upstream keeps its word, asked with the real SDKs."""

import json
import threading
import time

import openai
import pytest
from openai import OpenAI

from tests.errors import raises

from .replies import token_ids_of
from .scenes import wait_until
from .scripted import Fault, Reply, ScriptedUpstream

HELLO = [{"role": "user", "content": "hello there"}]


def client_of(upstream: ScriptedUpstream, **more) -> OpenAI:
    return OpenAI(base_url=upstream.base_url, api_key="sk-any", **{"max_retries": 0, **more})


def test_it_answers_from_the_question_alone(upstream):
    client = client_of(upstream)
    said = [client.chat.completions.create(model="scripted", messages=HELLO) for _ in range(2)]
    assert said[0] == said[1]
    assert said[0].choices[0].message.content == "You said: hello there"
    assert said[0].usage.total_tokens == 2 + 4
    assert upstream.requests[0].json == {"model": "scripted", "messages": HELLO}
    assert upstream.requests[0].headers["authorization"] == "Bearer sk-any"


def test_a_stream_says_the_same(upstream):
    chunks = list(client_of(upstream).chat.completions.create(model="scripted", messages=HELLO, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: hello there"


def test_an_engine_gives_token_ids_and_logprobs_and_a_hosted_api_refuses_to(upstream, vllm):
    extra = {"extra_body": {"return_token_ids": True}, "logprobs": True}
    said = client_of(vllm).chat.completions.create(model="scripted", messages=HELLO, **extra)
    choice = said.choices[0]
    assert choice.token_ids == token_ids_of(choice.message.content)
    assert len(choice.logprobs.content) == len(choice.token_ids)
    assert said.prompt_token_ids == token_ids_of(" hello there")
    streamed = list(client_of(vllm).chat.completions.create(model="scripted", messages=HELLO, stream=True, **extra))
    ids = [each for chunk in streamed for each in getattr(chunk.choices[0], "token_ids", [])]
    assert ids == choice.token_ids
    assert streamed[0].prompt_token_ids == said.prompt_token_ids
    with raises(openai.BadRequestError, "return_token_ids"):
        client_of(upstream).chat.completions.create(model="scripted", messages=HELLO, **extra)


def test_the_script_comes_first_and_in_order(upstream):
    upstream.script(Reply("one"), Reply(tool_calls=[("add", {"a": 1})]))
    client = client_of(upstream)
    first, second, third = (client.chat.completions.create(model="m", messages=HELLO) for _ in range(3))
    assert first.choices[0].message.content == "one"
    assert second.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'
    assert second.choices[0].finish_reason == "tool_calls"
    assert third.choices[0].message.content == "You said: hello there"


def test_faults_reach_the_client(upstream):
    client = client_of(upstream, timeout=5)

    def ask(**more):
        return client.chat.completions.create(model="m", messages=HELLO, **more)

    upstream.script(Fault("status", status=429, retry_after="7"), Fault("reset"), Fault("malformed"), Fault("cut"))
    with pytest.raises(openai.RateLimitError) as limited:
        ask()
    assert limited.value.response.headers["retry-after"] == "7"
    with pytest.raises(openai.APIConnectionError):
        ask()
    with pytest.raises(json.JSONDecodeError):
        ask()
    with pytest.raises(openai.APIConnectionError):
        ask()
    upstream.script(Fault("cut"), Fault("cut", is_reset=True), Fault("slow", delay_seconds=0.1))
    for _ in range(2):
        stream = ask(stream=True)
        with pytest.raises(openai.APIConnectionError):
            list(stream)
    begin = time.monotonic()
    assert ask().choices[0].message.content == "You said: hello there"
    assert time.monotonic() - begin > 0.09
    wait_until(lambda: [asked.outcome for asked in upstream.requests] == ["faulty"] * 6 + ["answered"])


def test_it_notices_a_client_that_hangs_up(upstream):
    hold = threading.Event()
    upstream.script(Reply(hold=hold))
    with client_of(upstream).chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        next(iter(stream))
    deadline = time.monotonic() + 5
    while upstream.requests[0].outcome != "left" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert upstream.requests[0].outcome == "left"


def test_it_can_ask_for_a_key():
    with ScriptedUpstream(api_key="sk-right") as upstream:
        with pytest.raises(openai.AuthenticationError):
            client_of(upstream).chat.completions.create(model="m", messages=HELLO)
        client = OpenAI(base_url=upstream.base_url, api_key="sk-right")
        assert [model.id for model in client.models.list()] == ["scripted"]
