"""A gateway of real parts on loopback, and agents that speak to it over plain sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sharpen import Limits
from sharpen.store import LightningStore
from sharpen.types import AttemptedRollout, Span, StoredSpans
from tests.http.internals import HttpClient
from tests.llm_proxy.internals import (
    Attempts,
    Books,
    Budget,
    Choice,
    Gate,
    Gateway,
    GatewayApplication,
    GatewayOptions,
    Recorder,
    Upstreams,
    parse_model_list,
)
from tests.web.internals import listen, serving

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "How are you today, my friend?"}]}
STREAM = {**CHAT, "stream": True}


class Served:
    """A running gateway, and clients for it."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway, self.port = gateway, port
        self.url = f"http://127.0.0.1:{port}"
        self.client = HttpClient(self.url)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content-type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
        answer = await self.client.request("POST", path, headers=list(named.items()), body=data)
        return answer.status, dict(answer.headers), await answer.read()

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        named = [(key.replace("_", "-"), value) for key, value in headers.items()]
        answer = await self.client.exchange("GET", path, headers=named)
        return answer.status, json.loads(await answer.read())

    async def open(self, path: str, body: Any) -> "RawClient":
        """Send a request over a socket of its own, and read nothing yet."""
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port))
        client.send(path, body)
        return client


class RawClient:
    """An agent that reads byte by byte, and hangs up when told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, path: str, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def until(self, mark: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(mark), 10)

    async def rest(self) -> bytes:
        """All that comes until the connection is closed."""
        return await asyncio.wait_for(self.reader.read(), 10)

    def hang_up(self) -> None:
        self.writer.transport.abort()


class HeldStore:
    """Stands before a store and lets spans wait."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self.may_write = asyncio.Event()
        self.is_asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def add_many_spans(self, spans: Sequence[Span]) -> StoredSpans:
        self.is_asked.set()
        await self.may_write.wait()
        return await self._store.add_many_spans(spans)


@asynccontextmanager
async def served(
    store: LightningStore,
    *base_urls: str,
    choice: Choice | None = None,
    entries: Sequence[dict[str, Any]] = (),
    limits: Limits | None = None,
    gate: Gate | None = None,
    strict: bool = True,
    record_seconds: float = 5.0,
    books: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """A gateway whose model `scripted` is at these URLs, or with these `entries`."""
    made = GatewayOptions(**options)
    plain = [{"model_name": "scripted", "base_url": url, "engine": "none"} for url in base_urls]
    models = parse_model_list([*plain, *entries])
    choice = choice or Upstreams(
        models, num_retries=made.num_retries, passes_keys=made.token is None or made.open_attempts
    )
    attempts = Attempts(store, strict=strict)
    recorder = Recorder(store, heard=attempts.heard, record_seconds=record_seconds)
    kept = Books(Budget(limits, None, store), recorder, choice, **(books or {}))
    gateway = Gateway(choice=choice, books=kept, attempts=attempts, gate=gate, options=made)
    bound = listen("127.0.0.1", 0)
    running = Served(gateway, bound.getsockname()[1])
    try:
        async with serving(GatewayApplication(gateway), bound, grace_seconds=1):
            yield running
            running.client.close()
    finally:
        await gateway.aclose()


async def start(store: LightningStore, role: str | None = None) -> tuple[AttemptedRollout, str]:
    """A running attempt, and the path under which its agent calls."""
    rollout = await store.start_rollout("task")
    end = "" if role is None else f"/role/{role}"
    return rollout, f"/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}{end}/v1"


async def spans_of(store: LightningStore, rollout: AttemptedRollout) -> list[Span]:
    return list(await store.query_spans(rollout.rollout_id))


async def eventually(is_so: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.005)


async def one_span(store: LightningStore, rollout: AttemptedRollout, seconds: float = 10.0) -> Span:
    """The span of the only call, once it is there."""
    async with asyncio.timeout(seconds):
        while not (found := await spans_of(store, rollout)):
            await asyncio.sleep(0.005)
    assert len(found) == 1
    return found[0]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])
