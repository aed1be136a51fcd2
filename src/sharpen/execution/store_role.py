"""What a child does as a store server: it serves a SQLite file on a socket that its parent listens on.

The parent keeps the socket open, so a server that dies is replaced on the same address, and whoever connects
meanwhile waits instead of being refused.
"""

import asyncio
import contextlib
import gc
import signal
import socket

import httptools  # noqa: F401 - imported ahead, as uvicorn needs it to serve
import uvicorn.protocols.http.httptools_impl  # noqa: F401

from ..process.parent import Job, Parent
from ..store.server import LightningStoreServer
from ..store.sqlite import SQLiteStore
from .jobs import StoreJob
from .mounts import Mount


def serve(parent: Parent, job: Job) -> int:
    """Serve until the parent asks for the end, and return the exit code."""
    job.context.apply("store")
    # Requests make many short-lived objects: looking through all of them after every 700 doubles the decoding.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    asyncio.run(_serve(parent, StoreJob(**job.options), socket.socket(fileno=job.files[0])))
    return 0


async def _serve(parent: Parent, job: StoreJob, listening: socket.socket) -> None:
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    parent.on_stop = lambda: _ask(loop, asked)
    if parent.stop_requested.is_set():
        asked.set()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    store = SQLiteStore(
        job.database,
        synchronous=job.synchronous,
        busy_seconds=job.busy_seconds,
        max_kept_bytes=job.max_kept_bytes,
    )
    try:
        mounts = [(mount.prefix, mount.app(store, job.token)) for mount in (Mount(**given) for given in job.mounts)]
        server = LightningStoreServer(store, host=job.host, token=job.token, socket=listening, mounts=mounts)
        await server.start()
        parent.send_ready()
        await asked.wait()
        await server.stop()
    finally:
        await store.close()


def _ask(loop: asyncio.AbstractEventLoop, asked: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # it has stopped already
        loop.call_soon_threadsafe(asked.set)
