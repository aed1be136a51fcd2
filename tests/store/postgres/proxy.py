"""A proxy before a PostgreSQL server that loses chosen messages: a COMMIT on its way there, or the answer to it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from ..servers import PostgresServer

_PREPARED = re.compile(rb"P....(s\d+)\0COMMIT\0", re.DOTALL)


class PostgresProxy:
    """Passes everything on, until it is told to lose something."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.port = 0
        self.lose: Literal["commit", "answer"] | None = None
        """What the next transaction loses, with its connection."""
        self.lost = 0
        self._connections: set[asyncio.StreamWriter] = set()
        self.is_down = False
        self.is_mute = False
        """Whether new connections are taken and never answered."""

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.is_down:
            to_client.close()
            return
        while self.is_mute:
            await asyncio.sleep(0.01)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server.port)
        self._connections |= {to_client, to_server}
        back = asyncio.create_task(self._pass(from_server, to_client))
        try:
            await self._watch(client, to_server, to_client)
        except (ConnectionError, OSError):
            pass
        finally:
            back.cancel()
            to_client.close()
            to_server.close()
            self._connections -= {to_client, to_server}

    async def _watch(
        self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter, to_client: asyncio.StreamWriter
    ) -> None:
        commit = b""
        while data := await client.read(1 << 20):
            if found := _PREPARED.search(data):
                commit = found[1]
            if self.lose and commit and b"\0" + commit + b"\0" in data:
                what, self.lose, self.lost = self.lose, None, self.lost + 1
                to_client.close()  # from now on nothing arrives there
                if what == "answer":
                    to_server.write(data)
                    await to_server.drain()
                    await asyncio.sleep(0.05)  # the server has done it by then, or does it when it is asked
                return
            to_server.write(data)
            await to_server.drain()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 20):
                writer.write(data)
                await writer.drain()
        except (ConnectionError, OSError):
            pass
        writer.close()

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._connections:
            writer.transport.abort()


@asynccontextmanager
async def postgres_proxy(server: PostgresServer) -> AsyncIterator[PostgresProxy]:
    proxy = PostgresProxy(server)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        proxy.cut()
