"""Routes, and who may ask."""

import json
import socket

import httpx
import pytest

from sharpen.llm.server import EngineServer

from .conftest import NAME

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def url(server: EngineServer, path: str) -> str:
    return server.base_url.removesuffix("/v1") + path


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/"])
def test_the_model_is_listed_with_its_owner_and_its_window(server: EngineServer, path: str) -> None:
    (listed,) = httpx.get(url(server, path)).json()["data"]
    assert (listed["id"], listed["owned_by"], listed["max_model_len"]) == (NAME, "sharpen", 256)
    assert httpx.get(url(server, f"/v1/models/{NAME}")).json() == listed
    assert httpx.get(url(server, "/v1/models/other")).json()["error"]["code"] == "model_not_found"


def test_its_health_tells_the_version_of_the_weights(server: EngineServer) -> None:
    told = httpx.get(url(server, "/health")).json()
    assert (told["status"], told["model"], told["weights_version"]) == ("ok", NAME, "0")


@pytest.mark.parametrize(
    ("verb", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "wrong_method"),
        ("POST", "/v1/models", 405, "wrong_method"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
    ],
)
def test_other_paths_and_methods_are_refused(
    server: EngineServer, verb: str, path: str, status: int, code: str
) -> None:
    answer = httpx.request(verb, url(server, path), json=CHAT if verb == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"host": "evil.example"}, 403, "wrong_host"),
        ({"origin": "http://evil.example"}, 403, "wrong_origin"),
        ({"content-type": "text/plain"}, 415, "wrong_content_type"),
        ({"content-encoding": "gzip"}, 415, "wrong_content_encoding"),
    ],
)
def test_pages_of_other_sites_and_other_bodies_are_refused(
    server: EngineServer, headers: dict[str, str], status: int, code: str
) -> None:
    answer = httpx.post(url(server, "/v1/chat/completions"), json=CHAT, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(server: EngineServer) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"connection: close\r\ncontent-length: {64 * 2**20 + 1}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(server.base_url).port or 0), timeout=20) as client:
        client.sendall(head.encode())
        status, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert (status.split()[1], error["code"], error["type"]) == (b"413", "body_too_large", "request_too_large")
