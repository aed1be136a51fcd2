"""Keys that were sent with a call are nowhere written down, whoever repeats them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.llm_proxy import LLMProxy
from sharpen.secrets import shown
from sharpen.store import InMemoryLightningStore
from tests.errors import raises
from tests.llm_proxy.internals import RecordFile, Upstreams, _without, key_of, parse_model_list, secrets_of

from .heart import CHAT, one_span, served, start
from .scripted import Fault, Reply, ScriptedUpstream
from .sending import entry_of

SECRETS = {"api_key": "my-corp-key-0123456789", "headers": {"x-auth": "env:X_AUTH_OF_TEST"}}


@pytest.mark.parametrize("secret", ["my-corp-key-0123456789", "from-the-environment-1"])
@pytest.mark.parametrize("is_error", [True, False])
async def test_a_key_that_the_upstream_repeats_is_not_written_down(
    upstream: ScriptedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, is_error: bool
) -> None:
    monkeypatch.setenv("X_AUTH_OF_TEST", "from-the-environment-1")
    words = f"token {secret} is not valid"
    upstream.script(Fault("status", status=401, message=words) if is_error else Reply(words))
    store = InMemoryLightningStore()
    rollout, path = await start(store)
    entry: dict[str, Any] = {"model_name": "scripted", "base_url": upstream.base_url, "engine": "none", **SECRETS}
    with RecordFile(tmp_path / "record.jsonl") as record:
        books = {"record": record}
        async with served(store, choice=Upstreams(parse_model_list([entry])), books=books) as gateway:
            _, _, body = await gateway.post(f"{path}/chat/completions", CHAT)
            span = await one_span(store, rollout)
    written = json.dumps(dict(span.attributes), default=str) + str(span.status)
    assert (secret.encode() in body) is not is_error  # an answer is passed on as it is, an error without keys
    assert re.search(r"token \*+ is not valid", written)
    assert secret not in written
    assert secret not in (tmp_path / "record.jsonl").read_text()


async def test_a_key_of_the_client_is_not_written_down_either(upstream: ScriptedUpstream) -> None:
    upstream.script(Fault("status", status=401, message="corp-client-key-77 is wrong"))
    store = InMemoryLightningStore()
    rollout, path = await start(store)
    async with served(store, upstream.base_url) as gateway:
        await gateway.post(f"{path}/chat/completions", CHAT, authorization="Bearer corp-client-key-77")
        span = await one_span(store, rollout)
    assert "corp-client-key-77" not in json.dumps(dict(span.attributes), default=str) + str(span.status)


def test_a_word_that_stands_in_for_a_key_is_no_secret() -> None:
    entry = entry_of("http://127.0.0.1:9/v1", api_key="EMPTY", headers={"x-version": "1"})
    assert secrets_of({"authorization": "Bearer anything"}, entry) == []


# -- messages ----------------------------------------------------------------------------------------


def test_headers_of_an_entry_are_not_shown() -> None:
    spec = {"type": "LLMProxy", "model_list": [{"name": "m", "headers": {"x-auth": "abc-hidden"}}]}
    assert "abc-hidden" not in shown(spec)
    with pytest.raises(ConfigError) as caught:
        LLMProxy(model_list=[{"base_url": "http://h/v1", "headers": {"x-auth": "abc-hidden"}}])
    assert "abc-hidden" not in str(caught.value)


@pytest.mark.parametrize("name", ["client_assertion", "azure_thing"])
def test_an_unknown_parameter_is_named_without_its_value(name: str) -> None:
    params = {"model": "openai/x", "api_base": "http://h/v1", name: "ey-hidden"}
    with raises(ConfigError, name) as caught:
        LLMProxy(model_list=[{"model_name": "m", "litellm_params": params}])
    assert "ey-hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"vertex_credentials": {"private_key": "PRIVATE-9"}},
        {"vertex_credentials": '{"type": "x", "inner": [{"private_key": "PRIVATE-9"}]}'},
        {"aws_session_name": "PRIVATE-9"},
        {"extra_headers": {"x-auth": "PRIVATE-9"}},
    ],
)
def test_secrets_inside_the_settings_of_litellm_are_taken_out_of_its_errors(settings: dict[str, Any]) -> None:
    assert _without("bad credentials: PRIVATE-9", settings) == "bad credentials: ***"


# -- records -----------------------------------------------------------------------------------------


def _login(password: str) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "1", "name": "login", "input": {"password": password}}
    return {"model": "m", "messages": [{"role": "assistant", "content": [call]}]}


def _with_schema(kind: str) -> dict[str, Any]:
    parameters = {"properties": {"password": {"type": kind}}}
    return {"model": "m", "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}


def _with_server(key: str) -> dict[str, Any]:
    tool = {"type": "mcp", "server_url": "http://h", "authorization": key, "headers": {"x": key}}
    return {"model": "m", "tools": [tool], "mcp_servers": [{"url": "http://h", "authorization_token": key}]}


def test_requests_that_differ_in_a_password_of_a_tool_are_two() -> None:
    assert key_of("messages", _login("a")) != key_of("messages", _login("b"))
    assert key_of("chat", _with_schema("string")) != key_of("chat", _with_schema("integer"))


def test_the_key_to_a_tools_server_may_change_between_record_and_replay() -> None:
    assert key_of("responses", _with_server("one")) == key_of("responses", _with_server("two"))


async def test_a_request_that_is_nested_deep_is_recorded(upstream: ScriptedUpstream) -> None:
    store = InMemoryLightningStore()
    rollout, path = await start(store)
    body = json.dumps(CHAT).encode()[:-1] + b', "x": ' + b"[" * 600 + b"]" * 600 + b"}"
    async with served(store, upstream.base_url, books={"keeps_exchanges": True}) as gateway:
        status, _, _ = await gateway.post(f"{path}/chat/completions", body)
        span = await one_span(store, rollout)
    assert status == 200
    assert span.attributes["sharpen.llm.exchange.request"] == body.decode()


def test_a_record_that_would_hold_nothing_is_refused() -> None:
    with raises(ConfigError, "capture_content=False"):
        LLMProxy(mode="record", capture_content=False, store=InMemoryLightningStore())
    assert LLMProxy(mode="record", capture_content=False, record="some.jsonl") is not None
