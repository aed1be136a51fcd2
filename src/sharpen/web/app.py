"""`WebApp`: an ASGI application behind the checks that all our servers share.

A request is checked before its handler runs: `Host` and `Origin`, so that a page of another site cannot reach a server
on this machine, then the token. `read_body` checks type, encoding and size while a body arrives. What a handler raises
is answered with one JSON body in every server and, where it is our fault, logged. Responses pass through as they are
sent: streams and long polls are neither buffered nor delayed.
"""

import asyncio
import hmac
import logging
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import SharpenError, http_status
from .serving import LOOPBACK_NAMES

log = logging.getLogger(__name__)
access_log = logging.getLogger("sharpen.web.access")

MAX_BODY_BYTES = 64 * 2**20
JSON = "application/json"
STOPPING = "sharpen.stopping"  # where a request finds the event that ends long responses
HEADERS = "sharpen.headers"  # and its headers by name
CLIENT_GONE = 499  # in the access log only: nobody is left to answer
RawHeaders = Sequence[tuple[bytes, bytes]]
ErrorNames = Literal["api", "class"]
"""What `error.type` holds: the words of OpenAI's and Anthropic's APIs, or the class that our store client raises."""
T = TypeVar("T")


class WebApp:
    """Serves routes, or another ASGI application, to those who may use it.

    Args:
        routes: Starlette routes, or an ASGI application with a routing of its own.
        token: What clients send as a bearer token or as `x-api-key`; None: everybody is served.
        hosts: The names accepted in `Host`, without a port; None: any.
        origins: Sites whose pages may use this server besides its own (`"*"`: all).
        open_paths: Paths served without a token; one that ends with a slash stands for everything below it.
        max_body_bytes: The largest request body.
        error_names: What `error.type` holds, see `ErrorNames`.
        headers: Sent with every response that does not set them itself.
        stopping: Set when the server is about to stop.
    """

    def __init__(
        self,
        routes: Sequence[BaseRoute] | ASGIApp,
        *,
        token: str | None = None,
        hosts: Collection[str] | None = LOOPBACK_NAMES,
        origins: Collection[str] = (),
        open_paths: Collection[str] = ("/health",),
        max_body_bytes: int = MAX_BODY_BYTES,
        error_names: ErrorNames = "api",
        headers: RawHeaders = (),
        stopping: asyncio.Event | None = None,
    ) -> None:
        self.max_body_bytes, self.stopping = max_body_bytes, stopping or asyncio.Event()
        self._app = routes if callable(routes) else Router(routes, redirect_slashes=False)
        self._paths = "" if callable(routes) else ", ".join(_describe(route) for route in routes)
        self._token = None if token is None else token.encode()
        self._hosts, self._origins, self._headers = hosts, origins, headers
        self._open_paths = frozenset(open_paths)
        self._open_folders = tuple(path for path in open_paths if path.endswith("/"))
        self._error_names = error_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await serve_other(scope, receive, send)
        started, headers = time.perf_counter(), dict(scope["headers"])
        scope["app"], scope[STOPPING], scope[HEADERS] = self, self.stopping, headers
        response = _Sender(send, [*self._headers, *self._cors_headers(headers)])
        try:
            self._check_source(headers)
            answer = self._preflight(scope, headers) or self.authorize(scope, headers)
            await (answer or self._app)(scope, receive, response)
        except ClientGone:
            response.status = response.status or CLIENT_GONE
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            await self._fail(server_stopping(), scope, receive, response)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises has an answer
            await self._fail(self.as_http(error, scope), scope, receive, response)
        self.note_response(scope, response.status, time.perf_counter() - started)
        return None

    # -- what servers may do differently -------------------------------------------------------------

    def authorize(self, scope: Scope, headers: Mapping[bytes, bytes]) -> ASGIApp | None:
        """Check the token; raise `HttpError` to refuse, or return a response to send in place of the application's."""
        if self._token is not None and not self._is_open(scope) and not shows_token(headers, self._token):
            message = "the token is missing or wrong: send it as 'Authorization: Bearer TOKEN', an SDK's API key"
            raise HttpError(401, message, code="invalid_api_key", headers=[(b"www-authenticate", b"Bearer")])
        return None

    def error_response(self, scope: Scope, error: "HttpError") -> ASGIApp:
        """The response to a request that failed."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in error.headers}
        if error.status < 500 and error.status not in (408, 409, 429):
            headers.setdefault("x-should-retry", "false")  # it stays wrong, so SDKs need not try again
        return Response(error_body(error, self._error_names), error.status, headers, JSON)

    def as_http(self, error: Exception, scope: Scope) -> "HttpError":
        """Whatever a handler raised, as the error that its client gets."""
        path = scope["path"][:200]
        if isinstance(error, HttpError):
            return error
        if isinstance(error, SharpenError):
            return HttpError(http_status(error), str(error), kind=type(error).__name__)
        if isinstance(error, HTTPException) and error.status_code == 404:
            return HttpError(404, f"nothing is served at {path!r}; available: {self._paths}", code="not_found")
        if isinstance(error, HTTPException):
            headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
            allowed = dict(headers).get(b"allow", b"").decode()
            message = f"{path!r} takes {allowed}, not {scope['method']}" if allowed else error.detail
            return HttpError(error.status_code, message, code="wrong_method" if allowed else None, headers=headers)
        log.error("%s %s failed", scope["method"], quote(path), exc_info=error)
        return HttpError(500, "the server failed; its log has the details", code="internal_error")

    def note_response(self, scope: Scope, status: int, seconds: float) -> None:
        """Log a request that has ended."""
        if access_log.isEnabledFor(logging.DEBUG):
            path = scope["path"].removeprefix(scope.get("root_path", ""))  # the root may hold a secret, a query a token
            access_log.debug("%s %s %d %.1f ms", scope["method"], quote(path), status, 1000 * seconds)

    # -- checks --------------------------------------------------------------------------------------

    def _check_source(self, headers: Mapping[bytes, bytes]) -> None:
        """A page of another site must not use this server, by a name that leads here or by a script."""
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin", b"").decode("latin-1")
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if self._hosts is not None and name.lower() not in self._hosts:
            raise HttpError(403, f"the host {host!r} is not served here", code="wrong_host")
        if origin and origin.partition("://")[2] != host and not self._is_listed(origin):
            raise HttpError(403, f"requests from the origin {origin!r} are not allowed", code="wrong_origin")

    def _is_listed(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins

    def _cors_headers(self, headers: Mapping[bytes, bytes]) -> RawHeaders:
        """What lets a browser give the response to a page of a listed site."""
        origin = headers.get(b"origin")
        if origin is None or not self._is_listed(origin.decode("latin-1")):
            return ()
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]

    def _preflight(self, scope: Scope, headers: Mapping[bytes, bytes]) -> ASGIApp | None:
        if scope["method"] != "OPTIONS" or not self._cors_headers(headers):
            return None
        allowed = {"methods": "GET, POST, PUT, PATCH, DELETE", "headers": "authorization, content-type, x-api-key"}
        headers_sent = {f"access-control-allow-{name}": value for name, value in allowed.items()}
        return Response(status_code=204, headers={**headers_sent, "access-control-max-age": "600"})

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return path in self._open_paths or path.startswith(self._open_folders)

    async def _fail(self, error: "HttpError", scope: Scope, receive: Receive, response: "_Sender") -> None:
        """Once a response has begun there is no status left to set; the server cuts the connection then."""
        if not response.status:
            await self.error_response(scope, error)(scope, receive, response)


class HttpError(Exception):
    """A request that is answered with an error.

    Args:
        status: The HTTP status.
        message: For people: what is wrong, with which value, and what to do.
        code: For programs: the reason in a word, such as `body_too_large`.
        param: The field of the request that is at fault.
        kind: The class of `sharpen.errors` that our own clients raise; by default it follows from the status.
        headers: Sent with the error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str | None = None,
        headers: RawHeaders = (),
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.kind, self.headers = kind, headers


