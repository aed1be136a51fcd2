"""The gateway's HTTP surface: what is checked before a call begins, and in which words it is refused."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sharpen.store import InMemoryLightningStore
from tests.llm_proxy.internals import application

from .heart import CHAT, RawClient, Served, eventually, served, spans_of, start
from .scripted import ScriptedUpstream

SECRET = "sk-live-do-not-write-me-down"


@pytest.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


@pytest.fixture
async def gateway(store: InMemoryLightningStore, upstream: ScriptedUpstream) -> AsyncIterator[Served]:
    async with served(store, upstream.base_url, max_body_bytes=10_000, hosts=frozenset({"127.0.0.1"})) as running:
        yield running


@pytest.fixture
async def guarded(store: InMemoryLightningStore, upstream: ScriptedUpstream) -> AsyncIterator[Served]:
    async with served(store, upstream.base_url, token="the-token") as running:
        yield running


# -- routes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/v1", "/v1/v1", "/role/critic/v1"])
async def test_calls_without_an_attempt_are_answered(gateway: Served, prefix: str) -> None:
    status, _, data = await gateway.post(f"{prefix}/chat/completions", CHAT)
    assert (status, json.loads(data)["object"]) == (200, "chat.completion")


@pytest.mark.parametrize("end", ["", "/v1", "/role/critic", "/role/critic/v1", "/role/a%2Fb%20c/v1"])
async def test_calls_of_an_attempt_are_attributed(gateway: Served, store: InMemoryLightningStore, end: str) -> None:
    rollout, path = await start(store)
    base = path.removesuffix("/v1")
    assert (await gateway.post(f"{base}{end}/chat/completions", CHAT))[0] == 200
    (span,) = await spans_of(store, rollout)
    role = {"": None, "/v1": None, "/role/a%2Fb%20c/v1": "a/b c"}.get(end, "critic")
    assert span.attributes.get("gen_ai.agent.name") == role


@pytest.mark.parametrize("path", ["/", "/v2/chat/completions", "/v1/audio/speech", "/rollout/x/v1/chat/completions"])
async def test_a_path_that_leads_nowhere_lists_the_routes(gateway: Served, path: str) -> None:
    status, _, data = await gateway.post(path, CHAT)
    assert status == 404
    assert "/v1/chat/completions" in json.loads(data)["error"]["message"]


@pytest.mark.parametrize("verb", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_a_wrong_verb_is_told_the_right_one(gateway: Served, verb: str) -> None:
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", gateway.port))
    raw.writer.write(f"{verb} /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    head = (await raw.head()).lower()
    raw.hang_up()
    assert head.startswith(b"http/1.1 405")
    assert b"allow: post" in head


async def test_models_are_listed_for_clients_of_both_apis(gateway: Served) -> None:
    status, listed = await gateway.get("/v1/models")
    assert (status, listed["object"], [each["id"] for each in listed["data"]]) == (200, "list", ["scripted"])
    assert (listed["has_more"], listed["first_id"], listed["data"][0]["type"]) == (False, "scripted", "model")
    assert (await gateway.get("/v1/models/scripted"))[1]["id"] == "scripted"
    status, problem = await gateway.get("/v1/models/gpt-9")
    assert status == 404
    assert "scripted" in problem["error"]["message"]


async def test_models_are_listed_under_an_attempt_too(gateway: Served, store: InMemoryLightningStore) -> None:
    _, path = await start(store)
    assert (await gateway.get(f"{path}/models"))[0] == 200


async def test_health_tells_how_things_stand_and_asks_nobody(gateway: Served, upstream: ScriptedUpstream) -> None:
    gateway.gateway.gate.pause()
    status, health = await gateway.get("/health")
    assert (status, health["status"], health["in_flight"], health["paused"]) == (200, "ok", 0, True)
    assert not upstream.requests
    assert not upstream.probes


# -- bodies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "malformed_json"),
        (b"[1]", "malformed_request"),
        (b"", "malformed_json"),
        (b'{"a": "\xff"}', "malformed_json"),
    ],
)
async def test_a_body_that_is_no_request_is_refused(gateway: Served, body: bytes, code: str) -> None:
    status, _, data = await gateway.post("/v1/chat/completions", body)
    assert (status, json.loads(data)["error"]["code"]) == (400, code)


async def test_a_body_nested_without_end_is_refused(gateway: Served) -> None:
    status, _, _ = await gateway.post("/v1/chat/completions", b'{"a":' + b"[" * 9000)
    assert status == 400


async def test_a_body_of_another_type_is_refused(gateway: Served, upstream: ScriptedUpstream) -> None:
    assert (await gateway.post("/v1/chat/completions", CHAT, content_type="text/plain"))[0] == 415
    assert (await gateway.post("/v1/chat/completions", CHAT, content_encoding="gzip"))[0] == 415
    assert not upstream.requests


async def test_a_body_above_the_limit_is_refused_whether_declared_or_not(gateway: Served) -> None:
    status, _, data = await gateway.post("/v1/messages", b"x" * 10_001)
    assert (status, json.loads(data)["error"]["type"]) == (413, "request_too_large")
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", gateway.port))
    head = "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    raw.writer.write(f"{head}transfer-encoding: chunked\r\n\r\n4000\r\n{'x' * 0x4000}\r\n".encode())
    assert b" 413 " in await raw.head()
    raw.hang_up()


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(
    gateway: Served, upstream: ScriptedUpstream
) -> None:
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", gateway.port))
    head = "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    raw.writer.write(f"{head}content-length: 100\r\n\r\nhalf".encode())
    await raw.writer.drain()
    raw.hang_up()
    assert (await gateway.post("/v1/chat/completions", CHAT))[0] == 200
    assert len(upstream.requests) == 1


# -- who may ask ---------------------------------------------------------------------------------------


async def test_foreign_hosts_and_pages_are_refused(gateway: Served, upstream: ScriptedUpstream) -> None:
    status, _, data = await gateway.post("/v1/chat/completions", CHAT, origin="https://evil.example")
    assert (status, json.loads(data)["error"]["code"]) == (403, "wrong_origin")
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", gateway.port))
    raw.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 0\r\n\r\n")
    assert b" 403 " in await raw.head()
    raw.hang_up()
    assert not upstream.requests


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "the-token"},
        {"authorization": "Bearer "},
        {"x_api_key": "wrong"},
        {"x_api_key": ""},
    ],
)
async def test_a_missing_or_wrong_token_is_refused(
    guarded: Served, upstream: ScriptedUpstream, headers: dict[str, str]
) -> None:
    status, answered, data = await guarded.post("/v1/chat/completions", CHAT, **headers)
    assert (status, answered["www-authenticate"]) == (401, "Bearer")
    assert json.loads(data)["error"]["type"] == "authentication_error"
    assert b"the-token" not in data
    assert (await guarded.get("/v1/models", **headers))[0] == 401
    assert (await guarded.get("/health", **headers))[0] == 200
    assert not upstream.requests


@pytest.mark.parametrize("headers", [{"authorization": "Bearer the-token"}, {"x_api_key": "the-token"}])
async def test_the_token_opens_the_gateway_and_goes_no_further(
    guarded: Served, upstream: ScriptedUpstream, headers: dict[str, str]
) -> None:
    assert (await guarded.post("/v1/chat/completions", CHAT, **headers))[0] == 200
    assert "the-token" not in str(upstream.requests[0].headers)


async def test_without_a_token_the_clients_own_key_reaches_the_upstream_and_nothing_else(
    gateway: Served, store: InMemoryLightningStore, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    rollout, path = await start(store)
    with caplog.at_level(logging.DEBUG):
        for model in ("scripted", "unknown"):
            body = {**CHAT, "model": model}
            _, _, data = await gateway.post(f"{path}/chat/completions", body, authorization=f"Bearer {SECRET}")
            assert SECRET.encode() not in data
    assert upstream.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in repr(await spans_of(store, rollout))
    assert SECRET not in caplog.text


async def test_where_attempts_are_open_their_keys_reach_the_upstream_and_the_token_does_not(
    store: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(store)
    async with served(store, upstream.base_url, token="the-token", open_attempts=True, strict=False) as gateway:
        sent = {"theirs": 200, "the-token": 200}
        for key, status in sent.items():
            assert (await gateway.post(f"{path}/chat/completions", CHAT, x_api_key=key))[0] == status
        assert (await gateway.post("/v1/chat/completions", CHAT, authorization="Bearer theirs"))[0] == 401
        unknown = path.replace(rollout.attempt.attempt_id, "at-unknown")
        assert (await gateway.post(f"{unknown}/chat/completions", CHAT, authorization="Bearer theirs"))[0] == 404
        assert (await gateway.get(f"{unknown}/models"))[0] == 404
        assert (await gateway.get(f"{path}/models"))[0] == 200
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        async with asyncio.timeout(10):
            while (await gateway.post(f"{path}/chat/completions", CHAT))[0] != 409:
                await asyncio.sleep(0.02)
    assert len(await spans_of(store, rollout)) >= 2
    assert "the-token" not in str([each.headers for each in upstream.requests])


async def test_errors_before_a_route_is_known_follow_the_sdk_that_asks(gateway: Served) -> None:
    _, _, data = await gateway.post("/v1/nothing", CHAT, anthropic_version="2023-06-01")
    assert json.loads(data)["type"] == "error"


async def test_connections_are_kept_from_call_to_call(gateway: Served, upstream: ScriptedUpstream) -> None:
    for _ in range(5):
        assert (await gateway.post("/v1/chat/completions", CHAT))[0] == 200
    assert upstream.connections == 1
    await eventually(lambda: gateway.gateway.gate.in_flight == 0)


async def test_headers_that_were_sent_several_times_are_all_passed_on(
    gateway: Served, upstream: ScriptedUpstream
) -> None:
    data = json.dumps(CHAT).encode()
    twice = [("anthropic-beta", "one"), ("content-type", "application/json"), ("anthropic-beta", "two")]
    answer = await gateway.client.request("POST", "/v1/messages", headers=twice, body=data)
    await answer.read()
    assert upstream.requests[0].headers["anthropic-beta"] == "one, two"


async def _half(gateway: Served) -> RawClient:
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", gateway.port))
    head = "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100"
    raw.writer.write(f"{head}\r\n\r\nabc".encode())
    return raw


async def test_a_body_that_stops_coming_is_refused(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "BODY_SECONDS", 0.05)
    raw = await _half(gateway)
    answered = await raw.rest()  # the connection is closed too
    assert answered.startswith(b"HTTP/1.1 408 ")
    assert b"body_too_slow" in answered or b"0.05 s" in answered


async def test_half_a_body_at_the_stop_is_answered_in_order(
    store: InMemoryLightningStore, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(store, upstream.base_url) as gateway:
        raw = await _half(gateway)
        await asyncio.sleep(0.05)
    assert (await raw.rest()).startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in caplog.text


async def test_it_answers_the_words_of_a_server_that_runs_it() -> None:
    from tests.llm_proxy.internals import GatewayApplication

    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message["type"])

    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(messages)

    anything: Any = type("Parts", (), {"options": type("Options", (), {"token": None})})
    await GatewayApplication(anything)({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
