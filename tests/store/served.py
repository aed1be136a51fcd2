"""A served store, and the plainest client for it: what curl would send, and what curl would show."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from sharpen.store import InMemoryLightningStore, LightningStore, LightningStoreServer, SQLiteStore

from . import prometheus
from .scenes import PATIENCE_SECONDS

KINDS = ("memory", "sqlite")
LONG = 300
JSON = "application/json"


def make_store(kind: str, folder: Path) -> LightningStore:
    """An empty store of this kind."""
    return InMemoryLightningStore() if kind == "memory" else SQLiteStore(folder / "store.db")


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == JSON
        return json.loads(self.body)

    @property
    def error(self) -> tuple[str, str]:
        """Type and message; every error has this form and no other."""
        document = self.json
        assert document.keys() == {"error"}
        assert document["error"].keys() == {"type", "message"}
        kind, message = document["error"]["type"], document["error"]["message"]
        assert isinstance(kind, str)
        assert isinstance(message, str)
        assert message
        return kind, message


class Curl:
    """Sends requests to one address, as they are given."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.address = address
        self._session = session

    async def __call__(
        self, verb: str, path: str, body: Any = None, *, data: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """`body` goes as JSON, `data` as it is; the path is sent as written."""
        given = dict(headers or {})
        if body is not None:
            data = json.dumps(body).encode()
        if data is not None:
            given = {"content-type": JSON} | given
        url = URL(self.address + path, encoded=True)
        async with self._session.request(verb, url, data=data, headers=given, allow_redirects=False) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def metric(self, name: str, labels: str = "") -> float:
        """One figure of /metrics, 0 where there is none yet."""
        text = (await self("GET", "/metrics")).body.decode()
        return prometheus.parse(text)[f"sharpen_store_{name}"].samples.get(labels, 0.0)

    async def polls(self, count: int) -> None:
        """Wait until so many requests are under way beside the one that asks."""

        async def are_there() -> bool:
            return await self.metric("requests_in_progress") == count + 1

        await until(are_there)


@asynccontextmanager
async def curl_to(address: str, **headers: str) -> AsyncIterator[Curl]:
    """A client; `headers` are sent with every request."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        yield Curl(address, session)


@dataclass
class Served:
    """A server that runs, the store behind it, and a client."""

    server: LightningStoreServer
    store: LightningStore
    curl: Curl

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, for what no client would send."""
        return await asyncio.open_connection(self.server.host, self.server.port)


@asynccontextmanager
async def serve(
    store: LightningStore | None = None, *, headers: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[Served]:
    """Serve a store (by default an empty one in memory) on a free port of loopback."""
    store = store or InMemoryLightningStore()
    server = LightningStoreServer(store, **options)
    await server.start()
    try:
        async with curl_to(server.endpoint, **(headers or {})) as curl:
            yield Served(server, store, curl)
    finally:
        await server.close()


@contextmanager
def lasting(store: LightningStore | None = None, **options: Any) -> Iterator[LightningStoreServer]:
    """Serve for longer than the loop of one test, for tests that do not care what others have written."""
    server = LightningStoreServer(store or InMemoryLightningStore(), **options)
    asyncio.run(server.start())
    try:
        yield server
    finally:
        asyncio.run(server.close())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():
            pass


async def can_connect(host: str, port: int) -> bool:
    """Whether anybody listens there."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """The next answer on a bare connection."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Reply(int(first.split()[1]), headers, body)


async def sizes(curl: Curl) -> dict[str, int]:
    """How much the store holds."""
    statistics = (await curl("GET", "/v1/statistics")).json
    return {name: value for name, value in statistics.items() if name not in ("uptime_seconds", "uptime", "size_bytes")}
