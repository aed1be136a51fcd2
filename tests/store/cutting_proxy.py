"""A proxy on raw TCP that loses chosen answers: the server did what was asked, and the client never hears of it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class CuttingProxy:
    """Passes requests on, one connection to the server for each. Answers to `cut` are lost, once each."""

    target: str
    cut: list[str] = field(default_factory=list)
    """Regular expressions for the first lines of requests; each is taken off the list when it has been used."""
    bytes_before_cut: int = 0
    """How much of a lost answer still comes through."""
    seen: list[str] = field(default_factory=list)
    """The first lines of all requests that came in."""
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read_message(reader):
                first_line = request.split(b"\r\n", 1)[0].decode()
                self.seen.append(first_line)
                answer = await self._ask(request)
                if found := next((pattern for pattern in self.cut if re.search(pattern, first_line)), None):
                    self.cut.remove(found)
                    writer.write(answer[: self.bytes_before_cut])
                    return
                writer.write(answer)
                await writer.drain()
        finally:
            writer.close()

    async def _ask(self, request: bytes) -> bytes:
        address = urlsplit(self.target)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(request)
            return await _read_message(reader)
        finally:
            writer.close()


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """A whole request or answer; nothing when the other side has gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


@asynccontextmanager
async def cutting_proxy(target: str) -> AsyncIterator[CuttingProxy]:
    """A proxy in front of a server."""
    proxy = CuttingProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
