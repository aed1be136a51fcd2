"""Trace an agent of the `openai` client without changing it: only its base URL is another.

    python examples/gateway_openai.py

`solve` is the agent as it was before. The gateway stands between it and the model, says which rollout a call belongs
to by its URL, and records the token ids that were read and sampled. Needs `pip install openai`.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from local_model import local_model
from openai import OpenAI

from sharpen import LLM, LLMProxy, SQLiteStore, Trainer, rollout
from sharpen.semconv import SHARPEN_LLM_CALL, LightningLLMAttributes

NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}}
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}


def solve(client: OpenAI, model: str, question: str) -> str:
    talk: list[Any] = [{"role": "user", "content": question}]
    while True:
        said: Any = client.chat.completions.create(model=model, messages=talk, tools=[ADD]).choices[0].message
        if not said.tool_calls:
            return str(said.content)
        talk.append(said)
        for call in said.tool_calls:
            result = sum(json.loads(call.function.arguments).values())
            talk.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


@rollout
def agent(task: dict[str, Any], llm: LLM) -> float:
    client = OpenAI(base_url=llm.get_base_url(), api_key=llm.resolve_api_key() or "none")
    return float(str(task["answer"]) in solve(client, llm.model, task["question"]))


async def show(run_dir: Path | None) -> None:
    store = SQLiteStore(f"{run_dir}/store.db")
    for done in await store.query_rollouts():
        for span in await store.query_spans(done.rollout_id, name=SHARPEN_LLM_CALL):
            sampled = bytes(span.attributes[LightningLLMAttributes.RESPONSE_TOKEN_IDS])
            print(f"{done.input['question']}  {len(sampled)} tokens: {sampled.decode()}")
    await store.close()


if __name__ == "__main__":
    tasks = [{"question": f"What is {a} + 25?", "answer": a + 25} for a in (17, 40, 58)]
    with local_model() as url:
        gateway = LLMProxy(model_list=[{"name": "tiny", "base_url": url}])
        result = Trainer(llm_proxy=gateway).dev(agent, tasks)
    print(f"{result.metrics['llm/calls']:.0f} calls, mean reward {result.metrics['run/reward_mean']:.2f}")
    asyncio.run(show(result.run_dir))
