"""Trace an agent of the `anthropic` client without changing it, and keep what each task cost.

    python examples/gateway_anthropic.py

The gateway passes Anthropic's messages on as they are; here a local model answers them. Against the real API an entry
is `{"name": "claude", "provider": "anthropic", "api_key": "env:ANTHROPIC_API_KEY"}`: the key stays with the gateway.
Needs `pip install anthropic`.
"""

import asyncio
from pathlib import Path
from typing import Any

from anthropic import Anthropic
from local_model import local_model

from sharpen import LLM, LLMProxy, SQLiteStore, Trainer, rollout
from sharpen.semconv import SHARPEN_LLM_CALL, LightningLLMAttributes

NUMBER = {"type": "integer"}
ADD: Any = {"name": "add", "input_schema": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}}}


def solve(client: Anthropic, model: str, question: str) -> str:
    talk: list[Any] = [{"role": "user", "content": question}]
    while True:
        said: Any = client.messages.create(model=model, max_tokens=100, messages=talk, tools=[ADD])
        calls = [block for block in said.content if block.type == "tool_use"]
        if not calls:
            return str(said.content[0].text)
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": str(sum(call.input.values()))} for call in calls
        ]
        talk += [{"role": "assistant", "content": said.content}, {"role": "user", "content": results}]


@rollout
def agent(task: dict[str, Any], llm: LLM) -> float:
    client = Anthropic(base_url=llm.get_base_url(), api_key=llm.resolve_api_key() or "none")
    return float(str(task["answer"]) in solve(client, llm.model, task["question"]))


async def show(run_dir: Path | None) -> None:
    store = SQLiteStore(f"{run_dir}/store.db")
    for done in await store.query_rollouts():
        spans = await store.query_spans(done.rollout_id, name=SHARPEN_LLM_CALL)
        cost = sum(float(span.attributes[LightningLLMAttributes.COST]) for span in spans)
        print(f"{done.input['question']}  {len(spans)} calls, ${cost:.5f}")
    await store.close()


if __name__ == "__main__":
    tasks = [{"question": f"What is {a} + 25?", "answer": a + 25} for a in (17, 40, 58)]
    with local_model() as url:
        models = [{"name": "tiny", "provider": "anthropic", "base_url": url}]
        gateway = LLMProxy(model_list=models, prices={"tiny": (3.0, 15.0)})  # dollars a million tokens, in and out
        result = Trainer(llm_proxy=gateway).dev(agent, tasks)
    print(f"{result.metrics['llm/calls']:.0f} calls, ${result.metrics['llm/cost']:.5f}")
    asyncio.run(show(result.run_dir))
