"""What is said to `LLMProxy` reaches the part that it is meant for."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from sharpen.errors import ConfigError
from sharpen.llm_proxy import LLMProxy
from sharpen.store import InMemoryLightningStore
from sharpen.types import LLM, AttemptedRollout, Span
from tests.errors import raises

from .scripted import Fault, ScriptedUpstream


class Scene:
    """A store with one attempt, and gateways in threads for it."""

    def __init__(self, upstream: ScriptedUpstream, rollout: AttemptedRollout, store: InMemoryLightningStore) -> None:
        self.upstream, self.rollout, self.store = upstream, rollout, store

    def gateway(self, **settings: Any) -> LLMProxy:
        models = [{"name": "scripted", "base_url": self.upstream.base_url, "engine": "none"}]
        return LLMProxy(**({"model_list": models, "store": self.store, "launch_mode": "thread"} | settings))

    async def ask(self, proxy: LLMProxy, text: str = "hello", **more: Any) -> str | None:
        llm = proxy.as_resource(self.rollout.rollout_id, self.rollout.attempt.attempt_id, model="scripted")
        return await ask(llm, text, **more)

    async def spans(self) -> list[Span]:
        return list(await self.store.query_spans(self.rollout.rollout_id))


async def ask(llm: LLM, text: str, **more: Any) -> str | None:
    async with openai.AsyncOpenAI(base_url=llm.get_base_url(), api_key="sk-any", max_retries=0) as client:
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": text}], **more
        )
    return answer.choices[0].message.content


@pytest.fixture
async def scene(upstream: ScriptedUpstream) -> Scene:
    store = InMemoryLightningStore()
    return Scene(upstream, await store.start_rollout({"question": 1}), store)


async def test_a_record_is_answered_from_without_an_upstream(scene: Scene, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    async with scene.gateway(mode="record", record=record) as proxy:
        said = await scene.ask(proxy)
    scene.upstream.stop()
    async with scene.gateway(mode="replay", record=record) as proxy:
        assert await scene.ask(proxy) == said
        with pytest.raises(openai.NotFoundError):
            await scene.ask(proxy, "something else")
    assert (await proxy.totals()).cost == 0


async def test_a_replay_gives_a_recorded_failure_as_it_was_and_asks_nobody_again(scene: Scene, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    scene.upstream.script(Fault("status", status=500))
    async with scene.gateway(mode="record", record=record) as proxy:
        with pytest.raises(openai.InternalServerError):
            await scene.ask(proxy)
        said = await scene.ask(proxy)
    async with scene.gateway(mode="replay", record=record, num_retries=3) as proxy:
        with pytest.raises(openai.InternalServerError):
            await scene.ask(proxy)
        assert await scene.ask(proxy) == said


async def test_a_key_inside_a_request_is_passed_on_and_never_written(scene: Scene, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    server = {"type": "mcp", "server_url": "http://mcp", "authorization": "tok-1", "headers": {"x-auth": "tok-2"}}
    async with scene.gateway(mode="record", record=record) as proxy:
        said = await scene.ask(proxy, extra_body={"tools": [server]})
    assert scene.upstream.requests[-1].json["tools"] == [server]
    spans = str([span.attributes for span in await scene.spans()])
    for written in (record.read_text(), spans):
        assert "http://mcp" in written
        assert "tok-" not in written
    other = server | {"authorization": "tok-3"}  # keys change from run to run
    async with scene.gateway(mode="replay", record=record) as proxy:
        assert await scene.ask(proxy, extra_body={"tools": [other]}) == said
        with raises(openai.NotFoundError, "hello") as refused:
            await scene.ask(proxy, "good bye", extra_body={"tools": [other]})
    assert "tok-" not in str(refused.value)


async def test_a_rollout_is_replayed_from_the_store_by_its_id(scene: Scene) -> None:
    async with scene.gateway(mode="record") as proxy:
        said = await scene.ask(proxy)
    scene.upstream.stop()
    async with scene.gateway(mode="replay", replay_rollout=scene.rollout.rollout_id, model_list=None) as proxy:
        assert await scene.ask(proxy) == said


async def test_one_record_is_written_by_one_gateway_at_a_time(scene: Scene, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    async with scene.gateway(mode="record", record=record):
        other = scene.gateway(mode="record", record=record)
        with pytest.raises(ConfigError):
            await other.start()


async def test_limits_and_prices_hold(scene: Scene) -> None:
    prices = {"scripted": (1e6, 1e6)}
    async with scene.gateway(prices=prices, limits={"run_cost": 0.5}) as proxy:
        await scene.ask(proxy)
        with raises(openai.RateLimitError, "run_cost"):
            await scene.ask(proxy)
        totals = await proxy.totals()
    assert (totals.calls, totals.refused) == (1, 1)
    assert totals.cost > 0.5
    assert len(await scene.spans()) == 2


async def test_totals_go_on_under_the_same_name_only(scene: Scene) -> None:
    async with scene.gateway(name="teacher") as proxy:
        await scene.ask(proxy)
    async with scene.gateway(name="teacher") as again, scene.gateway(name="student") as other:
        assert (await again.totals()).calls == 1
        assert (await other.totals()).calls == 0


async def test_unknown_attempts_are_refused_unless_it_is_not_strict(scene: Scene) -> None:
    async with scene.gateway() as proxy:
        with raises(openai.NotFoundError, "at-none"):
            await ask(proxy.as_resource("ro-none", "at-none"), "hello")
    async with scene.gateway(strict=False) as proxy:
        assert await ask(proxy.as_resource("ro-none", "at-none"), "hello") == "You said: hello"
    assert await scene.spans() == []


async def test_retries_and_time_limits_hold(scene: Scene) -> None:
    async with scene.gateway(num_retries=1, timeout=0.5) as proxy:
        scene.upstream.script(Fault("status", status=503))
        assert await scene.ask(proxy) == "You said: hello"
        scene.upstream.script(Fault("hang"))
        with pytest.raises(openai.APIStatusError) as refused:
            await scene.ask(proxy)
    assert refused.value.status_code == 504


async def test_bodies_beyond_the_limit_are_refused(scene: Scene) -> None:
    async with scene.gateway(max_body_bytes=1000) as proxy:
        with raises(openai.APIStatusError, 1000):
            await scene.ask(proxy, "long" * 1000)


async def test_content_stays_out_where_it_is_said_so(scene: Scene) -> None:
    async with scene.gateway(capture_content=False) as proxy:
        await scene.ask(proxy, "a secret")
    (span,) = await scene.spans()
    assert "secret" not in str(span.attributes)


async def test_paused_calls_wait_no_longer_than_allowed(scene: Scene) -> None:
    async with scene.gateway(pause_wait_seconds=0.1) as proxy:
        await proxy.pause()
        with raises(openai.RateLimitError, 0.1):
            await scene.ask(proxy)
        await asyncio.gather(proxy.resume(), proxy.drain(1))
        assert await scene.ask(proxy) == "You said: hello"
