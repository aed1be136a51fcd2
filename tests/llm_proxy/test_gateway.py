"""The life of a call, over real sockets, with a real upstream and real stores."""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sharpen import Limits
from sharpen.semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from sharpen.store import InMemoryLightningStore, LightningStore, SQLiteStore
from tests.http.internals import HttpClient
from tests.llm_proxy.internals import (
    Gate,
    Only,
    RecordFile,
    Redaction,
    Replay,
    Upstreams,
    WrittenRecord,
    parse_model_list,
)

from .heart import CHAT, STREAM, HeldStore, eventually, free_port, one_span, served, spans_of, start
from .scripted import Fault, Reply, ScriptedUpstream


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LightningStore]:
    opened = InMemoryLightningStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")
    yield opened
    await opened.close()


@pytest.fixture
async def memory() -> AsyncIterator[InMemoryLightningStore]:
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


async def _direct(upstream: ScriptedUpstream, path: str, body: dict[str, Any]) -> bytes:
    client = HttpClient(upstream.base_url)
    answer = await client.request(
        "POST", path, headers=[("content-type", "application/json")], body=json.dumps(body).encode()
    )
    data = await answer.read()
    client.close()
    return data


# -- through -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_an_answer_passes_byte_for_byte_and_its_span_is_there_when_it_ends(
    store: LightningStore, upstream: ScriptedUpstream, body: dict[str, Any]
) -> None:
    rollout, path = await start(store)
    async with served(store, upstream.base_url) as gateway:
        status, headers, data = await gateway.post(f"{path}/chat/completions", body)
        (span,) = await spans_of(store, rollout)
    assert (status, data) == (200, await _direct(upstream, "/chat/completions", body))
    assert headers["x-request-id"] == "req_scripted"
    assert headers["x-sharpen-call-id"] == span.attributes[LightningLLMAttributes.CALL_ID]
    assert (span.name, span.status.status_code) == (SHARPEN_LLM_CALL, "OK")
    assert span.attempt_id == rollout.attempt.attempt_id
    assert "You said: How are you today" in span.attributes["gen_ai.output.messages"]
    assert body is STREAM or span.attributes["gen_ai.usage.output_tokens"] > 0
    assert upstream.requests[0].body == json.dumps(body).encode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completions", {"model": "scripted", "prompt": "Once upon"}),
        ("/completions", {"model": "scripted", "prompt": "Once upon", "stream": True}),
        ("/responses", {"model": "scripted", "input": "Hello there"}),
        ("/responses", {"model": "scripted", "input": "Hello there", "stream": True}),
        ("/embeddings", {"model": "scripted", "input": "Hello there"}),
        ("/messages", {"model": "scripted", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
        (
            "/messages",
            {"model": "scripted", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi"}]},
        ),
    ],
)
async def test_every_api_passes_byte_for_byte_and_is_recorded(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, path: str, body: dict[str, Any]
) -> None:
    rollout, base = await start(memory, role="critic")
    async with served(memory, upstream.base_url) as gateway:
        status, _, data = await gateway.post(base + path, body)
        (span,) = await spans_of(memory, rollout)
    assert (status, data) == (200, await _direct(upstream, path, body))
    assert (span.status.status_code, span.status.description) == ("OK", None)
    assert span.attributes["gen_ai.agent.name"] == "critic"


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_the_end_of_an_answer_waits_for_its_span_and_nothing_else_does(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, body: dict[str, Any]
) -> None:
    rollout, path = await start(memory)
    store: Any = HeldStore(memory)
    async with served(store, upstream.base_url) as gateway:
        client = await gateway.open(f"{path}/chat/completions", body)
        if body is STREAM:
            assert b"You" in await client.until(b"You")
        await store.is_asked.wait()
        await asyncio.sleep(0.05)
        early = bytes(client.reader._buffer)  # type: ignore[attr-defined]
        assert b"[DONE]" not in early
        assert b"usage" not in early
        assert not await spans_of(memory, rollout)
        store.may_write.set()
        await client.until(b"[DONE]" if body is STREAM else b"usage")
        assert len(await spans_of(memory, rollout)) == 1


@pytest.mark.parametrize("path", ["/messages", "/responses"])
async def test_the_last_event_of_other_streams_waits_for_the_span_too(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, path: str
) -> None:
    _, base = await start(memory)
    store: Any = HeldStore(memory)
    body = {"model": "scripted", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    if path == "/responses":
        body = {"model": "scripted", "input": "Hello", "stream": True}
    async with served(store, upstream.base_url) as gateway:
        client = await gateway.open(base + path, body)
        await client.until(b"said")
        await store.is_asked.wait()
        await asyncio.sleep(0.05)
        early = bytes(client.reader._buffer)  # type: ignore[attr-defined]
        assert b"message_stop" not in early
        assert b"response.completed" not in early
        store.may_write.set()
        await client.until(b"\r\n0\r\n\r\n")


async def test_a_store_that_does_not_answer_holds_an_agent_only_for_a_while(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    store: Any = HeldStore(memory)
    async with served(store, upstream.base_url, record_seconds=0.05) as gateway:
        status, _, _ = await gateway.post(f"{path}/chat/completions", CHAT)
        assert status == 200
        assert not await spans_of(memory, rollout)
        store.may_write.set()
        await one_span(memory, rollout)


async def test_the_first_byte_of_a_stream_is_not_held_back(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    _, path = await start(memory)
    hold = threading.Event()
    upstream.script(Reply("one two three", hold=hold))
    async with served(memory, upstream.base_url) as gateway:
        client = await gateway.open(f"{path}/chat/completions", STREAM)
        first = await client.until(b"\n\n")
        assert b"data:" in first
        hold.set()
        assert b"[DONE]" in await client.until(b"\r\n0\r\n\r\n")


async def test_many_agents_at_once_each_get_their_own_answer_and_span(
    store: LightningStore, upstream: ScriptedUpstream
) -> None:
    started = [await start(store) for _ in range(20)]
    async with served(store, upstream.base_url) as gateway:

        async def ask(number: int, path: str) -> None:
            body = {**CHAT, "messages": [{"role": "user", "content": f"number {number}"}], "stream": number % 2 == 0}
            status, _, data = await gateway.post(f"{path}/chat/completions", body)
            assert status == 200
            assert str(number).encode() in data

        await asyncio.gather(*(ask(number, path) for number, (_, path) in enumerate(started) for _ in range(3)))
    for number, (rollout, _) in enumerate(started):
        spans = await spans_of(store, rollout)
        assert len(spans) == 3
        assert all(f"number {number}" in span.attributes["gen_ai.input.messages"] for span in spans)


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_an_engine_is_asked_for_token_ids_and_they_are_recorded(
    store: LightningStore, vllm: ScriptedUpstream, body: dict[str, Any]
) -> None:
    rollout, path = await start(store)
    choice = Upstreams(parse_model_list([{"model_name": "scripted", "base_url": vllm.base_url}]))
    async with served(store, choice=choice) as gateway:
        _, _, data = await gateway.post(f"{path}/chat/completions", body)
        (span,) = await spans_of(store, rollout)
    ids = span.attributes[LightningLLMAttributes.RESPONSE_TOKEN_IDS]
    assert ids
    assert len(ids) == len(span.attributes[LightningLLMAttributes.RESPONSE_LOGPROBS])
    assert span.attributes[LightningLLMAttributes.PROMPT_TOKEN_IDS]
    assert span.attributes["gen_ai.provider.name"] == "vllm"
    asked = json.loads(vllm.requests[0].body)
    assert {key: asked[key] for key in body} == body
    assert "return_token_ids" in asked
    assert b"token_ids" in data


# -- hanging up ----------------------------------------------------------------------------------------


async def test_a_client_that_hangs_up_before_the_answer_ends_the_upstream_call(
    store: LightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(store)
    upstream.script(Fault("hang"))
    async with served(store, upstream.base_url) as gateway:
        client = await gateway.open(f"{path}/chat/completions", CHAT)
        await eventually(lambda: upstream.requests)
        client.hang_up()
        span = await one_span(store, rollout)
        await eventually(lambda: upstream.requests[0].outcome == "left")
        await eventually(lambda: gateway.gateway.gate.in_flight == 0)
    assert (span.status.status_code, span.status.description) == ("ERROR", "the client disconnected")
    assert span.attributes[LightningLLMAttributes.IS_COMPLETE] is False


async def test_a_client_that_hangs_up_in_a_stream_leaves_what_came(
    store: LightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(store)
    upstream.script(Reply("alpha beta gamma delta", hold=threading.Event()))
    async with served(store, upstream.base_url) as gateway:
        client = await gateway.open(f"{path}/chat/completions", STREAM)
        await client.until(b"\n\n")
        client.hang_up()
        span = await one_span(store, rollout)
        await eventually(lambda: upstream.requests[0].outcome == "left")
    assert (span.status.status_code, span.status.description) == ("ERROR", "the client disconnected")
    assert span.attributes[LightningLLMAttributes.IS_COMPLETE] is False
    assert "delta" not in span.attributes.get("gen_ai.output.messages", "")


async def test_a_client_that_hangs_up_in_a_pause_never_reaches_the_upstream(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    gate = Gate()
    gate.pause()
    async with served(memory, upstream.base_url, gate=gate) as gateway:
        client = await gateway.open(f"{path}/chat/completions", CHAT)
        await eventually(lambda: gate.waiting == 1)
        client.hang_up()
        await eventually(lambda: gate.waiting == 0)
        gate.resume()
        assert (await gateway.post(f"{path}/chat/completions", CHAT))[0] == 200
        assert len(upstream.requests) == 1
        assert len(await spans_of(memory, rollout)) == 1


async def test_a_slow_client_slows_the_upstream_down(memory: InMemoryLightningStore) -> None:
    _, path = await start(memory)
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        piece = b": " + b"x" * 65_000 + b"\n\n"
        while not writer.transport.is_closing():
            writer.write(piece)
            sent += len(piece)
            await writer.drain()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with served(memory, f"http://127.0.0.1:{port}/v1") as gateway:
        client = await gateway.open(f"{path}/chat/completions", STREAM)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        seen = -1
        while sent != seen:
            seen = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < 32 * 2**20
        client.hang_up()
        await eventually(lambda: gateway.gateway.gate.in_flight == 0)
    server.close()


# -- faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
async def test_errors_of_the_upstream_pass_unchanged_and_are_recorded(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, status: int
) -> None:
    rollout, path = await start(memory)
    upstream.script(Fault("status", status=status, message="not like this", retry_after="7"))
    async with served(memory, upstream.base_url) as gateway:
        answered, headers, data = await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(memory, rollout)
    assert (answered, headers["retry-after"]) == (status, "7")
    assert json.loads(data)["error"]["message"] == "not like this"
    assert span.status.status_code == "ERROR"
    assert "not like this" in (span.status.description or "")
    assert span.attributes["error.type"] == str(status)


async def test_a_reset_upstream_is_a_bad_gateway_and_is_not_asked_again(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    upstream.script(Fault("reset"))
    async with served(memory, upstream.base_url, num_retries=3) as gateway:
        status, headers, data = await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(memory, rollout)
    assert (status, json.loads(data)["error"]["code"]) == (502, "upstream_failed")
    assert headers["x-sharpen-call-id"]
    assert span.status.status_code == "ERROR"
    assert len(upstream.requests) == 1


async def test_an_upstream_that_is_not_there_is_a_bad_gateway(memory: InMemoryLightningStore) -> None:
    rollout, path = await start(memory)
    async with served(memory, f"http://127.0.0.1:{free_port()}/v1") as gateway:
        status, _, data = await gateway.post(f"{path}/messages", {"model": "scripted", "messages": []})
        span = await one_span(memory, rollout)
    assert (status, json.loads(data)["type"], json.loads(data)["error"]["type"]) == (502, "error", "api_error")
    assert "cannot be reached" in (span.status.description or "")


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_cut_stream_is_cut_for_the_agent_too(
    store: LightningStore, upstream: ScriptedUpstream, is_reset: bool
) -> None:
    rollout, path = await start(store)
    upstream.script(Fault("cut", is_reset=is_reset))
    async with served(store, upstream.base_url) as gateway:
        client = await gateway.open(f"{path}/chat/completions", STREAM)
        got = await client.rest()
        span = await one_span(store, rollout)
    assert b"data:" in got
    assert b"[DONE]" not in got
    assert not got.endswith(b"0\r\n\r\n")
    assert span.status.status_code == "ERROR"
    assert span.attributes[LightningLLMAttributes.IS_COMPLETE] is False


async def test_a_cut_body_is_cut_for_the_agent_too(store: LightningStore, upstream: ScriptedUpstream) -> None:
    rollout, path = await start(store)
    upstream.script(Fault("cut"))
    async with served(store, upstream.base_url) as gateway:
        client = await gateway.open(f"{path}/chat/completions", CHAT)
        head = (await client.head()).decode().lower()
        got = await client.rest()
        span = await one_span(store, rollout)
    assert 0 < len(got) < int(head.partition("content-length: ")[2].partition("\r")[0])
    assert span.status.status_code == "ERROR"


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_malformed_json_passes_and_is_recorded_as_an_error(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, body: dict[str, Any]
) -> None:
    rollout, path = await start(memory)
    upstream.script(Fault("malformed"))
    async with served(memory, upstream.base_url) as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", body)
        span = await one_span(memory, rollout)
    assert status == 200
    assert b"oops" in data or b'{"choices": [\n' in data
    assert "malformed" in (span.status.description or "")


async def test_an_upstream_that_does_not_begin_in_time_is_given_up(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    upstream.script(Fault("hang"))
    async with served(memory, upstream.base_url, first_byte_seconds=0.05) as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(memory, rollout)
    assert (status, json.loads(data)["error"]["code"]) == (504, "timeout")
    assert upstream.base_url.split("/")[2] in (span.status.description or "")
    await eventually(lambda: upstream.requests[0].outcome == "left")


@pytest.mark.parametrize("limits", [{"chunk_seconds": 0.05}, {"timeout_seconds": 0.2}])
async def test_a_stream_that_stops_is_cut_when_its_time_is_over(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, limits: dict[str, float]
) -> None:
    rollout, path = await start(memory)
    upstream.script(Reply("one two three", hold=threading.Event()))
    async with served(memory, upstream.base_url, **limits) as gateway:
        client = await gateway.open(f"{path}/chat/completions", STREAM)
        got = await client.rest()
        span = await one_span(memory, rollout)
    assert b"data:" in got
    assert not got.endswith(b"0\r\n\r\n")
    assert "time" in (span.status.description or "") or "longer" in (span.status.description or "")


async def test_a_limit_between_pieces_does_not_end_a_stream_that_goes_on(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    _, path = await start(memory)
    upstream.script(Reply("one two three four five six", chunk_seconds=0.06))
    async with served(memory, upstream.base_url, chunk_seconds=0.3) as gateway:
        _, _, data = await gateway.post(f"{path}/chat/completions", STREAM)
    assert b"[DONE]" in data


# -- again ---------------------------------------------------------------------------------------------


async def test_a_busy_upstream_is_asked_again_as_often_as_allowed(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    upstream.script(Fault("status", status=429, retry_after="0"), Fault("status", status=503))
    async with served(memory, upstream.base_url, num_retries=2) as gateway:
        status, _, _ = await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(memory, rollout)
    assert (status, len(upstream.requests)) == (200, 3)
    assert span.status.status_code == "OK"


async def test_another_upstream_answers_for_one_that_is_not_there(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    _, path = await start(memory)
    async with served(memory, f"http://127.0.0.1:{free_port()}/v1", upstream.base_url, num_retries=1) as gateway:
        for _ in range(4):
            status, _, _ = await gateway.post(f"{path}/chat/completions", CHAT)
            assert status == 200


async def test_an_upstream_that_asks_for_a_long_wait_answers_the_agent_itself(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    _, path = await start(memory)
    upstream.script(Fault("status", status=429, retry_after="3600"))
    async with served(memory, upstream.base_url, num_retries=2) as gateway:
        status, headers, _ = await gateway.post(f"{path}/chat/completions", CHAT)
    assert (status, headers["retry-after"], len(upstream.requests)) == (429, "3600", 1)


# -- refused -------------------------------------------------------------------------------------------


async def test_an_unknown_attempt_is_refused_in_the_words_of_its_api(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    async with served(memory, upstream.base_url) as gateway:
        status, headers, data = await gateway.post("/rollout/ro-x/attempt/at-x/v1/chat/completions", CHAT)
        assert (status, headers["x-should-retry"]) == (404, "false")
        assert "'ro-x'" in json.loads(data)["error"]["message"]
        _, _, data = await gateway.post("/rollout/ro-x/attempt/at-x/v1/messages", CHAT)
        assert json.loads(data)["error"]["type"] == "not_found_error"
        assert gateway.gateway.books.budget.totals().refused == 2
    assert not upstream.requests


async def test_an_ended_attempt_is_refused_and_its_span_says_so(
    store: LightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(store)
    await store.complete_attempt(rollout.rollout_id, rollout.attempt.attempt_id)
    async with served(store, upstream.base_url) as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(store, rollout)
    assert (status, json.loads(data)["error"]["code"]) == (409, "attempt_ended")
    assert span.status.status_code == "ERROR"
    assert span.attributes[LightningLLMAttributes.REFUSED] == "attempt_ended"
    assert not upstream.requests


async def test_without_strictness_unknown_attempts_pass_unattributed(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    async with served(memory, upstream.base_url, strict=False) as gateway:
        status, _, _ = await gateway.post("/rollout/ro-x/attempt/at-x/v1/chat/completions", CHAT)
        assert status == 200
        assert gateway.gateway.books.budget.totals().calls == 1
        assert gateway.gateway.books.recorder.lost == 0


async def test_a_plain_call_passes_without_a_span(memory: InMemoryLightningStore, upstream: ScriptedUpstream) -> None:
    async with served(memory, upstream.base_url) as gateway:
        assert (await gateway.post("/v1/chat/completions", CHAT))[0] == 200
        assert gateway.gateway.books.budget.totals().calls == 1
    assert (await memory.statistics())["total_spans"] == 0


async def test_a_call_beyond_its_limit_is_refused_and_its_span_says_so(
    store: LightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(store)
    async with served(store, upstream.base_url, limits=Limits(rollout_calls=1)) as gateway:
        assert (await gateway.post(f"{path}/chat/completions", CHAT))[0] == 200
        status, headers, _ = await gateway.post(f"{path}/chat/completions", CHAT)
        totals = gateway.gateway.books.budget.totals()
        spans = await spans_of(store, rollout)
    assert (status, headers["x-should-retry"]) == (429, "false")
    assert (totals.calls, totals.refused, len(upstream.requests)) == (1, 1, 1)
    assert [LightningLLMAttributes.REFUSED in span.attributes for span in spans] == [False, True]


async def test_an_unknown_model_is_refused_with_those_that_are_known(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    async with served(memory, upstream.base_url) as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", {**CHAT, "model": "gpt-9"})
        span = await one_span(memory, rollout)
        totals = gateway.gateway.books.budget.totals()
    assert (status, json.loads(data)["error"]["code"]) == (404, "model_not_found")
    assert "scripted" in json.loads(data)["error"]["message"]
    assert span.attributes[LightningLLMAttributes.REFUSED] == "model_not_found"
    assert (totals.calls, totals.refused) == (0, 1)


# -- pauses --------------------------------------------------------------------------------------------


async def test_paused_calls_wait_and_drained_ones_have_ended(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    hold = threading.Event()
    upstream.script(Reply(hold=hold))
    async with served(memory, upstream.base_url) as gateway:
        gate = gateway.gateway.gate
        first = asyncio.ensure_future(gateway.post(f"{path}/chat/completions", CHAT))
        await eventually(lambda: upstream.requests)
        gate.pause()
        second = asyncio.ensure_future(gateway.post(f"{path}/chat/completions", CHAT))
        assert await gate.drain(0.05) == 1
        hold.set()
        assert await gate.drain(10) == 0
        assert len(await spans_of(memory, rollout)) == 1
        assert (await first)[0] == 200
        assert not second.done()
        assert len(upstream.requests) == 1
        gate.resume()
        assert (await second)[0] == 200


async def test_an_attempt_that_ended_in_a_pause_is_refused_after_it(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    gate = Gate()
    gate.pause()
    async with served(memory, upstream.base_url, gate=gate) as gateway:
        gateway.gateway.attempts._fresh_seconds = 0.0  # type: ignore[union-attr]
        waiting = asyncio.ensure_future(gateway.post(f"{path}/chat/completions", CHAT))
        await asyncio.sleep(0.05)
        await memory.cancel_rollouts([rollout.rollout_id])
        gate.resume()
        assert (await waiting)[0] == 409
    assert not upstream.requests


async def test_a_gate_that_refuses_answers_with_a_time_to_come_back(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    gate = Gate(when_paused="refuse")
    gate.pause()
    async with served(memory, upstream.base_url, gate=gate) as gateway:
        status, headers, _ = await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(memory, rollout)
    assert (status, headers["retry-after"]) == (429, "1")
    assert span.attributes[LightningLLMAttributes.REFUSED] == "paused"


# -- written down --------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_what_was_recorded_is_replayed_byte_for_byte(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, tmp_path: Path, body: dict[str, Any]
) -> None:
    rollout, path = await start(memory)
    with RecordFile(tmp_path / "calls.jsonl") as record:
        async with served(memory, upstream.base_url, books={"record": record}) as gateway:
            _, _, data = await gateway.post(f"{path}/chat/completions", body)
    assert len(WrittenRecord(tmp_path / "calls.jsonl")) == 1
    for replay in (Replay(tmp_path / "calls.jsonl"), await Replay.of_rollout(memory, rollout.rollout_id)):
        other, path = await start(memory)
        async with served(memory, choice=Only(replay)) as gateway:
            status, _, again = await gateway.post(f"{path}/chat/completions", body)
            assert (status, again) == (200, data)
            status, _, problem = await gateway.post(f"{path}/chat/completions", {**body, "temperature": 0.5})
            assert (status, json.loads(problem)["error"]["code"]) == (404, "not_recorded")
            assert len(await spans_of(memory, other)) == 2
    assert len(upstream.requests) == 1


async def test_what_the_redaction_takes_out_is_nowhere(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    def hide(attributes: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value.replace("friend", "***") if isinstance(value, str) else value
            for name, value in attributes.items()
        }

    rollout, path = await start(memory)
    with RecordFile(tmp_path / "calls.jsonl") as record:
        async with served(memory, upstream.base_url, books={"record": record, "redaction": Redaction(hide)}) as gateway:
            await gateway.post(f"{path}/chat/completions", CHAT)
            span = await one_span(memory, rollout)
    assert "friend" not in repr(span)
    assert "***" in span.attributes["gen_ai.input.messages"]
    assert b"friend" not in (tmp_path / "calls.jsonl").read_bytes()


async def test_without_content_spans_hold_numbers_alone(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    books = {"capture_content": False, "keeps_exchanges": True}
    async with served(memory, upstream.base_url, books=books) as gateway:
        await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(memory, rollout)
    assert "friend" not in repr(span)
    assert span.attributes["gen_ai.usage.output_tokens"] > 0


async def test_a_gateway_that_stops_answers_and_records_what_is_under_way(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    upstream.script(Fault("hang"))
    async with served(memory, upstream.base_url) as gateway:
        asking = asyncio.ensure_future(gateway.open(f"{path}/chat/completions", CHAT))
        await eventually(lambda: upstream.requests)
        client = await asking
    head = await client.head()
    assert b" 503 " in head
    assert (await one_span(memory, rollout)).status.description == "the gateway was stopped"


async def test_a_failing_part_of_the_gateway_is_an_error_of_the_gateway(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Only):
        def choose(self, call: Any) -> Any:
            raise KeyError("sk-not-for-the-agent")

    rollout, path = await start(memory)
    replay: Any = None
    async with served(memory, choice=Broken(replay)) as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(memory, rollout)
    assert (status, json.loads(data)["error"]["code"]) == (500, "internal_error")
    assert b"sk-not" not in data
    assert span.status.status_code == "ERROR"
    assert "failed in the gateway" in caplog.text


async def test_an_answer_that_cannot_be_recorded_reaches_its_agent(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(attributes: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("a part of ours")

    _, path = await start(memory)
    async with served(memory, upstream.base_url, books={"redaction": broken}) as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", CHAT)
    assert (status, json.loads(data)["object"]) == (200, "chat.completion")
    assert "could not be recorded" in caplog.text


async def test_an_upstream_that_breaks_off_before_its_first_byte_is_a_bad_gateway(
    memory: InMemoryLightningStore,
) -> None:
    rollout, path = await start(memory)

    async def head_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(head_only, "127.0.0.1", 0)
    async with served(memory, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1") as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", CHAT)
        span = await one_span(memory, rollout)
    server.close()
    assert (status, json.loads(data)["error"]["code"]) == (502, "upstream_failed")
    assert span.status.status_code == "ERROR"


async def test_an_answer_without_a_body_passes(memory: InMemoryLightningStore, upstream: ScriptedUpstream) -> None:
    _, path = await start(memory)
    upstream.script(Reply(body=b"", status=204), Reply(body=b""))
    async with served(memory, upstream.base_url) as gateway:
        assert (await gateway.post(f"{path}/chat/completions", CHAT))[::2] == (204, b"")
        assert (await gateway.post(f"{path}/chat/completions", CHAT))[::2] == (200, b"")


async def test_the_version_of_the_weights_is_recorded_from_the_answer_or_the_model_list(
    memory: InMemoryLightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(memory)
    entry = {"model_name": "scripted", "base_url": upstream.base_url, "engine": "none", "weights_version": 7}
    upstream.script(Reply(), Reply(headers={"x-sharpen-weights-version": "8"}))
    async with served(memory, choice=Upstreams(parse_model_list([entry]))) as gateway:
        for _ in range(2):
            await gateway.post(f"{path}/chat/completions", CHAT)
    spans = await spans_of(memory, rollout)
    assert [span.attributes[LightningLLMAttributes.WEIGHTS_VERSION] for span in spans] == ["7", "8"]


async def test_clients_that_hang_up_at_any_moment_leave_nothing_behind(
    store: LightningStore, upstream: ScriptedUpstream
) -> None:
    rollout, path = await start(store)
    upstream.default_reply = Reply("one two three four five", delay_seconds=0.02, chunk_seconds=0.004)
    dice = random.Random(5)
    async with served(store, upstream.base_url) as gateway:
        tasks = len(asyncio.all_tasks())

        async def call(number: int) -> None:
            client = await gateway.open(f"{path}/chat/completions", STREAM if number % 3 else CHAT)
            await asyncio.sleep(dice.uniform(0, 0.1))
            client.hang_up()

        await asyncio.gather(*(call(number) for number in range(60)))
        totals = gateway.gateway.books.budget.totals
        await eventually(lambda: gateway.gateway.gate.in_flight == 0 and len(asyncio.all_tasks()) <= tasks)
        assert totals().calls == len(await spans_of(store, rollout))
        assert (await gateway.post(f"{path}/chat/completions", CHAT))[0] == 200
