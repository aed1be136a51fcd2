"""The types of an ASGI application, and what each of ours says to anything but a request."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def serve_other(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the beginning and the end of a server; refuse websockets."""
    if scope["type"] != "lifespan":
        return await send({"type": "websocket.close"})
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return None
