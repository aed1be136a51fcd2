"""Trace a LangChain agent without changing it, then debug one rollout offline, from its record.

    python examples/gateway_langchain.py

The first run records every exchange. In the second there is no model any more: the gateway answers from the record of
one rollout, by its id, so that a debugger can stop anywhere in the agent. Needs `pip install langchain-openai`.
"""

import asyncio
from pathlib import Path
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from local_model import local_model

from sharpen import LLM, LLMProxy, SQLiteStore, Trainer, rollout


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def solve(model: ChatOpenAI, question: str) -> str:
    bound, talk = model.bind_tools([add]), list[AnyMessage]([HumanMessage(question)])
    while True:
        said: Any = bound.invoke(talk)
        if not said.tool_calls:
            return str(said.content)
        talk.append(said)
        talk += [ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"]) for call in said.tool_calls]


def model_at(llm: LLM) -> ChatOpenAI:
    key: Any = llm.resolve_api_key() or "none"
    return ChatOpenAI(model=llm.model, base_url=llm.get_base_url(), api_key=key)


@rollout
def agent(task: str, llm: LLM) -> None:
    print(solve(model_at(llm), task))


async def replay(run_dir: Path | None) -> None:
    store = SQLiteStore(f"{run_dir}/store.db")
    last = (await store.query_rollouts())[-1]
    async with LLMProxy(store=store, mode="replay", replay_rollout=last.rollout_id) as gateway:
        print("again, without a model:", solve(model_at(gateway.as_resource(model="tiny")), last.input))
    await store.close()


if __name__ == "__main__":
    with local_model() as url:
        gateway = LLMProxy(model_list=[{"name": "tiny", "base_url": url}], mode="record")
        result = Trainer(llm_proxy=gateway, strategy="shm").dev(agent, ["What is 17 + 25?", "What is 58 + 25?"])
    asyncio.run(replay(result.run_dir))
