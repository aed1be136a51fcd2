"""How the end of an answer reaches its agent: after its span, and whatever the store does."""

import asyncio
from typing import Any

import pytest

from sharpen.store import InMemoryLightningStore

from ..http.servers import answering
from .heart import CHAT, STREAM, HeldStore, served, spans_of, start
from .scripted import ScriptedUpstream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SAID = b'data: {"id":"1","model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'


def stream_of(*events: bytes) -> Any:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for event in events:
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.02)  # so that each arrives alone
        writer.write(b"0\r\n\r\n")

    return write


@pytest.mark.parametrize(
    "last",
    [
        [b"data: [DONE]\n\n"],
        [b"data: [DONE]\n\n: bye\n"],
        [b"data: [DONE]\n"],
        [b"data: [DONE]"],
        [b"data: [DONE]", b"\n\n"],
        [b"data: [DO", b"NE]\r\n\r\n"],
    ],
)
async def test_no_agent_has_the_mark_of_the_end_before_the_span_is_stored(last: list[bytes]) -> None:
    memory = InMemoryLightningStore()
    rollout, path = await start(memory)
    store: Any = HeldStore(memory)
    async with answering(stream_of(SAID, *last)) as upstream, served(store, f"{upstream.url}/v1") as gateway:
        client = await gateway.open(f"{path}/chat/completions", STREAM)
        await client.until(b"finish_reason")
        await store.is_asked.wait()
        await asyncio.sleep(0.05)
        assert b"[DONE]" not in bytes(client.reader._buffer)  # type: ignore[attr-defined]
        store.may_write.set()
        await client.until(b"\r\n0\r\n\r\n")
        (span,) = await spans_of(memory, rollout)
    assert span.status.status_code == "OK"
    await memory.close()


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_an_answer_that_has_come_reaches_its_agent_also_where_the_store_takes_longer_than_the_call_may(
    upstream: ScriptedUpstream, body: dict[str, Any]
) -> None:
    memory = InMemoryLightningStore()
    rollout, path = await start(memory)
    store: Any = HeldStore(memory)
    async with served(store, upstream.base_url, timeout_seconds=0.3, record_seconds=0.8) as gateway:
        status, _, data = await gateway.post(f"{path}/chat/completions", body)
        store.may_write.set()
    assert status == 200
    assert data.endswith(b"data: [DONE]\n\n" if body is STREAM else b"}")
    (span,) = await spans_of(memory, rollout)
    assert span.status.status_code == "OK"
    await memory.close()
