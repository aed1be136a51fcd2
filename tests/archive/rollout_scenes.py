"""Real rollouts to read: agents that ask a scripted model through a real gateway."""

import json
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sharpen import LLMProxy, rollout
from sharpen.runner import LitAgentRunner
from sharpen.store import LightningStore
from sharpen.types import LLM, Rollout, RolloutConfig

from ..llm_proxy.scripted import Reply, ScriptedUpstream

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
TWICE = RolloutConfig(max_attempts=2, retry_condition=["failed"])
Agent = Callable[..., Any]


def ask(llm: LLM, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """One chat call over plain HTTP; the message of the answer."""
    body = {"model": llm.model, "messages": messages, **options}
    request = urllib.request.Request(
        f"{llm.endpoint}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        said: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return said


@rollout
def chatty(task: str, llm: LLM) -> float:
    """Asks three times and sends all that was said each time; the second time with the result of a tool."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task}]
    first = ask(llm, said, tools=[WEATHER])
    told = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "21 degrees"}
    said += [first, told]
    said += [ask(llm, said, tools=[WEATHER]), {"role": "user", "content": "thanks"}]
    ask(llm, said)
    return 1.0


CHATTY_REPLIES = (Reply(tool_calls=[("weather", {"city": "Rome"})]), Reply("It is warm."), Reply("You are welcome."))


@asynccontextmanager
async def scene(
    store: LightningStore, *replies: Any, engine: Any = None, **options: Any
) -> AsyncIterator[ScriptedUpstream]:
    """A scripted model behind a gateway, whose address is the resource `llm` of the store."""
    with ScriptedUpstream(engine) as upstream:
        upstream.script(*replies)
        entry = {"name": "scripted", "base_url": upstream.base_url, **({"engine": engine} if engine else {})}
        async with LLMProxy(model_list=[entry], store=store, launch_mode="thread", **options) as gateway:
            await store.add_resources({"llm": gateway.as_resource()})
            yield upstream


async def play(store: LightningStore, agent: Agent, task: Any, *, attempts: int = 1, **options: Any) -> Rollout:
    """Run an agent on one task until so many attempts have ended."""
    queued = await store.enqueue_rollout(task, **options)
    runner: LitAgentRunner[Any] = LitAgentRunner(max_rollouts=attempts)
    with runner.run_context(agent=agent, store=store):
        await runner.iter()
    found = await store.get_rollout_by_id(queued.rollout_id)
    assert found is not None
    return found
