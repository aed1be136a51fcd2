"""Providers that are asked through LiteLLM, against a real server behind one of its OpenAI-like providers."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from sharpen import ModelEntry
from sharpen.errors import ConfigError, MissingExtraError
from tests.errors import raises
from tests.http.internals import Unsent
from tests.llm_proxy.internals import (
    Call,
    LiteLLMUpstream,
    Refusal,
    UpstreamAnswer,
    Upstreams,
    load_litellm,
    parse_model_list,
)

from .scripted import Fault, ScriptedUpstream
from .sending import KEY, call_to, events_in, read

has_litellm = find_spec("litellm") is not None
needs_litellm = pytest.mark.litellm


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def entry_for(upstream: ScriptedUpstream, model: str = "deepinfra/scripted", **more: Any) -> ModelEntry:
    """DeepInfra speaks OpenAI's API, and is not among those that are asked directly."""
    settings: dict[str, Any] = {"base_url": upstream.base_url, "api_key": KEY} | more
    return ModelEntry("scripted", model, provider="litellm", **settings)


async def send(upstream: ScriptedUpstream, call: Call, **more: Any) -> UpstreamAnswer:
    return await LiteLLMUpstream(entry_for(upstream, **more)).send(call)


@pytest.mark.skipif(has_litellm, reason="litellm is installed here")
def test_without_litellm_the_extra_is_named() -> None:
    with raises(MissingExtraError, "sharpen[litellm]"):
        load_litellm()
    assert "LITELLM_LOCAL_MODEL_COST_MAP" in os.environ, "as the test set it"


@needs_litellm
async def test_a_chat_has_the_form_of_its_api(upstream: ScriptedUpstream) -> None:
    call = call_to({"temperature": 0.5})
    answer = await send(upstream, call)
    said = json.loads(await read(answer))
    assert (answer.status, dict(answer.headers)["content-type"]) == (200, "application/json")
    assert said["object"] == "chat.completion"
    assert said["choices"][0]["message"]["content"] == "You said: hello"
    assert said["usage"]["prompt_tokens"] > 0
    asked = upstream.requests[0]
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.json.items() >= {"model": "scripted", "temperature": 0.5}.items()


@needs_litellm
async def test_a_streamed_chat_comes_as_server_sent_events(upstream: ScriptedUpstream) -> None:
    answer = await send(upstream, call_to({"stream": True}))
    body = await read(answer)
    assert dict(answer.headers)["content-type"].startswith("text/event-stream")
    assert body.endswith(b"data: [DONE]\n\n")
    events = events_in(body)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert text == "You said: hello"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@needs_litellm
@pytest.mark.parametrize("is_stream", [False, True])
async def test_tools_go_there_and_come_back(upstream: ScriptedUpstream, is_stream: bool) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    body = await read(await send(upstream, call_to({"tools": [tool], "stream": is_stream})))
    assert b'"weather"' in body
    assert b"tool_calls" in body


@needs_litellm
@pytest.mark.parametrize("is_stream", [False, True])
async def test_completions(upstream: ScriptedUpstream, is_stream: bool) -> None:
    # With its own name: DeepInfra has no completions in LiteLLM.
    call = call_to({"stream": is_stream}, api="completions")
    body = await read(await send(upstream, call, model="openai/scripted"))
    said = events_in(body) if is_stream else [json.loads(body)]
    assert {each["object"] for each in said} == {"text_completion"}
    assert "".join(each["choices"][0].get("text") or "" for each in said) == "You said: hello"
    assert body.endswith(b"[DONE]\n\n") is is_stream


@needs_litellm
async def test_embeddings(upstream: ScriptedUpstream) -> None:
    body = await read(await send(upstream, call_to(api="embeddings"), model="hosted_vllm/scripted"))
    said = json.loads(body)
    assert said["object"] == "list"
    assert len(said["data"][0]["embedding"]) > 1


@needs_litellm
@pytest.mark.parametrize("is_stream", [False, True])
async def test_responses(upstream: ScriptedUpstream, is_stream: bool) -> None:
    body = await read(await send(upstream, call_to({"stream": is_stream}, api="responses"), model="openai/scripted"))
    if not is_stream:
        assert json.loads(body)["output"][0]["content"][0]["text"] == "You said: hello"
        return
    events = events_in(body)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert body.startswith(b"event: response.created\ndata: ")
    assert "".join(each.get("delta", "") for each in events) == "You said: hello"


@needs_litellm
@pytest.mark.parametrize("is_stream", [False, True])
async def test_messages(upstream: ScriptedUpstream, is_stream: bool) -> None:
    call = call_to({"stream": is_stream}, api="messages")
    body = await read(await send(upstream, call, model="hosted_vllm/scripted"))
    if not is_stream:
        said = json.loads(body)
        assert (said["type"], said["content"][0]["text"]) == ("message", "You said: hello")
        return
    events = events_in(body)
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    assert body.startswith(b"event: message_start\n")
    text = "".join(each["delta"].get("text", "") for each in events if each["type"] == "content_block_delta")
    assert text == "You said: hello"


# -- the entry ---------------------------------------------------------------------------------------


