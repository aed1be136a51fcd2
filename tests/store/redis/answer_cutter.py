"""A proxy on raw TCP that loses chosen answers of Redis: the command has been run, and the client never hears of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class AnswerCutter:
    """Passes bytes both ways. The answer to a request that holds a text of `cut` is lost with its connection."""

    target: int
    cut: list[bytes] = field(default_factory=list)
    """Each is taken off the list when it has been used."""
    lost: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_redis, to_redis = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            while request := await reader.read(2**20):
                found = next((text for text in self.cut if text in request), None)
                to_redis.write(request)
                answer = await from_redis.read(2**20)  # a client asks for one thing at a time
                if found is not None:
                    self.cut.remove(found)
                    self.lost += 1
                    return
                writer.write(answer)
        finally:
            writer.close()
            to_redis.close()


@asynccontextmanager
async def answer_cutter(target: int) -> AsyncIterator[AnswerCutter]:
    """A proxy in front of the server at this port."""
    proxy = AnswerCutter(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
