"""Who may ask: tokens, hosts, origins; and that a token is seen by nobody else."""

import asyncio
import logging

import pytest

from sharpen.errors import ConfigError, StoreError
from sharpen.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer
from tests.errors import raises
from tests.store.internals import METHODS

from .served import curl_to, lasting, read_reply, serve

TOKEN = "s3cret-t0ken"
GIVEN = {"authorization": f"Bearer {TOKEN}"}
WRONG = [
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    f"Bearer {TOKEN}x",
    f"Bearer {TOKEN[:-1]}",
    f"Bearer  {TOKEN}",
    f"Basic {TOKEN}",
    TOKEN,
    "Bearer é",
]


@pytest.fixture(scope="module")
def open_server():
    with lasting() as server:
        yield server


@pytest.fixture(scope="module")
def guarded_server():
    with lasting(token=TOKEN) as server:
        yield server


@pytest.fixture
async def opened(open_server):
    """A client of a server without a token."""
    async with curl_to(open_server.endpoint) as curl:
        yield curl


@pytest.fixture
async def guarded(guarded_server):
    """A client of a server that asks for a token; it brings none by itself."""
    async with curl_to(guarded_server.endpoint) as curl:
        yield curl


async def rollouts_in(server: LightningStoreServer) -> int:
    return (await server.statistics())["total_rollouts"]


# -- tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", WRONG)
async def test_a_missing_or_wrong_token_is_401(guarded_server, guarded, given):
    before = await rollouts_in(guarded_server)
    headers = {} if given is None else {"authorization": given}
    reply = await guarded("POST", "/v1/rollouts", {"input": 1}, headers=headers)
    assert (reply.status, reply.error[0]) == (401, "AccessDeniedError")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert await rollouts_in(guarded_server) == before


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_right_token_opens_the_store(guarded, scheme):
    headers = {"authorization": f"{scheme} {TOKEN}"}
    assert (await guarded("POST", "/v1/rollouts", {"input": 1}, headers=headers)).status == 200


async def test_everything_but_health_asks_for_the_token(guarded):
    paths = [(method.verb, f"/v1{method.path}") for method in METHODS.values()]
    others = [("POST", "/v1/traces"), ("GET", "/v1/openapi.json"), ("GET", "/metrics"), ("GET", "/nowhere")]
    for verb, path in [*paths, *others]:
        assert (await guarded(verb, path)).status == 401, path
    assert (await guarded("GET", "/health")).json["status"] == "ok"


async def test_a_server_without_a_token_asks_for_none(opened):
    assert (await opened("GET", "/v1/statistics")).status == 200
    assert (await opened("GET", "/v1/statistics", headers=GIVEN)).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "store.example.com"])
def test_a_server_beyond_loopback_needs_a_token(host):
    with raises(ConfigError, "token") as caught:
        LightningStoreServer(InMemoryLightningStore(), host=host)
    assert host in str(caught.value)
    LightningStoreServer(InMemoryLightningStore(), host=host, token=TOKEN)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_token_that_no_header_can_carry_is_refused_without_being_shown(token):
    with pytest.raises(ConfigError) as caught:
        LightningStoreServer(InMemoryLightningStore(), token=token)
    assert not token or token not in str(caught.value)


async def test_the_token_is_in_no_log_and_in_no_answer(caplog):
    caplog.set_level(logging.DEBUG)
    async with serve(token=TOKEN) as served:
        answers = [
            await served.curl("GET", "/health", headers=GIVEN),
            await served.curl("POST", "/v1/rollouts", {"input": 1}, headers=GIVEN),
            await served.curl("POST", "/v1/rollouts", {"wrong": 1}, headers=GIVEN),
            await served.curl("GET", "/v1/rollouts/nobody", headers=GIVEN),
            await served.curl("GET", "/v1/nowhere", headers=GIVEN),
            await served.curl("GET", "/v1/statistics", headers={"authorization": f"Basic {TOKEN}"}),
            await served.curl("GET", "/v1/statistics", headers=GIVEN | {"host": "evil.example"}),
            await served.curl("GET", "/metrics", headers=GIVEN),
            await served.curl("GET", "/v1/openapi.json", headers=GIVEN),
        ]
        assert TOKEN not in repr(served.server)
    for answer in answers:
        assert TOKEN.encode() not in answer.body
        assert TOKEN not in str(answer.headers)
    assert TOKEN not in caplog.text


