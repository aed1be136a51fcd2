"""What a gateway learns about its upstreams from the way calls end."""

import asyncio

from sharpen.store import InMemoryLightningStore
from tests.llm_proxy.internals import Upstreams, parse_model_list

from .heart import CHAT, eventually, served
from .scripted import Fault, ScriptedUpstream
from .sending import Clock

FAR = {"weight": 1e-9}  # asked only where the other one is not well


def two(first: ScriptedUpstream, second: ScriptedUpstream, clock: Clock) -> Upstreams:
    known = {"model_name": "scripted", "engine": "none"}
    entries = [{**known, "base_url": first.base_url}, {**known, "base_url": second.base_url, **FAR}]
    return Upstreams(parse_model_list(entries), clock=clock)


async def test_an_upstream_that_hangs_is_taken_out(upstream: ScriptedUpstream) -> None:
    store = InMemoryLightningStore()
    upstream.script(*[Fault("hang")] * 3)
    with ScriptedUpstream() as other:
        choice = two(upstream, other, Clock())
        async with served(store, choice=choice, timeout_seconds=0.2) as gateway:
            statuses = [(await gateway.post("/v1/chat/completions", CHAT))[0] for _ in range(4)]
    assert statuses == [504, 200, 200, 200]
    assert (len(upstream.requests), len(other.requests)) == (1, 3)
    await store.close()


async def test_a_trial_that_its_agent_left_does_not_stand_in_the_way_of_the_next(upstream: ScriptedUpstream) -> None:
    store, clock = InMemoryLightningStore(), Clock()
    upstream.script(Fault("status", status=500), Fault("hang"))
    with ScriptedUpstream() as other:
        async with served(store, choice=two(upstream, other, clock)) as gateway:
            assert (await gateway.post("/v1/chat/completions", CHAT))[0] == 500
            clock.now += 1
            client = await gateway.open("/v1/chat/completions", CHAT)
            await eventually(lambda: len(upstream.requests) == 2)
            client.hang_up()
            await eventually(lambda: gateway.gateway.gate.in_flight == 0)
            assert (await gateway.post("/v1/chat/completions", CHAT))[0] == 200
    assert (len(upstream.requests), len(other.requests)) == (3, 0)
    await store.close()


async def test_the_time_that_an_entry_allows_itself_is_above_that_of_the_gateway(upstream: ScriptedUpstream) -> None:
    store = InMemoryLightningStore()
    entry = {"model_name": "scripted", "engine": "none", "base_url": upstream.base_url}
    for more, status in (({"timeout": 10}, 200), ({}, 504)):
        upstream.script(Fault("slow", delay_seconds=0.6))
        choice = Upstreams(parse_model_list([{**entry, **more}]), timeout_seconds=0.2)
        async with served(store, choice=choice, timeout_seconds=0.2) as gateway:
            async with asyncio.timeout(10):
                assert (await gateway.post("/v1/chat/completions", CHAT))[0] == status
    await store.close()
