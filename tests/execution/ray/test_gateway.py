"""A gateway that the run starts, reached from another node over the network."""

import asyncio
import os
from urllib.parse import urlsplit

import pytest
from openai import OpenAI

from sharpen import LLM, Trainer, llm_rollout
from sharpen.llm_proxy import LLMProxy
from sharpen.semconv import SHARPEN_LLM_CALL
from tests.llm_proxy.scripted import Reply, ScriptedUpstream

from .scenes import FOUND_THERE

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


@llm_rollout
def ask(task: str, llm: LLM) -> float:
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as client:
        answer = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return float(answer.choices[0].message.content == "four")


@pytest.mark.parametrize("place", ["driver", "actor"])
def test_agents_on_another_node_reach_the_gateway_with_a_token(tmp_path, place):
    import ray

    host = next(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
    with ScriptedUpstream(engine="vllm", default_reply=Reply("four")) as upstream:
        models = [{"name": "main", "model": "scripted", "base_url": upstream.base_url, "api_key": "sk-upstream"}]
        proxy = LLMProxy(model_list=models)
        given = {"type": "ray", "runner_resources": {"right": 1}, "runtime_env": FOUND_THERE, "algorithm": place}
        trainer = Trainer(strategy=given, algorithm="baseline", llm_proxy=proxy, run_dir=tmp_path / "run")
        assert trainer.fit(ask, ["one", "two"]).status == "succeeded"
    assert proxy.reach == ("127.0.0.1", None)
    latest = asyncio.run(trainer.store.get_latest_resources())
    llm = latest.resources["main_llm"]
    assert urlsplit(llm.endpoint).hostname == host
    assert llm.api_key == "env:SHARPEN_GATEWAY_TOKEN"
    assert "SHARPEN_GATEWAY_TOKEN" not in os.environ  # it goes with the run
    for rollout in asyncio.run(trainer.store.query_rollouts()):
        assert rollout.reward == 1.0
        assert len(asyncio.run(trainer.store.query_spans(rollout.rollout_id, name=SHARPEN_LLM_CALL))) == 1
