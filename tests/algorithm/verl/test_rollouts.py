"""Rollouts as they finish, with a real store."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sharpen.adapter import LlmProxyTraceToTriplet
from sharpen.semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from sharpen.store import InMemoryLightningStore
from sharpen.types import AttemptedRollout, Rollout, Span
from tests.algorithm.internals import (
    FIRST_SPANS,
    LATE_PAUSES,
    MOST_IN_VAIN,
    Batch,
    CollectedRollout,
    Rollouts,
    collect,
    verl_rollouts,
)
from tests.store.scenes import make_span

CALLED = {
    "gen_ai.operation.name": "chat",
    LightningLLMAttributes.PROMPT_TOKEN_IDS.value: [1],
    LightningLLMAttributes.RESPONSE_TOKEN_IDS.value: [2],
    LightningLLMAttributes.RESPONSE_LOGPROBS.value: [-0.5],
}


class Scene:
    """A store, what follows it, and how often the spans of each rollout were read."""

    def __init__(self) -> None:
        self.store = InMemoryLightningStore()
        self.rollouts = Rollouts(self.store, "key", self.read)
        self.reads: dict[str, int] = {}

    def read(self, rollout: Rollout, spans: Sequence[Any]) -> CollectedRollout:
        self.reads[rollout.rollout_id] = self.reads.get(rollout.rollout_id, 0) + 1
        return collect(rollout, LlmProxyTraceToTriplet().adapt(spans), max_prompt_length=9, max_response_length=9)

    async def claim(self) -> AttemptedRollout:
        claimed = await self.store.dequeue_rollout()
        assert claimed is not None
        return claimed

    async def end(self, claimed: AttemptedRollout, *spans: Span, status: Any = "succeeded") -> None:
        attempt_id = claimed.attempt.attempt_id
        await self.store.complete_attempt(claimed.rollout_id, attempt_id, spans=spans, status=status, reward=1.0)


def called(claimed: AttemptedRollout, **more: Any) -> Span:
    return make_span(claimed, name=SHARPEN_LLM_CALL, attributes={**CALLED, **more})


async def ask(scene: Scene, count: int) -> Any:
    resources = await scene.store.add_resources({})
    return await scene.rollouts.ask("s0", ["task"], n=count, mode="train", resources_id=resources.resources_id)


async def test_a_call_that_is_stored_after_the_agent_has_ended_is_taken() -> None:
    scene = Scene()
    batch = await ask(scene, 1)
    async with scene.rollouts.following():
        claimed = await scene.claim()
        await scene.end(claimed)
        while not scene.reads:
            await asyncio.sleep(0.01)
        await scene.store.add_span(called(claimed))
        (found,) = await scene.rollouts.results(batch)
    assert (found.num_calls, [sample.token_ids for sample in found.samples]) == (1, [(1, 2)])


async def test_all_calls_of_a_long_rollout_are_taken() -> None:
    scene = Scene()
    batch = await ask(scene, 1)
    async with scene.rollouts.following():
        claimed = await scene.claim()
        await scene.end(claimed, *(called(claimed) for _ in range(FIRST_SPANS + 1)))
        (found,) = await scene.rollouts.results(batch)
    assert found.num_calls == FIRST_SPANS + 1


async def test_token_ids_that_come_after_the_agents_own_span_are_taken() -> None:
    scene = Scene()
    batch = await ask(scene, 1)
    async with scene.rollouts.following():
        claimed = await scene.claim()
        own = {"gen_ai.operation.name": "chat", "gen_ai.response.id": "r"}
        begun = make_span(claimed, name=SHARPEN_LLM_CALL, attributes=own)
        await scene.end(claimed, called(claimed), begun)
        while not scene.reads:
            await asyncio.sleep(0.01)
        seen = make_span(claimed, name="stream", attributes={**CALLED, "gen_ai.response.id": "r"})
        await scene.store.add_span(seen)
        (found,) = await scene.rollouts.results(batch)
    assert (found.num_calls, found.num_untokenised) == (2, 0)


async def test_what_is_whole_failed_or_cancelled_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_rollouts, "LATE_PAUSES", (600.0,))
    scene = Scene()
    batch = await ask(scene, 3)
    async with scene.rollouts.following(), asyncio.timeout(30):
        whole, failed = await scene.claim(), await scene.claim()
        await scene.end(whole, called(whole))
        await scene.end(failed, status="failed")
        await scene.store.cancel_rollouts([batch.ids[2]])
        found = await scene.rollouts.results(batch)
    assert [each.num_calls for each in found] == [1, 0, 0]


async def test_an_agent_that_never_calls_the_model_is_soon_no_longer_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sum(LATE_PAUSES) == pytest.approx(2, abs=0.1)
    monkeypatch.setattr(verl_rollouts, "LATE_PAUSES", (0.01,))
    scene = Scene()
    batch = await ask(scene, MOST_IN_VAIN + 1)
    async with scene.rollouts.following(), asyncio.timeout(30):
        found = []
        for place, rollout_id in enumerate(batch.ids):
            if place == MOST_IN_VAIN:
                monkeypatch.setattr(verl_rollouts, "LATE_PAUSES", (600.0,))
            await scene.end(await scene.claim())
            found += await scene.rollouts.results(Batch(batch.name, (rollout_id,)))
    assert [each.num_calls for each in found] == [0] * (MOST_IN_VAIN + 1)
