"""What the list of models says before anything is paid for, with the real client and over HTTP."""

import logging
from typing import Any

import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI

from sharpen.algorithm import Algorithm
from sharpen.errors import RunError
from sharpen.llm_proxy import LLMProxy
from tests.algorithm.internals import Assistant, NoAnswerError, choose_client, names_in, prompts_models
from tests.errors import raises

from .scripted_openai import KEY, Reply, ScriptedOpenAI


async def check(server: ScriptedOpenAI, *models: str, **client: Any) -> None:
    await Assistant(server.client(**({"max_retries": 0} | client))).check(models or ("m",))
    assert server.count() == 0  # nothing was asked


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_refused_ends_the_run_with_the_words_of_a_call(status: int) -> None:
    refused = Reply(status=status, error=f"wrong key {KEY}")
    with ScriptedOpenAI(refused, listing=refused) as server:
        with pytest.raises(RunError) as found:
            await check(server)
        with pytest.raises(RunError) as asked:
            await Assistant(server.client(max_retries=0)).ask("m", [], temperature=None)
    assert str(found.value) == str(asked.value)
    assert f"answered {status}" in str(found.value)
    assert KEY not in str(found.value)
    assert found.value.__suppress_context__


async def test_a_server_that_is_gone_ends_the_run() -> None:
    with ScriptedOpenAI() as server:
        client = server.client(max_retries=0)
    with raises(RunError, "m", "127.0.0.1", "ConnectError", "base_url") as caught:
        await Assistant(client).check(["m"])
    assert not isinstance(caught.value, NoAnswerError)


async def test_a_model_that_is_not_listed_is_told_with_what_is(caplog: pytest.LogCaptureFixture) -> None:
    models = (*(f"gpt-{number}" for number in range(20)), "critic-mini")
    with ScriptedOpenAI(models=models) as server:
        await check(server, "critic-mni", "gpt-3", "critic-mni")
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    text = told.getMessage()
    assert text.startswith("'critic-mni'")
    assert "127.0.0.1:" in text
    assert "(critic-mini, gpt-0, " in text
    assert "and 15 more)" in text


SCOPES = "You have insufficient permissions for this operation. Missing scopes: api.model.read."


@pytest.mark.parametrize(
    "listing",
    [
        Reply(status=404),
        Reply(status=405),
        Reply(status=429),
        Reply(status=500),
        Reply(status=403, error=SCOPES),
        Reply(raw=b"<html>welcome</html>"),
        Reply(raw=b"<html>welcome</html>", headers={"content-type": "text/html"}),
        Reply(raw=b'["other"]'),
        Reply(raw=b'{"data": null}'),
        Reply(raw=b'{"data": [1, {"id": 2}]}'),
        Reply(body={"object": "list", "data": []}),
    ],
)
async def test_a_server_without_such_a_list_is_as_good_as_any(listing: Reply, caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedOpenAI(listing=listing) as server:
        await check(server)
    ours = [record for record in caplog.records if record.name.startswith("sharpen")]
    assert not [record for record in ours if record.levelno > logging.INFO]


async def test_a_list_that_takes_too_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prompts_models, "LIST_SECONDS", 0.2)
    with ScriptedOpenAI(listing=Reply(delay_seconds=60)) as server:
        await check(server)
    assert "WARNING" not in caplog.text


async def test_a_model_that_the_server_knows_under_its_name_needs_no_place_in_the_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedOpenAI(models=("models/one", "team/two")) as server:
        await check(server, "one", "team/two")
    assert "not among" not in caplog.text


async def test_a_deployment_of_azure_is_not_looked_for_among_models(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedOpenAI(models=("gpt-4",)) as server:
        client = AsyncAzureOpenAI(azure_endpoint=server.base_url, api_version="2024-10-21", api_key=KEY, max_retries=0)
        await Assistant(client).check(["our-deployment"])
    assert "not among" not in caplog.text


async def test_a_gateway_is_asked_for_its_list_and_counts_no_call(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can say what the star stands for, as the upstream gives no list."""
    with ScriptedOpenAI(listing=Reply(status=503)) as server:
        entries = [{"name": name, "base_url": server.base_url, "engine": "none"} for name in ("critic-*", "editor")]
        async with LLMProxy(model_list=entries, launch_mode="thread") as gateway:
            algorithm: Algorithm[Any] = Algorithm()
            algorithm.set_llm_proxy(gateway)
            assistant = Assistant(choose_client(algorithm, ["critic-big", "editor"], feature="APO"))
            await assistant.check(["critic-big", "editor"])
            assert (await gateway.totals()).calls == 0
        assert server.count() == 0
    assert "not among" not in caplog.text


async def test_a_client_that_only_looks_like_one_is_left_alone() -> None:
    class Likeness:
        chat = AsyncOpenAI(api_key="x").chat

    await Assistant(Likeness()).check(["m"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ({"data": [{"id": "a"}, {"id": "b", "object": "model"}]}, ["a", "b"]),
        ([{"id": "a"}], ["a"]),
        ({"data": [{"id": None}, "b", {"name": "c"}]}, []),
        ("<html>", []),
        (None, []),
    ],
)
def test_names_are_read_from_what_servers_send(found: Any, names: list[str]) -> None:
    assert names_in(found) == names
