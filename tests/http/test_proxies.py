"""Proxies of the environment: used for others, never for this machine."""

import pytest

from sharpen.errors import ConfigError
from tests.errors import raises
from tests.http.internals import HttpClient, Unsent, proxy_for

from .servers import NAME, OK, answering, client_tls, make_certificate, server_tls, tunnelling

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch.setenv


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_the_environment_names_the_proxy(environment):
    assert proxy_for("https", NAME, 443) is None
    environment("HTTPS_PROXY", "http://user:p%40ss@proxy.example:3128")
    environment("http_proxy", "plain.example:8080")
    host, port, headers = proxy_for("https", NAME, 443)
    assert (host, port) == ("proxy.example", 3128)
    assert headers == [("proxy-authorization", "Basic dXNlcjpwQHNz")]
    assert proxy_for("http", NAME, 80) == ("plain.example", 8080, [])


@pytest.mark.parametrize("spared", [NAME, f".{NAME.partition('.')[2]}", "a.test,upstream.example", "*"])
def test_a_server_can_be_spared_the_proxy(environment, spared):
    environment("ALL_PROXY", "http://proxy.example")
    assert proxy_for("https", NAME, 443) is not None
    environment("NO_PROXY", spared)
    assert proxy_for("https", NAME, 443) is None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_this_machine_is_never_reached_through_a_proxy(environment, host):
    environment("HTTP_PROXY", "http://proxy.example")
    assert proxy_for("http", host, 80) is None


def test_a_proxy_that_cannot_be_used_is_named_without_its_password(environment):
    environment("HTTPS_PROXY", "socks5://user:s3cret@proxy.example:1080")
    with raises(ConfigError, "socks5://proxy.example") as caught:
        HttpClient(f"https://{NAME}")
    assert "s3cret" not in str(caught.value)


async def test_plain_requests_name_the_server_to_the_proxy(environment):
    async with answering(OK, OK) as server, tunnelling(server.port) as proxy:
        environment("HTTP_PROXY", proxy.url.replace("://", "://user:word@"))
        client = HttpClient(f"http://{NAME}/v1")
        for _ in range(2):
            assert await (await client.request("POST", "/x", body=b"{}")).read() == b"ok"
        client.close()
    assert len(proxy.heads) == 1
    assert server.heads[0][1].startswith(f"POST http://{NAME}/v1/x HTTP/1.1\r\nhost: {NAME}\r\n")
    assert "proxy-authorization: Basic dXNlcjp3b3Jk\r\n" in server.heads[0][1]


async def test_https_goes_through_a_tunnel_that_sees_no_key(environment, pem):
    async with answering(OK, OK, tls=server_tls(pem)) as server, tunnelling(server.port) as proxy:
        environment("HTTPS_PROXY", proxy.url.replace("://", "://user:word@"))
        client = HttpClient(f"https://{NAME}/v1", headers=[("authorization", "Bearer s3cret")], tls=client_tls(pem))
        for _ in range(2):
            assert await (await client.request("POST", "/x", body=b"{}")).read() == b"ok"
        client.close()
    (head,) = proxy.heads[0]
    assert head.startswith(f"CONNECT {NAME}:443 HTTP/1.1\r\nhost: {NAME}:443\r\nproxy-authorization: Basic ")
    assert server.heads[0][0].startswith("POST /v1/x HTTP/1.1\r\n")
    assert "proxy-authorization" not in server.heads[0][0]


async def test_a_proxy_that_refuses_is_an_error_that_names_both(environment, pem):
    async with answering(OK) as server, tunnelling(server.port, status="407 Who are you") as proxy:
        environment("HTTPS_PROXY", proxy.url)
        client = HttpClient(f"https://{NAME}")
        with raises(Unsent, f"127.0.0.1:{proxy.port}", NAME, "407 Who are you"):
            await client.request("GET", "/x")
    assert server.bodies == []
