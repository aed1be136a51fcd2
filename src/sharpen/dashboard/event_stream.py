"""A response of server-sent events, until the viewer leaves or the server stops."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .live import Viewer, encoded
from .security import STOPPING

BEAT_SECONDS = 15.0
RETRY_MILLISECONDS = 2000
LOOK_SECONDS = 5.0


class EventStream(Response):
    """Sends events as they arrive, and a comment now and then, so that proxies keep the connection open."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        super().__init__(headers={"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_followed = scope["method"] != "HEAD"
        stopping: asyncio.Event = scope.get(STOPPING) or asyncio.Event()
        try:
            if is_followed:
                # A page fetches everything again when the stream opens; later changes are sent.
                await _first_of(self._viewer.has_looked.wait(), stopping.wait(), seconds=LOOK_SECONDS)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if is_followed:
                await _first_of(self._send_all(send), _leaving(receive), stopping.wait())
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._viewer.close()

    async def _send_all(self, send: Send) -> None:
        async def say(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        await say(b"retry: %d\n\n" % RETRY_MILLISECONDS)
        waiting = asyncio.ensure_future(self._viewer.next())
        try:
            while True:
                await asyncio.wait([waiting], timeout=BEAT_SECONDS)
                if not waiting.done():
                    await say(b": still here\n\n")
                    continue
                await say(encoded(waiting.result()))
                waiting = asyncio.ensure_future(self._viewer.next())
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _first_of(*works: Coroutine[Any, Any, object], seconds: float | None = None) -> None:
    """Wait until one of them ends, or the time is over, and cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _leaving(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
