"""Calls on their way to an upstream, the clock that they go by, and what comes back."""

import json
from collections.abc import Mapping
from typing import Any

from sharpen import ModelEntry
from tests.llm_proxy.internals import Api, Call, Place, UpstreamAnswer

KEY = "sk-upstream-1234567890"


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def entry_of(base_url: str, model_name: str = "scripted", **more: Any) -> ModelEntry:
    return ModelEntry(model_name, base_url=base_url, **more)


def call_to(
    request: dict[str, Any] | None = None,
    *,
    api: Api = "chat",
    place: Place | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Call:
    """A call with a question of its API."""
    questions: dict[Api, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": "hello"}]},
        "completions": {"prompt": "hello"},
        "responses": {"input": "hello"},
        "embeddings": {"input": ["hello"]},
        "messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 16},
    }
    asked = {"model": "scripted", **questions[api], **(request or {})}
    data = json.dumps(asked).encode() if body is None else body
    return Call("call-1", api, place, data, json.loads(data), dict(headers or {}))


async def read(answer: UpstreamAnswer) -> bytes:
    """The whole body; the answer is closed."""
    try:
        return b"".join([piece async for piece in answer])
    finally:
        await answer.aclose()


def events_in(body: bytes) -> list[dict[str, Any]]:
    """The data of a stream's events, without the mark of its end."""
    lines = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
