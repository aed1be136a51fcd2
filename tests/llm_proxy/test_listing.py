"""Which models a gateway lists: those of its list, and those behind a star."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sharpen import ModelEntry
from sharpen.store import InMemoryLightningStore
from tests.llm_proxy.internals import Only, Replay

from .asked import call_of, exchange_of
from .heart import Served, free_port, served
from .scripted import ScriptedUpstream


@pytest.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


def _star(upstream: ScriptedUpstream, name: str = "*", **more: Any) -> dict[str, Any]:
    return {"model_name": name, "base_url": upstream.base_url, "engine": "none", **more}


async def _names(gateway: Served, **headers: str) -> list[str]:
    status, listed = await gateway.get("/v1/models", **headers)
    assert status == 200
    return [each["id"] for each in listed["data"]]


async def test_models_behind_a_star_are_those_of_its_upstream(store: InMemoryLightningStore) -> None:
    with ScriptedUpstream(models=["gpt-1", "gpt-2", "other"]) as upstream:
        async with served(store, entries=[_star(upstream)]) as gateway:
            assert await _names(gateway) == ["gpt-1", "gpt-2", "other"]
            assert (await gateway.get("/v1/models/gpt-2"))[1]["id"] == "gpt-2"
            status, problem = await gateway.get("/v1/models/gpt-9")
        assert status == 404
        assert "gpt-1, gpt-2, other" in problem["error"]["message"]
        assert "*" in problem["error"]["message"]


async def test_a_stem_lists_only_what_fits(store: InMemoryLightningStore) -> None:
    with ScriptedUpstream(models=["gpt-1", "other"]) as upstream:
        entries = [_star(upstream, "gpt-*"), _star(upstream, "mine", model="other")]
        async with served(store, entries=entries) as gateway:
            assert await _names(gateway) == ["gpt-1", "mine"]
            assert (await gateway.get("/v1/models/other"))[0] == 404


async def test_the_key_of_the_entry_opens_the_list(store: InMemoryLightningStore) -> None:
    with ScriptedUpstream(models=["m"], api_key="sk-right") as upstream:
        async with served(store, entries=[_star(upstream, api_key="sk-right")]) as gateway:
            assert await _names(gateway, authorization="Bearer sk-wrong") == ["m"]
        async with served(store, entries=[_star(upstream)]) as gateway:
            assert await _names(gateway, authorization="Bearer sk-right") == ["m"]


async def test_a_star_whose_upstream_does_not_say_takes_any_name(store: InMemoryLightningStore) -> None:
    entry = {"model_name": "gpt-*", "base_url": f"http://127.0.0.1:{free_port()}/v1", "engine": "none"}
    async with served(store, entries=[entry]) as gateway:
        assert await _names(gateway) == []
        assert (await gateway.get("/v1/models/gpt-7"))[0] == 200
        status, problem = await gateway.get("/v1/models/other")
    assert status == 404
    assert "gpt-*" in problem["error"]["message"]


async def test_a_gateway_without_models_says_so(store: InMemoryLightningStore) -> None:
    async with served(store) as gateway:
        status, problem = await gateway.get("/v1/models/m")
    assert status == 404
    assert problem["error"]["message"].endswith("the gateway has no models yet")


async def test_a_replay_answers_for_any_name(store: InMemoryLightningStore) -> None:
    exchange = exchange_of(call_of(), [b"{}"])
    async with served(store, choice=Only(Replay([exchange]))) as gateway:
        assert await _names(gateway) == []
        assert (await gateway.get("/v1/models/m"))[1]["id"] == "m"


@pytest.mark.parametrize(
    ("model_name", "model", "theirs", "asked"),
    [
        ("*", None, "m", "m"),
        ("*", "*", "m", "m"),
        ("gpt-*", None, "gpt-4", "gpt-4"),
        ("gpt-*", None, "o1", None),
        ("gpt-*", "*", "4", "gpt-4"),
        ("fast/*", "org/*", "org/m", "fast/m"),
        ("fast/*", "org/*", "else/m", None),
        ("*", "fixed", "fixed", None),
    ],
)
def test_a_listed_model_is_named_as_agents_ask_for_it(
    model_name: str, model: str | None, theirs: str, asked: str | None
) -> None:
    entry = ModelEntry(model_name, model=model)
    assert entry.asked_name(theirs) == asked
    if asked is not None:
        assert entry.upstream_model(asked) == theirs
