"""Trace agents of the OpenAI Agents SDK that hand over to each other, each under its own role.

    python examples/gateway_agents_sdk.py

A role in the URL says which agent of several made a call, so that one of them can be trained alone. Needs
`pip install openai-agents`.
"""

import asyncio
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from local_model import local_model
from openai import AsyncOpenAI

from sharpen import AttemptedRollout, LLMProxy, NamedResources, ProxyLLM, SQLiteStore, Trainer, rollout
from sharpen.semconv import SHARPEN_LLM_CALL


@function_tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@rollout
async def agent(task: dict[str, Any], resources: NamedResources, rollout: AttemptedRollout) -> float:
    set_tracing_disabled(True)  # the SDK's own tracing would send everything to its maker
    llm = resources["main_llm"]
    assert isinstance(llm, ProxyLLM)

    def model_of(role: str) -> OpenAIChatCompletionsModel:
        bound = llm.for_role(role).with_attempted_rollout(rollout)
        return OpenAIChatCompletionsModel(llm.model, AsyncOpenAI(base_url=bound.endpoint, api_key="none"))

    calculator = Agent("Calculator", model=model_of("calculator"), tools=[add])
    desk = Agent("Desk", model=model_of("desk"), handoffs=[calculator])
    done = await Runner.run(desk, task["question"])
    return float(str(task["answer"]) in str(done.final_output))


async def show(run_dir: Path | None) -> None:
    store = SQLiteStore(f"{run_dir}/store.db")
    for done in await store.query_rollouts():
        spans = await store.query_spans(done.rollout_id, name=SHARPEN_LLM_CALL)
        print(done.input["question"], *(span.attributes["gen_ai.agent.name"] for span in spans))
    await store.close()


if __name__ == "__main__":
    tasks = [{"question": f"What is {a} + 25?", "answer": a + 25} for a in (17, 40)]
    with local_model() as url:
        gateway = LLMProxy(model_list=[{"name": "tiny", "base_url": url}])
        result = Trainer(llm_proxy=gateway).dev(agent, tasks)
    print(f"{result.metrics['llm/calls']:.0f} calls, mean reward {result.metrics['run/reward_mean']:.2f}")
    asyncio.run(show(result.run_dir))
