"""A client that was used in one event loop, or is in use there, can be asked in another."""

import asyncio
import threading
import time
from typing import Any

import httpx
import httpx2
import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI, DefaultAsyncHttpxClient

from tests.algorithm.internals import Assistant, loop_client

from .scripted_openai import KEY, ScriptedOpenAI

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


async def ask(client: AsyncOpenAI) -> str:
    return (await Assistant(client).ask("m", HELLO, temperature=None)).text


HTTP_CLIENTS = {
    "none": lambda: None,
    "openai's": lambda: DefaultAsyncHttpxClient(verify=False),
    "httpx": lambda: httpx.AsyncClient(verify=False),
}


@pytest.mark.parametrize("kind", HTTP_CLIENTS)
def test_a_client_that_was_used_in_a_loop_that_is_closed_can_be_asked(kind: str) -> None:
    with ScriptedOpenAI("there") as server:
        client = server.client(max_retries=0, http_client=HTTP_CLIENTS[kind]())
        asyncio.run(client.chat.completions.create(model="m", messages=HELLO))
        assert asyncio.run(ask(client)) == "there"
    assert server.count() == 2


def test_an_assistant_can_be_asked_in_one_loop_after_another() -> None:
    with ScriptedOpenAI("there") as server:
        assistant = Assistant(server.client(max_retries=0), limit=1)

        async def ask_twice() -> list[str]:
            calls = [assistant.ask("m", HELLO, temperature=None) for _ in range(2)]
            return [answer.text for answer in await asyncio.gather(*calls)]

        assert asyncio.run(ask_twice()) == asyncio.run(ask_twice()) == ["there", "there"]


def test_a_client_that_is_at_work_in_another_loop_can_be_asked() -> None:
    """The only connection of the client is taken there; to wait for it here would be to wait for the other loop."""
    is_free = threading.Event()

    def reply(request: dict[str, Any]) -> str:
        if request["model"] == "slow":
            assert is_free.wait(20)
        return "there"

    with ScriptedOpenAI(reply) as server:
        one = DefaultAsyncHttpxClient(verify=False, limits=httpx2.Limits(max_connections=1))
        client = server.client(max_retries=0, timeout=5.0, http_client=one)
        slow = client.chat.completions.create(model="slow", messages=HELLO)
        other = threading.Thread(target=lambda: asyncio.run(slow))
        other.start()
        wait_until(lambda: server.count(model="slow") == 1)
        try:
            assert asyncio.run(ask(client)) == "there"
        finally:
            is_free.set()
            other.join()


def test_no_connection_is_left_open() -> None:
    with ScriptedOpenAI("there") as server:
        client = server.client(max_retries=0)

        async def ask_and_look() -> None:
            assistant = Assistant(client)
            await assistant.check(["m"])
            await assistant.ask("m", HELLO, temperature=None)
            await asyncio.to_thread(wait_until, lambda: server.num_open == 0)

        asyncio.run(ask_and_look())


def wait_until(is_so: Any) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


# -- what stays --------------------------------------------------------------------------------------


def test_the_copy_has_the_settings_of_the_client() -> None:
    given = AsyncOpenAI(
        base_url="http://models.test/v1",
        api_key=KEY,
        organization="us",
        project="ours",
        timeout=7.0,
        max_retries=9,
        default_headers={"x-team": "red"},
        default_query={"tier": "flex"},
    )
    copied = loop_client(given)
    assert copied is not given
    assert copied._client is not given._client
    for name in ("base_url", "api_key", "organization", "project", "timeout", "max_retries", "default_query"):
        assert getattr(copied, name) == getattr(given, name), name
    assert copied.default_headers["x-team"] == "red"


def test_a_client_of_azure_stays_one() -> None:
    given = AsyncAzureOpenAI(
        azure_endpoint="http://azure.test", azure_deployment="ours", api_version="2024-10-21", api_key=KEY
    )
    copied = loop_client(given)
    assert isinstance(copied, AsyncAzureOpenAI)
    assert (copied.base_url, copied.api_key) == (given.base_url, KEY)
    assert copied.default_query == given.default_query


async def test_the_proxy_and_the_hooks_of_an_http_client_stay_in_use() -> None:
    seen: list[str] = []

    async def note(request: httpx2.Request) -> None:
        seen.append(request.url.host)

    with ScriptedOpenAI("by the proxy") as server:
        link = DefaultAsyncHttpxClient(
            verify=False, proxy=server.base_url.removesuffix("/v1"), event_hooks={"request": [note]}
        )
        client = AsyncOpenAI(base_url="http://models.test/v1", api_key=KEY, max_retries=0, http_client=link)
        assert loop_client(client)._client is not link
        assert await ask(client) == "by the proxy"
    assert seen == ["models.test"]


async def test_an_http_client_with_a_transport_of_its_own_is_used_as_it_is() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        message = {"role": "assistant", "content": "from the transport"}
        return httpx2.Response(200, json={"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    link = DefaultAsyncHttpxClient(transport=httpx2.MockTransport(answer))
    client = AsyncOpenAI(base_url="http://models.test/v1", api_key=KEY, http_client=link)
    assert loop_client(client) is client
    assert await ask(client) == "from the transport"
