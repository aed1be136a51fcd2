"""The address at which the program of one rollout reports: on this machine only, and only while the program runs.

The URL holds a secret of the rollout, so that nobody else on the machine can reward it.
"""

import asyncio
import hmac
import json
import secrets
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...errors import InvalidInputError, SharpenError, TooLargeError, UnknownIdError, http_status
from ...http.asgi import Receive, Scope, Send, serve_other
from ...http.listening import address, listen
from .reports import JSON, Reports

HOST = "127.0.0.1"
MAX_BODY_BYTES = 16 * 2**20
LAST_SECONDS = 1.0  # for reports that are being read when the program has ended


@asynccontextmanager
async def listening(reports: Reports) -> AsyncIterator[str]:
    """Take reports inside the block; gives the URL below which they are sent."""
    # The parts of a server without its own loop of checks, which would make every rollout wait for the next one.
    import uvicorn

    from ...http.serving import BoundedProtocol, Connections

    secret, state = secrets.token_urlsafe(16), Connections()
    app = _Application(secret, reports)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", proxy_headers=False)
    bound = listen(HOST, 0)
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedProtocol(config=config, server_state=state, app_state={}), sock=bound
    )
    try:
        yield f"{address(HOST, bound.getsockname()[1])}/{secret}"
    finally:
        server.close()
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=LAST_SECONDS)
        for connection in list(state.connections):
            connection.shutdown()


class _Application:
    """Checks a request, and answers with what the reports say of it."""

    def __init__(self, secret: str, reports: Reports) -> None:
        self._secret, self._reports = secret.encode(), reports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await serve_other(scope, receive, send)
        try:
            status, (body, content_type) = 200, await self._respond(scope, receive)
        except SharpenError as error:
            status, content_type = http_status(error), JSON
            body = json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}).encode() + b"\n"
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        return await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[bytes, str]:
        _, secret, path = scope["path"].split("/", 2) if scope["path"].count("/") > 1 else ("", "", "")
        if not hmac.compare_digest(secret.encode(), self._secret):
            raise UnknownIdError("no rollout reports here: use the address in SHARPEN_REWARD_URL as it is")
        if scope["method"] not in ("POST", "PUT"):
            raise InvalidInputError(f"a report is sent by POST, not by {scope['method']}")
        headers = dict(scope["headers"])
        body = _unpacked(await _read(receive), headers.get(b"content-encoding", b"").decode("latin-1"))
        content_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip()
        return self._reports.take(f"/{path}", body, content_type or JSON)


async def _read(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise TooLargeError(f"a report has at most {MAX_BODY_BYTES} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise InvalidInputError(f"content-encoding is {encoding!r}: use gzip, deflate or none")
    unzip = zlib.decompressobj(wbits=47)  # both kinds, told apart by their heads
    try:
        plain = unzip.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise InvalidInputError(f"the body is no {encoding}: {error}") from None
    if len(plain) > MAX_BODY_BYTES:
        raise TooLargeError(f"a report unpacks to at most {MAX_BODY_BYTES} bytes")
    return plain
