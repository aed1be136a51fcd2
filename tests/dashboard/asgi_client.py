"""Asks an ASGI application, without a server in between."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import ASGIApp as App

HOST = "127.0.0.1:7777"


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each == name.lower()), None)

    @property
    def cookie(self) -> str:
        """What a browser would send back."""
        return (self.header("set-cookie") or "").partition(";")[0]


async def ask(
    app: App,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    root_path: str = "",
) -> Answer:
    """One request and its whole answer."""
    messages: list[Any] = []
    bodies = [body]

    async def receive() -> dict[str, Any]:
        if not bodies:
            await asyncio.Event().wait()  # the client stays
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope_of(path, method, headers or {}, root_path), receive, send)
    start = next(message for message in messages if message["type"] == "http.response.start")
    sent = [(name.decode().lower(), value.decode()) for name, value in start["headers"]]
    return Answer(start["status"], sent, b"".join(each.get("body", b"") for each in messages))


async def ask_htmx(app: App, path: str) -> Answer:
    return await ask(app, path, headers={"hx-request": "true"})


def scope_of(path: str, method: str, headers: Mapping[str, str], root_path: str) -> dict[str, Any]:
    from urllib.parse import unquote

    path, _, query = path.partition("?")
    given = {"host": HOST} | dict(headers)
    return {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "method": method,
        "scheme": "http",
        "path": unquote(root_path + path),
        "raw_path": (root_path + path).encode(),
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1234),
        "server": ("127.0.0.1", 7777),
    }


@dataclass
class Stream:
    """A stream of server-sent events that is being read."""

    task: asyncio.Task[None]
    messages: list[Any]
    has_left: asyncio.Event
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def events(self) -> list[tuple[str, Any]]:
        data = b"".join(message.get("body", b"") for message in self.messages)
        blocks = [dict(line.split(b": ", 1) for line in each.split(b"\n")) for each in data.split(b"\n\n") if each]
        return [(each[b"event"].decode(), msgspec.json.decode(each[b"data"])) for each in blocks if b"event" in each]

    async def begun(self) -> None:
        """Until it is answered."""
        async with asyncio.timeout(10):
            while not self.messages:
                self.changed.clear()
                await self.changed.wait()

    async def until(self, name: str) -> Any:
        """The first event of a name."""
        async with asyncio.timeout(10):
            while True:
                found = [detail for each, detail in self.events if each == name]
                if found:
                    return found[0]
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def following(app: App, path: str, **extra: Any) -> AsyncIterator[Stream]:
    """Follow events until the block ends."""
    messages: list[Any] = []
    has_left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)
        stream.changed.set()

    async def serve() -> None:
        await app(scope_of(path, "GET", {}, "") | extra, receive, send)

    stream = Stream(asyncio.create_task(serve()), messages, has_left)
    try:
        yield stream
    finally:
        has_left.set()
        await asyncio.wait_for(stream.task, 10)
