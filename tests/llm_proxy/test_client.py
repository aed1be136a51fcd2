"""`LLMProxyClient`: a gateway that stands elsewhere."""

import socket

import openai
import pytest

from sharpen import LLMProxy
from sharpen.errors import ConfigError, RunError
from sharpen.llm_proxy import LLMProxyClient
from sharpen.types import ProxyLLM
from tests.errors import raises

MODELS = [
    {"name": "small", "base_url": "http://127.0.0.1:9/v1"},
    {"name": "large", "base_url": "http://127.0.0.1:9/v1"},
]


@pytest.fixture(autouse=True)
def without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARPEN_GATEWAY_TOKEN", raising=False)


async def test_it_sends_agents_to_the_gateway_with_a_reference_to_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPEN_GATEWAY_TOKEN", "a-token")
    async with LLMProxy(model_list=MODELS, token="a-token", launch_mode="thread") as gateway:
        client = LLMProxyClient(f"http://127.0.0.1:{gateway.port}/v1/")
        assert not client.is_running()
        await client.start()
        assert client.is_running()
        assert client.model_names == ["small", "large"]
        llm = client.as_resource(model="large", sampling_parameters={"temperature": 0.5})
    assert llm == ProxyLLM(f"{client.url}/v1", "large", "env:SHARPEN_GATEWAY_TOKEN", {"temperature": 0.5})
    with pytest.raises(ConfigError):
        client.as_resource()
    await client.stop()
    assert not client.is_running()


async def test_it_knows_what_the_gateway_has_done() -> None:
    async with LLMProxy(model_list=MODELS, launch_mode="thread") as gateway:
        client = LLMProxyClient(f"http://127.0.0.1:{gateway.port}")
        await client.start()
        llm = client.as_resource(model="small")
        with (
            pytest.raises(openai.InternalServerError),
            openai.OpenAI(base_url=llm.endpoint, api_key="none", max_retries=0) as agent,
        ):  # nobody is at the address of the model
            agent.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "hello"}])
        totals = await client.totals()
        assert totals == await gateway.totals()
        assert (totals.calls, totals.errors) == (1, 1)
    with pytest.raises(RunError):
        await client.totals()


async def test_a_wrong_token_is_told_at_once() -> None:
    async with LLMProxy(model_list=MODELS, token="a-token", launch_mode="thread") as gateway:
        for token in (None, "another"):
            with raises(RunError, "SHARPEN_GATEWAY_TOKEN"):
                await LLMProxyClient(f"http://127.0.0.1:{gateway.port}", token).start()


async def test_a_gateway_that_does_not_come_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with raises(RunError, f"http://127.0.0.1:{port}"):
        await LLMProxyClient(f"http://127.0.0.1:{port}", wait_seconds=0.1).start()


@pytest.mark.parametrize("url", ["127.0.0.1:4749", "http://", "http://h:x", "http://u:secret@h:1", "redis://h", 3])
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLMProxyClient(url)
    assert "secret" not in str(caught.value)
