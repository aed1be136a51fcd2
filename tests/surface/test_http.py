"""What goes over HTTP and into spans: the interface of the store server, and the attributes of a gateway's span."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

from sharpen.store import InMemoryLightningStore, LightningStoreServer

from ..llm_proxy.replies import Fault, Reply
from ..llm_proxy.scenes import Scene, scene
from ..llm_proxy.scripted import ScriptedUpstream
from .conftest import Compare

WORDS = {"description", "summary", "title"}
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT = {"model": "scripted", "messages": HELLO, "temperature": 0.5, "max_tokens": 64, "seed": 1, "stop": ["END"]}
TOOLS = {**CHAT, "tools": [{"type": "function", "function": {"name": "weather", "parameters": TOOL}}]}
MESSAGES = {"model": "scripted", "messages": HELLO, "max_tokens": 64, "system": "Be brief."}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/chat/completions", CHAT),
    "chat, streamed": ("/chat/completions", {**CHAT, "stream": True}),
    "chat, two choices": ("/chat/completions", {**CHAT, "n": 2}),
    "chat, tools": ("/chat/completions", TOOLS),
    "completions": ("/completions", {"model": "scripted", "prompt": "hello", "max_tokens": 64}),
    "completions, streamed": ("/completions", {"model": "scripted", "prompt": "hello", "stream": True}),
    "responses": ("/responses", {"model": "scripted", "input": "hello", "instructions": "Be brief."}),
    "responses, streamed": ("/responses", {"model": "scripted", "input": "hello", "stream": True}),
    "messages": ("/messages", MESSAGES),
    "messages, streamed": ("/messages", {**MESSAGES, "stream": True}),
    "embeddings": ("/embeddings", {"model": "scripted", "input": "hello"}),
}
# Attributes with a closed set of values, which are compared too.
WITH_VALUE = {"gen_ai.operation.name", "gen_ai.provider.name", "sharpen.llm.api", "sharpen.llm.refused", "error.type"}
PRICE = {"input_cost_per_token": 0.1, "output_cost_per_token": 0.2}


async def test_the_openapi_document(compare: Compare) -> None:
    """Everything except descriptions and the version."""
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, token="a-token")
    await server.start()
    try:
        document = await asyncio.to_thread(_get, f"{server.endpoint}/v1/openapi.json")
    finally:
        await server.close()
        await store.close()
    del document["info"]["version"]
    compare("openapi.txt", _flat(document, ""))


def _get(url: str) -> Any:
    request = urllib.request.Request(url, headers={"authorization": "Bearer a-token"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def _flat(value: Any, path: str) -> Iterator[str]:
    """A line for each value, with its path; parameters are identified by name."""
    if isinstance(value, dict) and value:
        for key in sorted(value):
            # A property may be called "description".
            if key not in WORDS or path.endswith(" properties"):
                yield from _flat(value[key], f"{path} {key}".lstrip())
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for number, each in enumerate(value):
            yield from _flat(each, f"{path} [{each.get('name', number)}]")
    else:
        is_set = isinstance(value, list) and path.endswith(" required")
        yield f"{path}  {json.dumps(sorted(value) if is_set else value)}"


def test_the_attributes_of_a_gateway_span(compare: Compare) -> None:
    lines: list[str] = []
    with ScriptedUpstream("vllm") as upstream, scene(upstream, entry={"engine": "vllm", **PRICE}) as vllm:
        for name, (path, body) in CALLS.items():
            lines += _span(vllm, name, path, body)
    with ScriptedUpstream("sharpen", weights_version="7") as upstream, scene(upstream, entry=PRICE) as served:
        lines += _span(served, "chat, a served model that is trained", *CALLS["chat"])
    with ScriptedUpstream() as upstream, scene(upstream, mode="record") as recorded:
        lines += _span(recorded, "chat, recorded", *CALLS["chat"])
    with ScriptedUpstream() as upstream, scene(upstream, limits={"rollout_calls": 4}, num_retries=0) as hosted:
        upstream.script(Reply(refusal="No."), Fault("status", status=400), Fault("cut"), Fault("reset"))
        lines += _span(hosted, "chat, the model refuses", *CALLS["chat"])
        lines += _span(hosted, "chat, an error of the server", *CALLS["chat"])
        lines += _span(hosted, "chat, a stream that is cut", *CALLS["chat, streamed"])
        lines += _span(hosted, "chat, a connection that is reset", *CALLS["chat"])
        lines += _span(hosted, "chat, refused by a limit", *CALLS["chat"])
    compare("gateway-spans.txt", lines)


def _span(scene: Scene, name: str, path: str, body: dict[str, Any]) -> list[str]:
    """Facts about the span of one call."""
    before = len(scene.spans())
    headers = {"content-type": "application/json", "x-api-key": "sk-agent", "authorization": "Bearer sk-agent"}
    request = urllib.request.Request(f"{scene.gateway_url}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.read()
    except (urllib.error.HTTPError, HTTPException):  # the status of an error, or an answer that ends early
        pass
    (span,) = scene.spans()[before:]
    facts = {re.sub(r"\b\d+\b", "N", key): _kind(key, value) for key, value in span.attributes.items()}
    return [
        f"{name}  span  {span.name} {span.status.status_code}",
        *(f"{name}  {key}  {kind}" for key, kind in sorted(facts.items())),
        *(f"{name}  event  {event.name}" for event in span.events),
        *(f"{name}  resource  {key}" for key in sorted(span.resource.attributes if span.resource else ())),
    ]


def _kind(key: str, value: Any) -> str:
    if key in WITH_VALUE:
        return repr(value)
    if isinstance(value, list | tuple):
        return f"list of {' | '.join(sorted({type(each).__name__ for each in value}))}"
    return type(value).__name__
