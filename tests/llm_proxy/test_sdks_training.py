"""From an SDK to training data: a run with a gateway, its spans, and what adapters make of them."""

import asyncio
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from anthropic import Anthropic
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI

from sharpen import (
    InMemoryLightningStore,
    LlmProxyTraceToTriplet,
    TracerTraceToTriplet,
    TraceToMessages,
    Trainer,
    rollout,
)
from sharpen.llm_proxy import LLMProxy

from . import test_sdks_anthropic, test_sdks_langchain, test_sdks_openai
from .replies import token_ids_of


@rollout
def with_openai(task: str, llm: Any) -> float:
    test_sdks_openai.chat_tools(OpenAI(base_url=llm.get_base_url(), api_key="sk-agent"))
    return 1.0


@rollout
def with_anthropic(task: str, llm: Any) -> float:
    test_sdks_anthropic.tools(Anthropic(base_url=llm.get_base_url(), api_key="sk-agent"))
    return 1.0


@rollout
def with_langchain(task: str, llm: Any) -> float:
    test_sdks_langchain.tools(ChatOpenAI(model=llm.model, base_url=llm.get_base_url(), api_key="sk-agent"))  # type: ignore[arg-type]
    return 1.0


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@rollout
async def with_agents_sdk(task: str, llm: Any) -> float:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key="sk-agent") as client:
        model = OpenAIChatCompletionsModel(llm.model, client)
        await Runner.run(Agent("Reporter", model=model, tools=[weather]), "hello there")
    return 1.0


@pytest.mark.parametrize("agent", [with_openai, with_anthropic, with_langchain, with_agents_sdk])
def test_a_turn_with_a_tool_becomes_two_samples_however_often_it_was_seen(vllm, agent):
    """The SDK's own instrumentation sees the calls too; they count once."""
    store = InMemoryLightningStore()
    name = "claude-scripted" if agent is with_anthropic else "scripted"
    gateway = LLMProxy(model_list=[{"name": name, "base_url": vllm.base_url}])
    result = Trainer(llm_proxy=gateway, store=store, strategy="shm", dev=True).dev(agent, ["a task"])
    assert result.metrics["llm/calls"] == 2
    (done,) = asyncio.run(store.query_rollouts(status_in=["succeeded"]))
    spans = asyncio.run(store.query_spans(done.rollout_id))
    for adapter in (TracerTraceToTriplet(), LlmProxyTraceToTriplet()):
        triplets = adapter.adapt(spans)
        assert [triplet.reward for triplet in triplets] == [None, 1.0]
        if agent is not with_anthropic:  # whose API gives no token ids
            assert triplets[1].response["token_ids"][:2] == token_ids_of("You said: sunny")[:2]
    first, second = TraceToMessages().adapt(spans)
    assert first["messages"][-1]["tool_calls"][0]["function"]["name"] == "weather"
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert second["messages"][-1]["content"].startswith("You said: sunny")
    assert second["tools"][0]["function"]["name"] == "weather"
