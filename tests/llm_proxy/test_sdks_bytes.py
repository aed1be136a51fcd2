"""Byte for byte: what goes up is what the agent sent, what comes down is what the upstream said."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from sharpen import SQLiteStore
from sharpen.llm_proxy import LLMProxy
from sharpen.semconv import SHARPEN_LLM_CALL

from .readings import said_by
from .scenes import Scene, scene
from .scripted import Fault, Reply, ScriptedUpstream

TALK = [{"role": "user", "content": "hello there, Zoë ☕"}]
APIS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": TALK},
    "completions": {"prompt": "Once upon a time"},
    "responses": {"input": "hello there, Zoë ☕"},
    "embeddings": {"input": ["one", "two"]},
    "messages": {"messages": TALK, "max_tokens": 64},
}
STREAMED = [api for api in APIS if api != "embeddings"]


def asked_with(body: bytes, at: Scene, api: str) -> list[httpx.Response]:
    headers = {"content-type": "application/json", "authorization": "Bearer sk-agent"}
    return [httpx.post(f"{url}/{api}", content=body, headers=headers) for url in (at.direct_url, at.gateway_url)]


@pytest.mark.parametrize(("api", "is_stream"), [*((api, False) for api in APIS), *((api, True) for api in STREAMED)])
def test_nothing_is_changed_on_the_way(upstream, api, is_stream):
    # Spaces and an order of keys that no encoder would write.
    request = {**APIS[api], **({"stream": True} if is_stream else {}), "model": "scripted", "x_unknown": [1, 2.50]}
    body = json.dumps(request, indent=3, ensure_ascii=False).encode()
    with scene(upstream) as at:
        direct, through = asked_with(body, at, api)
        assert upstream.requests[0].body == upstream.requests[1].body == body
        assert (through.status_code, through.content) == (direct.status_code, direct.content)
        for name in ("content-type", "x-request-id"):
            assert through.headers[name] == direct.headers[name]
        assert len(at.spans()) == 1


@pytest.mark.parametrize("api", APIS)
def test_an_error_is_not_changed_either(upstream, api):
    with scene(upstream) as at:
        upstream.default_reply = Fault("status", status=418, message="a teapot")
        direct, through = asked_with(json.dumps({**APIS[api], "model": "scripted"}).encode(), at, api)
        assert (through.status_code, through.content) == (direct.status_code, direct.content)


def test_a_compressed_answer_passes_and_is_read(upstream):
    upstream.default_reply = Reply("well packed", gzip=True)
    with scene(upstream) as at:
        direct, through = asked_with(json.dumps({"messages": TALK, "model": "m"}).encode(), at, "chat/completions")
        assert through.content == direct.content
        (span,) = at.spans()
        assert said_by(span).text == "well packed"


def test_the_first_byte_is_not_held_back(upstream):
    hold = threading.Event()
    upstream.script(Reply(hold=hold))
    with scene(upstream) as at:
        client = OpenAI(base_url=at.gateway_url, api_key="sk-agent")
        stream = client.chat.completions.create(model="scripted", messages=TALK, stream=True)  # type: ignore[call-overload]
        assert next(iter(stream)).choices[0].delta.role == "assistant"  # the upstream has sent no more yet
        hold.set()
        assert len(list(stream)) > 3
        assert len(at.spans()) == 1  # there already when the last byte is


def test_calls_of_several_rollouts_at_once_are_not_mixed_up(vllm):
    async def ask(client: AsyncOpenAI, text: str) -> None:
        await client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": text}])

    async def all_of_them(places: dict[str, str]) -> None:
        clients = {name: AsyncOpenAI(base_url=url, api_key="sk-agent") for name, url in places.items()}
        await asyncio.gather(*(ask(client, name) for name, client in clients.items() for _ in range(5)))
        for client in clients.values():
            await client.close()

    with scene(vllm) as at:
        started = [asyncio.run(at.store.start_rollout(number)) for number in range(10)]
        urls = {
            each.rollout_id: at.proxy.as_resource(each.rollout_id, each.attempt.attempt_id, model="scripted").endpoint
            for each in started
        }
        asyncio.run(all_of_them(urls))
        for rollout_id in urls:
            spans = asyncio.run(at.store.query_spans(rollout_id, name=SHARPEN_LLM_CALL))
            assert [said_by(span).text for span in spans] == [f"You said: {rollout_id}"] * 5


def test_a_gateway_process_records_into_a_file_and_its_keys_stay_out_of_it(tmp_path):
    path = tmp_path / "store.db"
    with ScriptedUpstream("vllm", api_key="sk-very-secret") as upstream:
        store = SQLiteStore(path)
        rollout = asyncio.run(store.start_rollout("a task"))
        entry = {"name": "scripted", "base_url": upstream.base_url, "api_key": "sk-very-secret"}
        with LLMProxy(model_list=[entry], store=store) as proxy:
            llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
            client = OpenAI(base_url=llm.endpoint, api_key="sk-of-the-agent")
            said = client.chat.completions.create(model="scripted", messages=TALK)  # type: ignore[arg-type]
            spans = asyncio.run(store.query_spans(rollout.rollout_id, name=SHARPEN_LLM_CALL))
        assert [said_by(span).text for span in spans] == [said.choices[0].message.content]
        assert said_by(spans[0]).response_ids
        asyncio.run(store.close())
    for file in tmp_path.iterdir():
        assert b"sk-very-secret" not in file.read_bytes()
        assert b"sk-of-the-agent" not in file.read_bytes()