# -- hosts: a foreign name that leads here by a trick of DNS -----------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "10.0.0.1:{port}"])
async def test_a_foreign_host_is_403_on_loopback(open_server, opened, host):
    before = await rollouts_in(open_server)
    headers = {"host": host.format(port=open_server.port)}
    for path in ("/health", "/v1/statistics", "/metrics"):
        reply = await opened("GET", path, headers=headers)
        assert (reply.status, reply.error[0]) == (403, "AccessDeniedError")
        assert "host" in reply.error[1]
    assert (await opened("POST", "/v1/rollouts", {"input": 1}, headers=headers)).status == 403
    assert await rollouts_in(open_server) == before


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:{port}", "LocalHost:{port}", "127.0.0.1:{port}", "[::1]:{port}"]
)
async def test_the_names_of_loopback_are_served(open_server, opened, host):
    headers = {"host": host.format(port=open_server.port)}
    assert (await opened("GET", "/v1/statistics", headers=headers)).status == 200


async def test_a_request_without_a_host_is_403_on_loopback():
    async with serve() as served:
        reader, writer = await served.connect()
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        assert (await read_reply(reader)).status == 403
        writer.close()


async def test_beyond_loopback_any_name_is_served_to_who_has_the_token():
    async with serve(host="0.0.0.0", token=TOKEN) as served:
        headers = {"host": "store.example.com"}
        assert (await served.curl("GET", "/v1/statistics", headers=headers | GIVEN)).status == 200
        assert (await served.curl("GET", "/v1/statistics", headers=headers)).status == 401


async def test_a_server_on_ipv6_is_reached_by_its_address():
    server = LightningStoreServer(InMemoryLightningStore(), host="::1")
    try:
        await server.start()
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    try:
        async with curl_to(server.endpoint) as curl:
            assert (await curl("GET", "/v1/statistics")).status == 200
            assert (await curl("GET", "/v1/statistics", headers={"host": "evil.example"})).status == 403
    finally:
        await server.stop()


# -- origins: a page of another site -----------------------------------------------------------------


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "null", "file://", "evil"])
async def test_a_page_of_another_origin_is_403(open_server, opened, origin):
    before = await rollouts_in(open_server)
    for verb, path, body in (("GET", "/v1/statistics", None), ("POST", "/v1/rollouts", {"input": 1})):
        reply = await opened(verb, path, body, headers={"origin": origin})
        assert (reply.status, reply.error[0]) == (403, "AccessDeniedError")
        assert "access-control-allow-origin" not in reply.headers
    assert await rollouts_in(open_server) == before


async def test_a_page_of_the_server_itself_is_served(open_server, opened):
    headers = {"origin": open_server.endpoint}
    assert (await opened("POST", "/v1/rollouts", {"input": 1}, headers=headers)).status == 200


@pytest.mark.parametrize("status", ["501 Not Implemented", "404 Not Found"])
async def test_an_address_where_something_else_answers_is_told_in_one_line(status: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 26\r\n\r\n<!DOCTYPE HTML>\n<html/>   ".encode())

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        client = LightningStoreClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with raises(StoreError, "http"):
            await client.statistics()
        await client.close()


async def test_pages_of_an_allowed_site_may_ask_and_others_may_not():
    site = "https://dashboard.example"
    async with serve(token=TOKEN, cors_allow_origins=[site]) as served:
        asked = {"origin": site, "access-control-request-method": "GET"}
        preflight = await served.curl("OPTIONS", "/v1/rollouts", headers=asked)
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (204, site)
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        answer = await served.curl("GET", "/v1/rollouts", headers={"origin": site, **GIVEN})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, site)
        assert (await served.curl("GET", "/v1/rollouts", headers={"origin": site})).status == 401
        other = await served.curl("GET", "/v1/rollouts", headers={"origin": "https://other.example", **GIVEN})
        assert other.status == 403
        assert "access-control-allow-origin" not in other.headers


async def test_a_client_takes_its_address_as_server_address_too():
    async with serve() as served:
        client = LightningStoreClient(server_address=served.curl.address)
        assert client.url == served.curl.address
        await client.close()
    with pytest.raises(ConfigError):
        LightningStoreClient()
    with pytest.raises(ConfigError):
        LightningStoreClient("http://127.0.0.1:1", server_address="http://127.0.0.1:2")
