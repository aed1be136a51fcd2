"""A server that says of itself that it is an old Redis, and agrees to everything else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

INFO = b"# Server\r\nredis_version:5.0.7\r\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (line := await reader.readline()).startswith(b"*"):
        parts = []
        for _ in range(int(line[1:])):
            await reader.readline()
            parts.append((await reader.readline()).strip())
        writer.write(b"$%d\r\n%s\r\n" % (len(INFO), INFO) if parts[0] == b"INFO" else b"+OK\r\n")
    writer.close()


@asynccontextmanager
async def old_server() -> AsyncIterator[str]:
    """The address of such a server."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
