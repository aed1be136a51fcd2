"""The OpenAI Agents SDK through the gateway: runs, streams, tools and handoffs, each agent under its own role."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from .readings import said_by
from .replies import Reply, token_ids_of
from .scenes import Scene, scene


@pytest.fixture(autouse=True)
def _no_calls_home() -> Iterator[None]:
    """The SDK's own tracing sends what it sees to a server of its maker."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


class City(BaseModel):
    name: str
    inhabitants: int


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="sk-agent", max_retries=0)


async def run(model: Model) -> Any:
    return (await Runner.run(Agent("Greeter", instructions="Be brief.", model=model), "hello there")).final_output


async def run_with_a_tool(model: Model) -> Any:
    done = await Runner.run(Agent("Reporter", model=model, tools=[weather]), "hello there")
    assert done.final_output == "You said: sunny in Rome"
    return [item.type for item in done.new_items], done.final_output, done.context_wrapper.usage.total_tokens


async def run_streamed(model: Model) -> Any:
    running = Runner.run_streamed(Agent("Reporter", model=model, tools=[weather]), "hello there")
    return [event.type async for event in running.stream_events()], running.final_output


async def run_structured(model: Model) -> Any:
    done = await Runner.run(Agent("Clerk", model=model, output_type=City), "hello there")
    assert done.final_output == City(name="Rome", inhabitants=42)
    return done.final_output


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
@pytest.mark.parametrize("ask", [run, run_with_a_tool, run_streamed, run_structured])
def test_the_gateway_changes_nothing_and_records_everything(upstream, kind, ask):
    async def asked_at(url: str) -> Any:
        async with client_of(url) as client:
            return await ask(kind("scripted", client))

    with scene(upstream) as at:
        direct, through = at.both(lambda url: asyncio.run(asked_at(url)))
        assert through == direct
        calls = len(upstream.requests) // 2
        sent = [asked.body for asked in upstream.requests]
        assert sent[:calls] == sent[calls:]
        spans = at.spans()
        assert len(spans) == calls > 0
        assert all(span.status.status_code != "ERROR" for span in spans)


def role_url(at: Scene, name: str) -> str:
    llm = at.proxy.as_resource(model="scripted").for_role(name)
    return llm.get_base_url(at.rollout.rollout_id, at.rollout.attempt.attempt_id).removesuffix("/v1") + "/v1"


async def _hand_off(at: Scene, *, is_streamed: bool) -> Any:
    async with client_of(role_url(at, "poet")) as of_the_poet, client_of(role_url(at, "desk")) as of_the_desk:
        poet = Agent("Poet", model=OpenAIChatCompletionsModel("scripted", of_the_poet))
        desk = Agent("Desk", model=OpenAIChatCompletionsModel("scripted", of_the_desk), handoffs=[poet])
        if not is_streamed:
            return await Runner.run(desk, "a poem, please")
        running = Runner.run_streamed(desk, "a poem, please")
        async for _ in running.stream_events():
            pass
        return running


@pytest.mark.parametrize("is_streamed", [False, True])
def test_after_a_handoff_each_agent_is_recorded_under_its_own_role(vllm, is_streamed):
    vllm.script(Reply(tool_calls=[("transfer_to_poet", {})]), Reply("Roses are red."))
    with scene(vllm) as at:
        done = asyncio.run(_hand_off(at, is_streamed=is_streamed))
        assert (done.final_output, done.last_agent.name) == ("Roses are red.", "Poet")
        first, second = at.spans()
        assert [span.attributes["gen_ai.agent.name"] for span in (first, second)] == ["desk", "poet"]
        assert said_by(first).tool_calls == [("transfer_to_poet", {})]
        assert said_by(second).response_ids == token_ids_of("Roses are red.")
