"""The service over HTTP, as an ASGI application: routes, who may ask, bodies, and errors in OpenAI's shape."""

import asyncio
import hmac
import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from ..._version import __version__
from ...http.asgi import Receive, Scope, Send, serve_other
from .answers import Api, Asked
from .call import HungUp
from .refusals import RawHeaders, Refusal, stopping
from .service import Headers, Service

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 2**20
BODY_SECONDS = 30.0  # from piece to piece of a request
ROUTES = "POST /v1/chat/completions, /v1/completions; GET /v1/models, /health"
_APIS: dict[str, Api] = {"/chat/completions": "chat", "/completions": "completions"}
_JSON: RawHeaders = [(b"content-type", b"application/json")]
_EVENTS: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_encode = msgspec.json.Encoder().encode


class EngineApplication:
    """Serves one service. `hosts` are the names it answers to; None: any."""

    def __init__(self, service: Service, *, token: str | None = None, hosts: frozenset[str] | None = None) -> None:
        self._service, self._hosts = service, hosts
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await serve_other(scope, receive, send)
        answer = _Answer(send)
        try:
            await self._serve(scope, dict(scope["headers"]), receive, answer)
        except Refusal as refusal:
            await answer.whole(refusal.body, refusal.headers, status=refusal.status)
        except HungUp:
            return None
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            await self._fail(answer, stopping())
        except Exception:
            log.exception("a request to %s failed", scope["path"])
            await self._fail(answer, Refusal(500, "the server failed; its log has the details", code="internal_error"))

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, answer: "_Answer") -> None:
        verb, path = scope["method"], scope["path"].rstrip("/")
        self._check_origin(headers)
        if path == "/health":
            _check_verb(verb, "GET", path)
            return await answer.whole(_encode(self._health()), _JSON)
        self._check_token(headers)
        path = path.removeprefix("/v1")
        if path == "/models" or path.startswith("/models/"):
            _check_verb(verb, "GET", path)
            return await answer.whole(_encode(self._models(path.removeprefix("/models")[1:])), _JSON)
        api = _APIS.get(path)
        if api is None:
            raise Refusal(404, f"there is nothing at {scope['path'][:200]}; there are {ROUTES}", code="not_found")
        _check_verb(verb, "POST", path)
        asked = self._service.read(api, await _body(headers, receive))
        if asked.fields.stream:
            return await self._stream(asked, headers, receive, answer)
        return await answer.whole(await self._service.answer(asked, headers, receive), _JSON)

    async def _stream(self, asked: Asked, headers: Headers, receive: Receive, answer: "_Answer") -> None:
        async with aclosing(self._service.stream(asked, headers, receive)) as pieces:
            async for piece in pieces:
                await answer.piece(piece)
        await answer.end()

    async def _fail(self, answer: "_Answer", refusal: Refusal) -> None:
        """Once an answer has begun there is no status left to set; the server cuts the connection then."""
        if not answer.has_begun:
            await answer.whole(refusal.body, refusal.headers, status=refusal.status)

    # -- about itself --------------------------------------------------------------------------------

    def _health(self) -> dict[str, Any]:
        engine = self._service.engine
        return {
            "status": "ok",
            "version": __version__,
            "model": self._service.name,
            "weights_version": str(engine.weights_version),
            "running": engine.num_running,
            "waiting": engine.num_waiting,
        }

    def _models(self, wanted: str) -> dict[str, Any]:
        service = self._service
        model = {
            "id": service.name,
            "object": "model",
            "created": 0,
            "owned_by": "sharpen",
            "max_model_len": service.engine.sizes.max_length,
        }
        if not wanted:
            return {"object": "list", "data": [model]}
        if wanted != service.name:
            message = f"there is no model {wanted[:200]!r}: this server has {service.name!r}"
            raise Refusal(404, message, code="model_not_found")
        return model

    # -- who asks ------------------------------------------------------------------------------------

    def _check_origin(self, headers: Headers) -> None:
        """A page of another site must not use this server, by name tricks or by script."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if self._hosts is not None and name.lower() not in self._hosts:
            raise Refusal(403, f"the host {host!r} is not served here", code="wrong_host")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("://")[2] != host:
            raise Refusal(403, f"requests from the origin {origin!r} are not allowed", code="wrong_origin")

    def _check_token(self, headers: Headers) -> None:
        if self._token is None:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            message = "the token of this server is missing or wrong: give it to your SDK as its API key"
            raise Refusal(401, message, code="invalid_api_key")


class _Answer:
    """The way back to the client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def whole(self, body: bytes, headers: RawHeaders, *, status: int = 200) -> None:
        await self._begin(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body})

    async def piece(self, piece: bytes) -> None:
        if not self.has_begun:
            await self._begin(200, _EVENTS)
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def _begin(self, status: int, headers: RawHeaders) -> None:
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _check_verb(verb: str, wanted: str, path: str) -> None:
    if verb != wanted:
        raise Refusal(405, f"{path} takes {wanted}, not {verb}", code="wrong_method")


async def _body(headers: Headers, receive: Receive) -> bytes:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        shown = kind.decode("latin-1") or "of no type"
        raise Refusal(415, f"the body is {shown}: send application/json", code="wrong_content_type")
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refusal(415, "the body is packed: send it as it is", code="wrong_content_encoding")
    parts, size = [], 0
    while True:
        message = await _next(receive)
        if message["type"] == "http.disconnect":
            raise HungUp
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise Refusal(413, f"the body has more than {MAX_BODY_BYTES} bytes", code="body_too_large")
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _next(receive: Receive) -> Mapping[str, Any]:
    """What comes next of a body: it may be long, but not stop coming."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await receive()
    except TimeoutError:
        message = f"nothing more of the body came within {BODY_SECONDS:g} s"
        raise Refusal(408, message, code="body_too_slow") from None
