"""The agent of searches that are killed: one call of a model, through the gateway, without a second try."""

import os
from typing import Any

import httpx

from sharpen import PromptTemplate, ProxyLLM, rollout


@rollout
async def answer(task: dict[str, int], resources: Any, rollout: Any) -> float:
    """1 where the model is right. The call says for which rollout it is made, and where, for the upstream to know."""
    shared, prompt = resources["main_llm"], resources["prompt"]
    assert isinstance(shared, ProxyLLM)
    assert isinstance(prompt, PromptTemplate)
    llm = shared.with_attempted_rollout(rollout)
    content = prompt.format(question=str(task["number"]))
    about = {"user": rollout.rollout_id, "metadata": {"pid": str(os.getpid())}}
    body = {"model": llm.model, "messages": [{"role": "user", "content": content}], **about}
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        response = await client.post(f"{llm.endpoint}/chat/completions", json=body)
    response.raise_for_status()
    return float(response.json()["choices"][0]["message"]["content"] == "right")
