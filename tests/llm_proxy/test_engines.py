"""Which engine an upstream is, and what it is asked for."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.llm_proxy.internals import (
    AGAIN_SECONDS,
    LONGEST_AGAIN_SECONDS,
    Api,
    EngineFinder,
    Upstreams,
    engine_in,
    is_public,
    upstreams_engines,
    wanted_fields,
)

from .scripted import Fault, ScriptedUpstream
from .sending import KEY, Clock, call_to, entry_of, events_in, read


@pytest.fixture
async def upstreams() -> AsyncIterator[Upstreams]:
    made = Upstreams([], clock=Clock())
    yield made
    await made.aclose()


# -- what is asked for -------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sharpen"])
@pytest.mark.parametrize("is_stream", [True, False])
def test_token_ids_and_log_probabilities_are_asked_of_engines_that_can(engine: Any, is_stream: bool) -> None:
    assert wanted_fields(engine, "chat", {"stream": is_stream}) == {"return_token_ids": True, "logprobs": True}
    assert wanted_fields(engine, "completions", {"stream": is_stream}) == {"return_token_ids": True, "logprobs": 0}


def test_sglang_is_not_asked_for_token_ids_of_a_streamed_chat() -> None:
    assert wanted_fields("sglang", "chat", {"stream": True}) == {"logprobs": True}
    assert wanted_fields("sglang", "chat", {}) == {"return_token_ids": True, "logprobs": True}
    assert "return_token_ids" in wanted_fields("sglang", "completions", {"stream": True})


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "embeddings", "messages"])
def test_nothing_is_asked_of_an_unknown_engine(api: Api) -> None:
    assert wanted_fields("none", api, {}) == {}


@pytest.mark.parametrize("api", ["responses", "embeddings", "messages"])
def test_nothing_is_asked_in_apis_that_give_no_token_ids(api: Api) -> None:
    assert wanted_fields("vllm", api, {}) == {}


def test_what_the_client_set_itself_is_left_alone() -> None:
    request = {"return_token_ids": False, "logprobs": False}
    assert wanted_fields("vllm", "chat", request) == {}
    assert wanted_fields("vllm", "chat", {"logprobs": None}) == {"return_token_ids": True, "logprobs": True}


def test_an_echoed_prompt_is_not_given_log_probabilities() -> None:
    assert wanted_fields("vllm", "completions", {"echo": True}) == {"return_token_ids": True}


# -- whom to ask -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://api.openai.com/v1", True),
        ("https://API.OpenAI.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://api.anthropic.com/v1", True),
        ("https://mine.openai.azure.com/openai/v1", True),
        ("https://openrouter.ai/api/v1", True),
        ("http://127.0.0.1:8000/v1", False),
        ("https://notopenai.com/v1", False),
        ("https://vllm.my-company.com/v1", False),
    ],
)
def test_public_apis_are_known_by_their_host(url: str, public: bool) -> None:
    assert is_public(url) is public


@pytest.mark.parametrize(
    ("body", "engine"),
    [
        (b'{"data": [{"id": "m", "owned_by": "vllm"}]}', "vllm"),
        (b'{"data": [{"id": "m", "owned_by": "me"}, {"id": "n", "owned_by": "sglang"}]}', "sglang"),
        (b'{"data": [{"id": "m", "owned_by": "openai"}]}', "none"),
        (b'{"data": [{"id": "m"}]}', "none"),
        (b'{"data": []}', "none"),
        (b"[1]", "none"),
        (b"<html>", "none"),
        (b"\xff", "none"),
        (b"", "none"),
    ],
)
def test_the_owner_of_the_models_names_the_engine(body: bytes, engine: str) -> None:
    assert engine_in(body) == engine


async def test_calls_at_once_ask_once() -> None:
    finder, asked = EngineFinder("http://127.0.0.1:1", Clock()), list[int]()

    async def ask() -> bytes:
        asked.append(1)
        await asyncio.sleep(0.01)
        return b'{"data": [{"owned_by": "vllm"}]}'

    assert await asyncio.gather(*(finder.find(ask) for _ in range(10))) == ["vllm"] * 10
    assert len(asked) == 1


async def test_a_caller_that_leaves_does_not_take_the_answer_from_the_others() -> None:
    finder, began = EngineFinder("http://127.0.0.1:1", Clock()), asyncio.Event()

    async def ask() -> bytes:
        began.set()
        await asyncio.sleep(0.01)
        return b'{"data": [{"owned_by": "vllm"}]}'

    first = asyncio.create_task(finder.find(ask))
    await began.wait()
    second = asyncio.create_task(finder.find(ask))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "vllm"


async def test_an_upstream_that_is_not_there_yet_is_asked_again_later() -> None:
    clock, bodies = Clock(), [None, b'{"data": [{"owned_by": "vllm"}]}']
    finder = EngineFinder("http://127.0.0.1:1", clock)

    async def ask() -> bytes | None:
        return bodies.pop(0)

    assert await finder.find(ask) == "none"
    assert await finder.find(ask) == "none"
    clock.now += AGAIN_SECONDS
    assert await finder.find(ask) == "vllm"
    assert not bodies


async def test_pauses_between_questions_grow_up_to_a_bound() -> None:
    clock, asked = Clock(), list[float]()
    finder = EngineFinder("http://127.0.0.1:1", clock)

    async def ask() -> None:
        asked.append(clock.now)

    for _ in range(1000):
        assert await finder.find(ask) == "none"
        clock.now += AGAIN_SECONDS / 2
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses[:6] == [10, 20, 40, 80, 160, 300]
    assert max(pauses) == LONGEST_AGAIN_SECONDS


async def test_a_question_that_hangs_holds_calls_for_a_moment_and_later_ones_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstreams_engines, "PATIENCE_SECONDS", 0.05)
    clock, answers = Clock(), asyncio.Event()
    finder = EngineFinder("http://127.0.0.1:1", clock)

    async def ask() -> bytes | None:
        await answers.wait()
        return None if clock.now == 1000.0 else b'{"data": [{"owned_by": "vllm"}]}'

    async with asyncio.timeout(5):
        assert await asyncio.gather(*(finder.find(ask) for _ in range(3))) == ["none"] * 3
        monkeypatch.setattr(upstreams_engines, "PATIENCE_SECONDS", 1000)
        assert await finder.find(ask) == "none"
        answers.set()
        await asyncio.sleep(0.01)
        clock.now += AGAIN_SECONDS
        assert await finder.find(ask) == "none"  # asked again, behind the back of the call
        await asyncio.sleep(0.01)
        assert await finder.find(ask) == "vllm"


# -- against a server --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_engine_is_found_out_once_and_gives_token_ids(
    vllm: ScriptedUpstream, upstreams: Upstreams, is_stream: bool
) -> None:
    upstreams.replace([entry_of(vllm.base_url, api_key=KEY)])
    for _ in range(3):
        call = call_to({"stream": is_stream})
        body = await read(await upstreams.choose(call)[0].send(call))
        assert b"token_ids" in body
        assert call.added == {"return_token_ids", "logprobs"}
    assert [probe.path for probe in vllm.probes] == ["/v1/models"]
    assert vllm.probes[0].headers["authorization"] == f"Bearer {KEY}"
    assert upstreams.choose(call_to())[0].engine == "vllm"


async def test_the_body_is_the_clients_with_the_added_fields_at_its_end(
    vllm: ScriptedUpstream, upstreams: Upstreams
) -> None:
    upstreams.replace([entry_of(vllm.base_url)])
    body = b'{ "messages" :[{"role":"user","content":"h\\u00e9"}],"model":"scripted" , "temperature": 1.0 }\n'
    call = call_to(body=body)
    await read(await upstreams.choose(call)[0].send(call))
    assert vllm.requests[0].body == body.rstrip()[:-1] + b',"return_token_ids":true,"logprobs":true}'
    assert json.loads(vllm.requests[0].body) == call.request | {"return_token_ids": True, "logprobs": True}


async def test_a_plain_server_is_asked_for_nothing(upstream: ScriptedUpstream, upstreams: Upstreams) -> None:
    upstreams.replace([entry_of(upstream.base_url)])
    call = call_to()
    answer = await upstreams.choose(call)[0].send(call)
    assert (answer.status, call.added) == (200, frozenset())
    await read(answer)
    assert upstream.requests[0].body == call.body


async def test_the_model_list_may_say_the_engine_and_nobody_is_asked(
    vllm: ScriptedUpstream, upstreams: Upstreams
) -> None:
    upstreams.replace([entry_of(vllm.base_url, engine="none")])
    call = call_to()
    assert b"token_ids" not in await read(await upstreams.choose(call)[0].send(call))
    upstreams.replace([entry_of(vllm.base_url, engine="vllm")])
    assert b"token_ids" in await read(await upstreams.choose(call)[0].send(call))
    assert vllm.probes == []


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_engine_that_refuses_added_fields_is_asked_without_and_remembered(
    upstream: ScriptedUpstream, upstreams: Upstreams, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    upstreams.replace([entry_of(upstream.base_url, engine="vllm")])
    for _ in range(2):
        call = call_to({"stream": is_stream})
        answer = await upstreams.choose(call)[0].send(call)
        assert (answer.status, call.added) == (200, frozenset())
        await read(answer)
    assert ["return_token_ids" in asked.json for asked in upstream.requests] == [True, False, False]
    assert "return_token_ids" in caplog.text


async def test_a_request_that_is_wrong_by_itself_blames_nobody(vllm: ScriptedUpstream, upstreams: Upstreams) -> None:
    upstreams.replace([entry_of(vllm.base_url)])
    wrong = Fault("status", status=400, message="context too long")
    vllm.script(wrong, wrong)
    call = call_to()
    answer = await upstreams.choose(call)[0].send(call)
    assert answer.status == 400
    assert b"context too long" in await read(answer)
    assert b"token_ids" in await read(await upstreams.choose(call)[0].send(call))


async def test_sglang_streams_chats_without_token_ids(upstreams: Upstreams) -> None:
    with ScriptedUpstream(engine="sglang") as sglang:
        upstreams.replace([entry_of(sglang.base_url)])
        call = call_to({"stream": True})
        body = await read(await upstreams.choose(call)[0].send(call))
        assert events_in(body)
        assert len(sglang.requests) == 1
        whole = call_to()
        assert b"token_ids" in await read(await upstreams.choose(whole)[0].send(whole))


async def test_a_key_that_does_not_open_the_list_of_models_settles_nothing() -> None:
    clock = Clock()
    upstreams = Upstreams([], clock=clock)
    with ScriptedUpstream(engine="vllm", api_key="right") as upstream:
        upstreams.replace([entry_of(upstream.base_url)])
        call = call_to(headers={"authorization": "Bearer wrong"})
        answer = await upstreams.choose(call)[0].send(call)
        assert answer.status == 401
        await answer.aclose()
        clock.now += AGAIN_SECONDS
        call = call_to(headers={"authorization": "Bearer right"})
        assert b"token_ids" in await read(await upstreams.choose(call)[0].send(call))
    await upstreams.aclose()