class ClientGone(Exception):
    """The client has closed its connection."""


_API_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CLASSES = {
    401: "AccessDeniedError",
    403: "AccessDeniedError",
    404: "UnknownIdError",
    413: "TooLargeError",
    503: "StoreUnavailableError",
}


def error_kind(error: HttpError, names: ErrorNames) -> str:
    """What `error.type` holds."""
    if names == "class":
        return error.kind or _CLASSES.get(error.status, "InvalidInputError" if error.status < 500 else "StoreError")
    return _API_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")


def error_body(error: HttpError, names: ErrorNames = "api") -> bytes:
    """The body of every error: OpenAI's fields in Anthropic's envelope, which SDKs of both and our client read."""
    fields = {"type": error_kind(error, names), "message": error.message, "param": error.param, "code": error.code}
    return msgspec.json.encode({"type": "error", "error": fields})


def server_stopping() -> HttpError:
    return HttpError(503, "the server is stopping; try again later", code="server_stopped")


def shows_token(headers: Mapping[bytes, bytes], token: bytes) -> bool:
    """Whether a request holds the token, compared in constant time."""
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    shown = [bearer.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b"")]
    return any(hmac.compare_digest(each, token) for each in shown)


# -- requests ----------------------------------------------------------------------------------------


def content_type(headers: Mapping[bytes, bytes]) -> str:
    """The type of the body, without its parameters."""
    return headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    types: Collection[str] | None = (JSON,),
    encodings: Collection[str] = (),
    max_bytes: int | None = None,
) -> bytes:
    """Read the body of a request; its size is checked while it arrives.

    Args:
        scope: The request, served by a `WebApp`.
        receive: Its messages.
        types: The content types of a body that is not empty; None: any, or none.
        encodings: `gzip` and `deflate`, where such bodies are accepted.
        max_bytes: The largest body, packed and unpacked; by default that of the `WebApp`.
    """
    headers = scope[HEADERS]
    limit = scope["app"].max_body_bytes if max_bytes is None else max_bytes
    declared = headers.get(b"content-length", b"0")
    has_body = declared != b"0" or b"transfer-encoding" in headers
    if has_body and types is not None and (kind := content_type(headers)) not in types:
        message = f"the body has the content type {kind or 'none'!r}: send {' or '.join(types)}"
        raise HttpError(415, message, code="wrong_content_type")
    encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower() or "identity"
    if encoding != "identity" and encoding not in encodings:
        message = f"the body has the content encoding {encoding!r}: send {' or '.join(['it plain', *encodings])}"
        raise HttpError(415, message, code="wrong_content_encoding")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, f"{int(declared)} bytes, more than")
    parts, size = [], 0
    while True:
        part = await receive()
        if part["type"] == "http.disconnect":
            raise ClientGone
        parts.append(part.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        if not part.get("more_body"):
            break
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    return body if encoding == "identity" else _unpacked(body, encoding, limit)


def _unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    unzip = zlib.decompressobj(wbits=47)  # gzip and deflate, told apart by their heads
    try:
        plain = unzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise HttpError(400, f"the body is not {encoding}: {error}", code="malformed_body") from None
    if len(plain) > limit:
        raise _too_large(limit)
    if not unzip.eof:
        raise HttpError(400, f"the body is not {encoding}: it ends too early", code="malformed_body")
    return plain


def _too_large(limit: int, size: str = "more than") -> HttpError:
    return HttpError(413, f"the body has {size} {limit} bytes, the limit of this server", code="body_too_large")


def parse_json(body: bytes, decode: Callable[[bytes], T]) -> T:
    """Decode a body with a msgspec decoder. What is not JSON, or of another type, is refused, naming the field."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        what, _, path = str(error).rstrip("`").partition(" - at `$.")
        if not path:
            raise HttpError(400, f"the request is malformed: {what.lower()}", code="malformed_request") from None
        field, message = path.partition("[")[0].partition(".")[0], f"{path} is of the wrong type: {what.lower()}"
        raise HttpError(400, message, code="invalid_type", param=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}", code="malformed_json") from None


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone; what it still sends is ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def serve_other(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the messages of a server's start and end; refuse websockets."""
    if scope["type"] != "lifespan":
        return await send({"type": "websocket.close"})
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return None


# -- responses ---------------------------------------------------------------------------------------


class BytesResponse:
    """A whole response, cheaper than Starlette's: its headers are sent as they are given."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, headers: RawHeaders) -> None:
        self.status, self.body, self.headers = status, body, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [*self.headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class StreamResponse:
    """Sends server-sent events as they come. What fails before the first is still answered with a status."""

    _HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head: Message | None = {"type": "http.response.start", "status": 200, "headers": self._HEADERS}
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                if head is not None:
                    await send(head)
                    head = None
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        if head is not None:
            await send(head)
        await send({"type": "http.response.body", "body": b""})


class _Sender:
    """Remembers the status that was sent, and adds headers that a response has not set itself."""

    __slots__ = ("_headers", "_send", "status")

    def __init__(self, send: Send, headers: RawHeaders) -> None:
        self._send, self._headers = send, headers
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._headers:
                own = list(message.get("headers", ()))
                names = {name for name, _ in own}
                message = {**message, "headers": [*own, *(pair for pair in self._headers if pair[0] not in names)]}
        await self._send(message)


def _describe(route: BaseRoute) -> str:
    methods: Any = getattr(route, "methods", None) or ()
    return " ".join([*sorted(set(methods) - {"HEAD"}), getattr(route, "path", str(route))])
