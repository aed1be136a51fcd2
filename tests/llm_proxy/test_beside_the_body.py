"""What passes beside a body: the query of a URL, answers without a body, answers that were cut."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sharpen.store import InMemoryLightningStore
from tests.llm_proxy.internals import Only, RecordFile, Replay, WrittenRecord

from .heart import CHAT, STREAM, one_span, served, start
from .scripted import Fault, Reply, ScriptedUpstream


@pytest.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


# -- queries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["api-version=7", "beta=true&x=%20y+z", "a=[1]|{2}", "empty=", "a&&b=?"])
async def test_the_query_reaches_the_upstream_as_it_is(
    store: InMemoryLightningStore, upstream: ScriptedUpstream, query: str
) -> None:
    _, path = await start(store)
    async with served(store, upstream.base_url) as gateway:
        for base in ("/v1", path):
            assert (await gateway.post(f"{base}/chat/completions?{query}", CHAT))[0] == 200
    assert [each.path for each in upstream.requests] == [f"/v1/chat/completions?{query}"] * 2


async def test_no_query_is_made_up(store: InMemoryLightningStore, upstream: ScriptedUpstream) -> None:
    async with served(store, upstream.base_url) as gateway:
        await gateway.post("/v1/chat/completions", CHAT)
        await gateway.post("/v1/chat/completions?", CHAT)
    assert [each.path for each in upstream.requests] == ["/v1/chat/completions"] * 2


async def test_a_record_keeps_the_query_without_keys_and_a_replay_does_not_ask_for_it(
    store: InMemoryLightningStore, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    path = tmp_path / "record.jsonl"
    with RecordFile(path) as record:
        async with served(store, upstream.base_url, books={"record": record}) as gateway:
            query = "?api-version=7&key=AIza-secret&api_key=sk-secret&b=1"
            _, _, data = await gateway.post(f"/v1/chat/completions{query}", CHAT)
    (exchange,) = WrittenRecord(path)
    assert exchange.query == "api-version=7&b=1"
    assert "secret" not in path.read_text()
    async with served(store, choice=Only(Replay(path))) as gateway:
        assert (await gateway.post("/v1/chat/completions?api-version=8", CHAT))[2] == data


# -- no body -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_an_answer_that_has_no_content_is_none_that_is_malformed(
    store: InMemoryLightningStore, upstream: ScriptedUpstream, body: dict[str, object]
) -> None:
    upstream.script(Reply(body=b"", status=204))
    rollout, path = await start(store)
    async with served(store, upstream.base_url) as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", body)
    span = await one_span(store, rollout)
    assert (status, data, span.status.status_code) == (204, b"", "OK")


@pytest.mark.parametrize("status", [301, 302, 304, 307])
async def test_a_redirect_passes_and_its_span_names_it(
    store: InMemoryLightningStore, upstream: ScriptedUpstream, status: int
) -> None:
    upstream.script(Reply(body=b"", status=status, headers={"location": "http://elsewhere/v1"}))
    rollout, path = await start(store)
    async with served(store, upstream.base_url) as gateway:
        got, headers, data = await gateway.post(f"{path}/chat/completions", CHAT)
    span = await one_span(store, rollout)
    assert (got, headers["location"], data) == (status, "http://elsewhere/v1", b"")
    assert span.status.description == f"the upstream answered {status}"
    assert span.attributes["error.type"] == str(status)


async def test_an_empty_answer_is_told_as_such(store: InMemoryLightningStore, upstream: ScriptedUpstream) -> None:
    upstream.script(Reply(body=b""))
    rollout, path = await start(store)
    async with served(store, upstream.base_url) as gateway:
        assert (await gateway.post(f"{path}/chat/completions", CHAT))[0] == 200
    assert (await one_span(store, rollout)).status.description == "the response is empty"


# -- cuts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_cut_answer_is_told_once_and_by_the_gateway(
    store: InMemoryLightningStore,
    upstream: ScriptedUpstream,
    body: dict[str, object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream.script(Fault("cut"))
    rollout, path = await start(store)
    with caplog.at_level(logging.DEBUG):
        async with served(store, upstream.base_url) as gateway:
            client = await gateway.open(f"{path}/chat/completions", body)
            got = await client.rest()
    assert got.startswith(b"HTTP/1.1 200")
    assert not got.endswith(b"0\r\n\r\n")
    assert (await one_span(store, rollout)).status.status_code == "ERROR"
    assert "ASGI" not in caplog.text
