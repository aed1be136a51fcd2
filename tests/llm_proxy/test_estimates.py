"""Token and cost limits hold where nobody tells the tokens, and for calls that are made at once."""

import asyncio
import threading

import pytest

from sharpen import Limits
from sharpen.semconv import LightningLLMAttributes
from sharpen.store import InMemoryLightningStore
from tests.llm_proxy.internals import Budget, Prices, Refusal, Said, Usage, with_estimate

from .asked import call_of, question
from .heart import STREAM, eventually, one_span, served, spans_of, start
from .scripted import Reply, ScriptedUpstream

WORDS = [{"role": "assistant", "parts": [{"type": "text", "content": "word " * 20}]}]


async def test_streams_that_tell_no_usage_use_up_a_token_limit(upstream: ScriptedUpstream) -> None:
    store = InMemoryLightningStore()
    rollout, path = await start(store)
    upstream.default_reply = Reply("word " * 20)
    async with served(store, upstream.base_url, limits=Limits(rollout_tokens=20)) as gateway:
        statuses = [(await gateway.post(f"{path}/chat/completions", STREAM))[0] for _ in range(3)]
        totals = gateway.gateway.books.budget.totals()
    span = (await spans_of(store, rollout))[0]
    assert statuses == [200, 429, 429]
    assert totals.output_tokens == 25
    assert totals.estimated == 1
    assert span.attributes[LightningLLMAttributes.IS_USAGE_ESTIMATED] is True
    assert span.attributes["gen_ai.usage.output_tokens"] == 25


async def test_a_stream_that_its_client_leaves_counts_what_was_read(upstream: ScriptedUpstream) -> None:
    store = InMemoryLightningStore()
    rollout, path = await start(store)
    hold = threading.Event()
    upstream.default_reply = Reply("word " * 20, hold=hold)
    async with served(store, upstream.base_url) as gateway:
        client = await gateway.open(f"{path}/chat/completions", STREAM)
        await client.until(b"data: ")
        client.hang_up()
        span = await one_span(store, rollout)
        hold.set()
        totals = gateway.gateway.books.budget.totals()
    assert span.attributes[LightningLLMAttributes.IS_USAGE_ESTIMATED] is True
    assert totals.input_tokens > 0
    assert totals.estimated == 1


def test_what_the_upstream_told_is_not_estimated() -> None:
    said = with_estimate(call_of(), Said(usage=Usage(3, 2), output_messages=WORDS))
    assert (said.usage, said.is_usage_estimated) == (Usage(3, 2), False)


def test_a_stream_that_ended_early_counts_no_less_than_was_read() -> None:
    """Anthropic's streams tell one token of output at their beginning."""
    said = with_estimate(call_of(), Said(usage=Usage(30, 1), output_messages=WORDS, is_complete=False))
    assert (said.usage, said.is_usage_estimated) == (Usage(30, 25), True)


def test_images_do_not_count() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    request = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]}
    said = with_estimate(call_of(request), Said(output_messages=WORDS))
    assert said.usage == Usage(1, 25)


# -- at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [Limits(rollout_tokens=10), Limits(run_tokens=10), Limits(run_cost=0.5)])
async def test_calls_at_once_do_not_pass_a_limit_together(limits: Limits) -> None:
    budget = Budget(limits, Prices({"gpt-4o": (1000, 1000)}), None)
    under_way: list[int] = []
    most: list[int] = []

    async def one() -> Refusal | None:
        call = call_of(rollout_id="ro-1")
        refusal = await budget.admit(call)
        if refusal is None:
            under_way.append(1)
            most.append(len(under_way))
            await asyncio.sleep(0.001)
            under_way.pop()
            budget.settle(call, Said(usage=Usage(1, 1000)))
        return refusal

    refusals = await asyncio.gather(*(one() for _ in range(20)))
    assert refusals.count(None) == max(most) == 1
    assert {each.code for each in refusals if each is not None} == {"limit_reached"}


async def test_a_call_waits_only_for_what_others_allow_themselves() -> None:
    budget = Budget(Limits(run_tokens=1000), None, None)
    small = [call_of(question("hi", max_tokens=100)) for _ in range(5)]
    assert [await budget.admit(each) for each in small] == [None] * 5
    large = call_of(question("hi", max_completion_tokens=600))
    assert await budget.admit(large) is None
    waiting = asyncio.ensure_future(budget.admit(call_of()))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.settle(large, Said(usage=Usage(1, 1)))
    assert await asyncio.wait_for(waiting, 5) is None


async def test_a_call_that_has_waited_too_long_may_try_again() -> None:
    budget = Budget(Limits(run_tokens=10), None, None, wait_seconds=0.01)
    assert await budget.admit(call_of()) is None
    refusal = await budget.admit(call_of())
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.should_retry) == (429, "limit_reserved", True)


async def test_a_call_that_is_given_up_while_it_waits_leaves_nothing_behind() -> None:
    budget = Budget(Limits(rollout_tokens=10), None, None)
    first = call_of(rollout_id="ro-1")
    assert await budget.admit(first) is None
    waiting = asyncio.ensure_future(budget.admit(call_of(rollout_id="ro-1")))
    await asyncio.sleep(0)
    waiting.cancel()
    await eventually(waiting.done)
    budget.settle(first, Said(usage=Usage(1, 1)))
    assert budget.totals().calls == 1
    assert await budget.admit(call_of(rollout_id="ro-1")) is None