@needs_litellm
async def test_an_entry_of_the_model_list_is_asked_through_litellm(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEP_KEY", KEY)
    params = {"model": "deepinfra/scripted", "api_base": upstream.base_url, "api_key": "os.environ/DEEP_KEY"}
    entries = parse_model_list([{"model_name": "mine", "litellm_params": params | {"temperature": 0.25}}])
    assert entries[0].provider == "litellm"
    upstreams = Upstreams(entries)
    call = call_to({"model": "mine"})
    assert b"You said: hello" in await read(await upstreams.choose(call)[0].send(call))
    asked = upstream.requests[0]
    assert (asked.json["model"], asked.json["temperature"]) == ("scripted", 0.25)
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    await upstreams.aclose()


@needs_litellm
async def test_what_the_agent_sets_comes_before_the_entry(upstream: ScriptedUpstream) -> None:
    params = {"temperature": 0.25, "top_p": 0.5}
    call = call_to({"temperature": 0.75})
    await read(
        await send(upstream, call, litellm_params=params, defaults={"max_tokens": 9}, headers={"x-team": "blue"})
    )
    asked = upstream.requests[0]
    assert asked.json.items() >= {"temperature": 0.75, "top_p": 0.5, "max_tokens": 9}.items()
    assert asked.headers["x-team"] == "blue"
    assert call.added == {"max_tokens"}


@needs_litellm
def test_a_provider_that_litellm_does_not_know_is_refused_at_once() -> None:
    with raises(ConfigError, "Qwen/Qwen3", "openai/model"):
        LiteLLMUpstream(ModelEntry("x", "Qwen/Qwen3", provider="litellm"))


@needs_litellm
@pytest.mark.parametrize(
    "field", ["api_base", "base_url", "api_key", "extra_headers", "custom_llm_provider", "fallbacks"]
)
async def test_a_request_cannot_send_the_key_elsewhere(upstream: ScriptedUpstream, field: str) -> None:
    with raises(Refusal, field) as caught:
        await send(upstream, call_to({field: "http://127.0.0.1:9/v1"}))
    assert caught.value.status == 400
    assert upstream.requests == []


# -- faults ------------------------------------------------------------------------------------------


@needs_litellm
@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
async def test_an_error_keeps_its_status_and_loses_the_key(upstream: ScriptedUpstream, status: int) -> None:
    upstream.script(Fault("status", status=status, message=f"not with {KEY}"))
    answer = await send(upstream, call_to())
    body = await read(answer)
    assert answer.status == status
    assert "not with ***" in json.loads(body)["error"]["message"]
    assert len(upstream.requests) == 1, "litellm does not ask again by itself"


@needs_litellm
async def test_an_error_says_when_to_ask_again(upstream: ScriptedUpstream) -> None:
    upstream.script(Fault("status", status=429, retry_after="3"))
    answer = await send(upstream, call_to())
    assert ("retry-after", "3") in answer.headers
    await answer.aclose()


@needs_litellm
async def test_a_missing_field_is_the_fault_of_the_request(upstream: ScriptedUpstream) -> None:
    answer = await send(upstream, call_to({"max_tokens": None}, api="messages"))
    body = json.loads(await read(answer))
    assert (answer.status, body["type"]) == (400, "error")


@needs_litellm
async def test_nobody_there_is_certain_not_to_have_read_anything() -> None:
    with ScriptedUpstream() as gone:
        pass
    with pytest.raises(Unsent):
        await send(gone, call_to())


@needs_litellm
async def test_a_reset_is_not_certain_to_be_unread(upstream: ScriptedUpstream) -> None:
    upstream.script(Fault("reset"))
    with pytest.raises(ConnectionError) as caught:
        await send(upstream, call_to())
    assert not isinstance(caught.value, Unsent)


@needs_litellm
async def test_an_upstream_that_hangs_is_given_up_in_time(upstream: ScriptedUpstream) -> None:
    upstream.script(Fault("hang"))
    with pytest.raises(TimeoutError):
        await send(upstream, call_to(), timeout=0.2)


@needs_litellm
async def test_a_cut_stream_is_an_error_after_its_bytes(upstream: ScriptedUpstream) -> None:
    upstream.script(Fault("cut"))
    answer = await send(upstream, call_to({"stream": True}))
    assert await anext(aiter(answer))
    with pytest.raises(ConnectionError):
        await read(answer)


@needs_litellm
async def test_a_client_that_leaves_closes_the_stream(upstream: ScriptedUpstream) -> None:
    answer = await send(upstream, call_to({"stream": True}))
    assert await anext(aiter(answer))
    await answer.aclose()
    await answer.aclose()


@needs_litellm
def test_loading_litellm_calls_nobody_and_says_nothing() -> None:
    code = """
import os, socket
os.environ.pop("LITELLM_LOCAL_MODEL_COST_MAP", None)
def refuse(*args, **more): raise SystemExit(f"it called home: {args}")
socket.socket.connect = socket.create_connection = refuse
from sharpen.llm_proxy.upstreams.litellm_upstream import load_litellm
litellm = load_litellm()
assert litellm.telemetry is False and "LITELLM_LOCAL_MODEL_COST_MAP" not in os.environ
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
