"""Record with a model, replay without one: an SDK cannot tell the difference."""

import asyncio
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from sharpen.llm_proxy import LLMProxy

from . import test_sdks_anthropic, test_sdks_openai
from .scenes import Scene, scene
from .scripted import Fault

CASES = [
    *((OpenAI, ask) for ask, _ in test_sdks_openai.CASES),
    *((Anthropic, ask) for ask, _ in test_sdks_anthropic.CASES),
]


def client_of(kind: Any, url: str) -> Any:
    return kind(base_url=url, api_key="sk-agent", max_retries=0)


def replayed(at: Scene, **settings: Any) -> LLMProxy:
    return LLMProxy(store=at.store, mode="replay", launch_mode="thread", **settings)


@pytest.mark.parametrize(("kind", "ask"), CASES, ids=lambda value: value.__name__)
def test_a_replay_from_a_file_is_the_same(upstream, tmp_path, kind, ask):
    path = tmp_path / "record.jsonl"
    with scene(upstream, mode="record", record=path) as at:
        first = ask(client_of(kind, at.gateway_url))
        asked = len(upstream.requests)
    with replayed(at, record=path) as proxy:
        again = ask(client_of(kind, proxy.as_resource(model="scripted").endpoint))
    assert again == first
    assert len(upstream.requests) == asked
    assert "sk-" not in path.read_text()


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        (OpenAI, test_sdks_openai.chat_tools),
        (OpenAI, test_sdks_openai.responses_stream),
        (Anthropic, test_sdks_anthropic.stream_helper),
    ],
)
def test_a_rollout_is_replayed_by_its_id_as_often_as_wanted(vllm, kind, ask):
    with scene(vllm, mode="record") as at:
        first = ask(client_of(kind, at.gateway_url))
    with replayed(at, replay_rollout=at.rollout.rollout_id) as proxy:
        for _ in range(2):
            started = asyncio.run(at.store.start_rollout("again"))
            url = proxy.as_resource(started.rollout_id, started.attempt.attempt_id, model="scripted").endpoint
            assert ask(client_of(kind, url)) == first


def test_what_is_not_in_the_record_is_a_clear_error_and_so_is_what_is_used_up(upstream, tmp_path):
    path = tmp_path / "record.jsonl"
    with scene(upstream, mode="record", record=path) as at:
        test_sdks_openai.chat(client_of(OpenAI, at.gateway_url))
    with replayed(at, record=path) as proxy:
        client = client_of(OpenAI, proxy.as_resource(model="scripted").endpoint)
        with pytest.raises(openai.NotFoundError):
            test_sdks_openai.chat_two(client)
        test_sdks_openai.chat(client)
        with pytest.raises(openai.APIStatusError):
            test_sdks_openai.chat(client)


def test_errors_are_replayed_as_they_were(upstream, tmp_path):
    path = tmp_path / "record.jsonl"
    raised = []
    with scene(upstream, mode="record", record=path) as at:
        upstream.script(Fault("status", status=429, message="busy"))
        with pytest.raises(openai.RateLimitError) as caught:
            test_sdks_openai.chat(client_of(OpenAI, at.gateway_url))
        raised.append(caught.value)
    with replayed(at, record=path) as proxy:
        with pytest.raises(openai.RateLimitError) as caught:
            test_sdks_openai.chat(client_of(OpenAI, proxy.as_resource(model="scripted").endpoint))
        raised.append(caught.value)
    assert (
        raised[0].body == raised[1].body == {"message": "busy", "type": "rate_limit_error", "param": None, "code": None}
    )
