"""The store over HTTP, as an ASGI application: REST under `/v1`, OTLP traces, `/health` and `/metrics`.

A request is checked (host, origin, token, type, size), parsed into the types of the method, and answered with
JSON; an error keeps its class by name. A long poll ends early when its client goes away or the server stops.
"""

import asyncio
import hmac
import logging
import math
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, MutableMapping
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.types import ASGIApp as App, Receive, Scope, Send

from .._version import __version__
from ..errors import (
    AccessDeniedError,
    InvalidInputError,
    SharpenError,
    StoreUnavailableError,
    TooLargeError,
    http_status,
)
from ..types import PaginatedResult, Rollout, StoredSpans, check_no_secrets
from ..web.app import serve_other
from . import openapi, otlp
from .base import LightningStore, LightningStoreStatistics
from .methods import METHODS, BatchAnswer, BatchEntry, BatchRequest, Method, SpanReceipt, call_method, change_rollouts
from .task_json import from_tagged, has_tag, to_tagged

log = logging.getLogger(__name__)

Headers = Iterable[tuple[bytes, bytes]]
Answer = tuple[int, bytes, Headers]

MAX_WAIT_SECONDS = 30.0
NOTHING = "Nothing"
STOPPING = "sharpen.stopping"  # where a mounted application finds the event that ends its long answers
LABEL = "sharpen.label"  # where a request keeps the name it is counted under
CLIENT_GONE = 499  # in the metrics only: there is nobody left to answer
FIXED = {"/health": "GET", "/metrics": "GET", "/v1/openapi.json": "GET", "/v1/traces": "POST", "/v1/batch": "POST"}
MAX_TOGETHER = 256  # writes in one batch
METRICS_PREFIX = "sharpen_store"
_encode = msgspec.json.Encoder().encode
_decode_batch = msgspec.json.Decoder(BatchRequest).decode


class HttpError(Exception):
    """An answer that is not one of the store's own errors."""

    def __init__(self, status: int, kind: str, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, list(headers)


class _Route:
    """A method with the decoder of its arguments."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.name = method.name
        self.decode = msgspec.json.Decoder(method.request_type).decode
        self.fields = method.request_type.__struct_fields__

    def arguments(self, body: bytes, query: bytes, ids: list[str]) -> dict[str, Any]:
        given = self._read(body, query)
        arguments = {name: value for name in self.fields if (value := getattr(given, name)) is not msgspec.UNSET}
        for name, value in arguments.items():
            # JSON has no such numbers, but a query can spell them.
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidInputError(f"{name} is {value}: use a finite number")
        if has_tag(body):
            _restore_tasks(arguments)
        arguments.update(zip(self.method.path_parameters, ids, strict=True))
        return arguments

    def _read(self, body: bytes, query: bytes) -> Any:
        if self.method.verb == "GET" and not body:
            return msgspec.convert(self._read_query(query), self.method.request_type, strict=False)
        if query:
            raise InvalidInputError(f"{self.name} takes its arguments in the request body, not in the query string")
        try:
            return self.decode(body or b"{}")
        except RecursionError:
            raise InvalidInputError("the request body is nested too deeply") from None

    def _read_query(self, query: bytes) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name in self.method.list_parameters:
                values.setdefault(name, []).extend([value] if value else [])  # an empty value: none of them
            elif name in values:
                raise InvalidInputError(f"the query parameter {name!r} is given twice")
            else:
                values[name] = value
        return values


class StoreApplication:
    """Serves one store. `mounts` are pairs of a path prefix and another ASGI application."""

    def __init__(
        self,
        store: LightningStore,
        *,
        token: str | None = None,
        hosts: frozenset[str] | None = None,
        mounts: Iterable[tuple[str, App]] = (),
        max_body_bytes: int = 64 * 2**20,
        max_batch: int = 10_000,
        max_wait_seconds: float = MAX_WAIT_SECONDS,
        stopping: asyncio.Event | None = None,
        cors_allow_origins: Iterable[str] = (),
    ) -> None:
        self.store = store
        self._origins = frozenset(cors_allow_origins)
        self.metrics = Metrics()
        self.stopping = stopping or asyncio.Event()
        self._token = None if token is None else token.encode()
        self._hosts = hosts
        self._mounts = [(prefix.rstrip("/"), app) for prefix, app in mounts]
        self._max_body_bytes = max_body_bytes
        self._max_batch = max_batch
        self._max_wait_seconds = max_wait_seconds
        # A path alternates names and ids, so its names and its length tell which route it is.
        self._routes: dict[tuple[str, int, tuple[str, ...]], _Route] = {}
        self._verbs: dict[tuple[int, tuple[str, ...]], list[str]] = {}
        for method in METHODS.values():
            segments = method.path[1:].split("/")
            shape = len(segments), tuple(segments[0::2])
            self._routes[method.verb, *shape] = _Route(method)
            self._verbs.setdefault(shape, []).append(method.verb)
        self._store_id = str(getattr(store, "store_id", "")).encode()
        self._headers = [(b"content-type", b"application/json"), (b"sharpen-store", self._store_id)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await serve_other(scope, receive, send)
        app = self._mounted(scope)
        if app is not None:
            return await app(scope, receive, send)
        started = time.perf_counter()
        self.metrics.in_progress += 1
        try:
            status, body, headers = await self._answer(self._respond(scope, receive), scope)
        finally:
            self.metrics.in_progress -= 1
        self.metrics.record(scope.get(LABEL, "other"), status, time.perf_counter() - started)
        if status != CLIENT_GONE:
            headers = [*headers, *self._cors_headers(dict(scope["headers"]))]
            length = (b"content-length", b"%d" % len(body))
            await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
            await send({"type": "http.response.body", "body": body})
        return None

    async def _answer(self, responding: Awaitable[Answer], scope: Scope) -> Answer:
        """The answer to a request or, in the same shape, to what is wrong with it."""
        try:
            return await responding
        except asyncio.CancelledError:
            if not self.stopping.is_set():
                return CLIENT_GONE, b"", ()
            status, body = 503, _error("StoreUnavailableError", "the store server is stopping")
        except HttpError as error:
            return error.status, _error(error.kind, str(error)), [*self._headers, *error.headers]
        except SharpenError as error:
            status, body = http_status(error), _error(type(error).__name__, str(error))
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            status, body = 400, _error("InvalidInputError", str(error))
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            status, body = 500, _error("StoreError", "internal error; see the log of the store server")
        return status, body, self._headers

    def _mounted(self, scope: Scope) -> App | None:
        """The other application that serves this path. What comes from a foreign page is refused here, not there."""
        for prefix, app in self._mounts:
            if scope["path"] == prefix or scope["path"].startswith(prefix + "/"):
                try:
                    self._check_origin(dict(scope["headers"]), allowed=frozenset())
                except AccessDeniedError:
                    return None
                scope["root_path"] = scope.get("root_path", "") + prefix
                scope[STOPPING] = self.stopping
                return app
        return None

    # -- one request ---------------------------------------------------------------------------------

    async def _respond(self, scope: Scope, receive: Receive) -> Answer:
        headers = dict(scope["headers"])
        path, verb = scope["path"], _verb(scope["method"], headers)
        self._check_origin(headers, allowed=self._origins)
        if verb == "OPTIONS" and self._cors_headers(headers):
            scope[LABEL] = "preflight"
            allowed = [(b"access-control-allow-methods", b"GET, POST, PATCH"), (b"access-control-max-age", b"600")]
            return 204, b"", [*allowed, (b"access-control-allow-headers", b"authorization, content-type")]
        if path == "/health" and verb == "GET":
            scope[LABEL] = "health"
            return 200, _encode(self._health()), self._headers
        self._check_token(headers)
        self._check_store(headers)
        if FIXED.get(path) == verb:
            return await self._respond_fixed(scope, headers, receive)
        route, ids = self._find(verb, path)
        scope[LABEL] = route.name
        body = await self._body(headers, receive, route)
        arguments = route.arguments(body, scope["query_string"], ids)
        self._check_batch(arguments)
        answer = await self._call(route, arguments, receive)
        return 200, _encode(answer), self._headers

    async def _respond_fixed(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Answer:
        """The paths that are no method of the store."""
        scope[LABEL] = label = scope["path"].rsplit("/", 1)[1].removesuffix(".json")
        if label == "metrics":
            text = self.metrics.render(await self.store.statistics())
            return 200, text.encode(), [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
        if label == "openapi":
            return 200, self._document, self._headers
        if label == "batch":
            return await self._batch(headers, receive)
        return await self._traces(headers, receive)

    async def _batch(self, headers: dict[bytes, bytes], receive: Receive) -> Answer:
        """Writes that travel together: the store takes them in one commit, and each has an answer of its own."""
        body = await self._read(headers, receive)
        if _content_type(headers) != "application/json":
            raise HttpError(415, "InvalidInputError", "the request body must be sent as application/json")
        try:
            entries = _decode_batch(body).requests
        except RecursionError:
            raise InvalidInputError("the request body is nested too deeply") from None
        if len(entries) > MAX_TOGETHER:
            raise TooLargeError(f"requests has {len(entries)} items; the limit is {MAX_TOGETHER} per call")
        scopes: list[Scope] = [{"method": entry.verb, "path": entry.path} for entry in entries]
        writes = [
            asyncio.ensure_future(self._answer(self._write(entry), scope))
            for entry, scope in zip(entries, scopes, strict=True)
        ]
        group_writes = getattr(self.store, "group_writes", None)
        if group_writes is not None:
            group_writes()
        answers = await asyncio.gather(*writes)
        return 200, _encode([BatchAnswer(status, msgspec.Raw(body)) for status, body, _ in answers]), self._headers

    async def _write(self, entry: BatchEntry) -> Answer:
        route, ids = self._find(entry.verb, unquote(entry.path))
        arguments = route.arguments(bytes(entry.body), b"", ids)
        if not _may_be_in_batch(route, arguments):
            raise InvalidInputError(
                f"{entry.verb} {entry.path} cannot be part of a batch, which takes only writes that do not wait"
            )
        self._check_batch(arguments)
        return 200, _encode(await self._call(route, arguments, _nothing_more)), self._headers

    def _health(self) -> dict[str, Any]:
        store_id = getattr(self.store, "store_id", None)
        return {"status": "stopping" if self.stopping.is_set() else "ok", "store_id": store_id, "version": __version__}

    @cached_property
    def _document(self) -> bytes:
        return _encode(openapi.document())

    def _find(self, verb: str, path: str) -> tuple[_Route, list[str]]:
        segments = path.split("/")[1:] or [""]
        # "/v2/..." and "/v1/rollouts/" have no shape, so that they are not found.
        is_ours = segments[0] == "v1" and all(segments)
        shape = (len(segments) - 1, tuple(segments[1::2])) if is_ours else (0, ())
        route = self._routes.get((verb, *shape))
        if route is not None:
            return route, segments[2::2]
        allowed = FIXED.get(path) or ", ".join(self._verbs.get(shape, []))
        if allowed:
            raise HttpError(405, "InvalidInputError", f"{path} only allows {allowed}", [(b"allow", allowed.encode())])
        raise HttpError(404, "UnknownIdError", f"{path} does not exist; see /v1/openapi.json for the paths")

    async def _call(self, route: _Route, arguments: dict[str, Any], receive: Receive) -> Any:
        if "resources" in arguments:
            check_no_secrets(arguments["resources"])
        if "wait_seconds" in route.method.parameters:
            arguments["wait_seconds"] = min(arguments.get("wait_seconds", 0), self._max_wait_seconds)
            is_poll = arguments["wait_seconds"] > 0
        else:
            is_poll = route.name == "wait_for_rollouts"
            if is_poll:
                timeout = arguments.get("timeout")
                longest = self._max_wait_seconds
                arguments["timeout"] = longest if timeout is None else min(timeout, longest)
        call = call_method(self.store, route.name, (), arguments)
        answer = await (self._poll(call, receive) if is_poll else call)
        if answer is None and route.method.verb == "GET":
            raise HttpError(404, NOTHING, "not found")
        if route.name.startswith("query_") and isinstance(answer, list):  # as a store of the user's own may answer
            answer = PaginatedResult(answer, arguments.get("limit", -1), arguments.get("offset", 0), len(answer))
        return SpanReceipt.of(answer) if isinstance(answer, StoredSpans) else change_rollouts(answer, _tagged)

    async def _poll(self, waiting: Awaitable[Any], receive: Receive) -> Any:
        """Wait, unless the client goes away (nothing is claimed for it) or the server stops."""
        task = asyncio.ensure_future(waiting)
        gone, stop = asyncio.ensure_future(_disconnect(receive)), asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((task, gone, stop), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None:
                return task.result()
            if stop.done():
                raise StoreUnavailableError("the store server is stopping")
            raise asyncio.CancelledError
        finally:
            for each in (task, gone, stop):
                each.cancel()

    async def _traces(self, headers: dict[bytes, bytes], receive: Receive) -> Answer:
        content_type = _content_type(headers)
        if content_type not in (otlp.PROTOBUF, otlp.JSON):
            raise HttpError(
                415, "InvalidInputError", f"the content type is {content_type!r}: send {otlp.PROTOBUF} or {otlp.JSON}"
            )
        body = await self._read(headers, receive)
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise HttpError(415, "InvalidInputError", f"the content encoding is {encoding!r}: use gzip or none")
        if encoding == "gzip":
            body = self._unzip(body)
        answer = await otlp.store_traces(self.store, body, content_type)
        return 200, answer, [(b"content-type", content_type.encode())]

    def _unzip(self, body: bytes) -> bytes:
        unzip = zlib.decompressobj(wbits=31)
        try:
            plain = unzip.decompress(body, self._max_body_bytes + 1)
        except zlib.error as error:
            raise InvalidInputError(f"the request body is not valid gzip: {error}") from None
        if len(plain) > self._max_body_bytes:
            raise TooLargeError(f"the decompressed request body exceeds the limit of {self._max_body_bytes} bytes")
        if not unzip.eof:
            raise InvalidInputError("the request body is not valid gzip: it is truncated")
        return plain

    # -- checks --------------------------------------------------------------------------------------

    def _check_origin(self, headers: dict[bytes, bytes], *, allowed: frozenset[str]) -> None:
        """A page of another site must not reach a store on this machine, by name tricks or by script."""
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and _name_of(host).lower() not in self._hosts:
            raise AccessDeniedError(f"the host {host!r} is not allowed")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("://")[2] != host and not _is_listed(origin, allowed):
            raise AccessDeniedError(f"requests from the origin {origin!r} are not allowed")

    def _cors_headers(self, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """What lets a browser hand the answer to a page of an allowed site."""
        origin = headers.get(b"origin", b"")
        if not origin or not _is_listed(origin.decode("latin-1"), self._origins):
            return []
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]

    def _check_token(self, headers: dict[bytes, bytes]) -> None:
        if self._token is None:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given, self._token):
            raise HttpError(
                401, "AccessDeniedError", "the token is missing or wrong: send Authorization: Bearer TOKEN",
                [(b"www-authenticate", b"Bearer")],
            )  # fmt: skip

    def _check_store(self, headers: dict[bytes, bytes]) -> None:
        """Spooled work names the store it belongs to: another one at the same address must not get it."""
        wanted = headers.get(b"sharpen-store", self._store_id)
        if wanted != self._store_id:
            raise HttpError(
                421, "StoreUnavailableError", f"this server does not serve the store {wanted.decode('latin-1')!r}"
            )

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, route: _Route) -> bytes:
        if route.method.verb == "GET" and b"x-http-method-override" not in headers:
            return b""
        body = await self._read(headers, receive)
        if body and _content_type(headers) != "application/json":
            raise HttpError(415, "InvalidInputError", "the request body must be sent as application/json")
        return body

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            raise TooLargeError(f"the request body has {int(declared)} bytes; the limit is {self._max_body_bytes}")
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise asyncio.CancelledError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body_bytes:
                raise TooLargeError(f"the request body exceeds the limit of {self._max_body_bytes} bytes")
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_batch(self, arguments: dict[str, Any]) -> None:
        for name, value in arguments.items():
            if name in ("spans", "requests", "pairs") and len(value) > self._max_batch:
                raise TooLargeError(f"{name} has {len(value)} items; the limit is {self._max_batch} per call")


class Metrics:
    """Requests by method and status, the time they took, and the sizes of the store, in Prometheus' text format."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self.in_progress = 0

    def record(self, method: str, status: int, seconds: float) -> None:
        self._requests[method, status] += 1
        self._seconds[method] += seconds

    def render(self, statistics: LightningStoreStatistics) -> str:
        lines: list[str] = []

        def add(name: str, kind: str, text: str, rows: list[tuple[str, float]]) -> None:
            lines.append(f"# HELP {METRICS_PREFIX}_{name} {text}")
            lines.append(f"# TYPE {METRICS_PREFIX}_{name} {kind}")
            lines.extend(f"{METRICS_PREFIX}_{name}{labels} {value!r}" for labels, value in rows)

        requests = [(f'{{method="{m}",status="{s}"}}', n) for (m, s), n in sorted(self._requests.items())]
        add("requests_total", "counter", "Completed requests.", [(labels, float(n)) for labels, n in requests])
        seconds = [(f'{{method="{m}"}}', s) for m, s in sorted(self._seconds.items())]
        add("request_seconds_total", "counter", "Seconds spent on requests, including long polls.", seconds)
        now = float(self.in_progress)
        add("requests_in_progress", "gauge", "Requests in progress, including long polls.", [("", now)])
        by_status = [(f'{{status="{s}"}}', float(n)) for s, n in statistics["rollouts_by_status"].items()]
        add("rollouts", "gauge", "Rollouts by status.", by_status)
        for name, text in (
            ("queue_length", "Rollouts waiting for a worker."),
            ("open_attempts", "Attempts in progress."),
            ("total_spans", "Spans stored."),
            ("total_workers", "Known workers."),
            ("size_bytes", "Bytes stored."),
            ("uptime_seconds", "Seconds since the store was opened."),
        ):
            add(name, "gauge", text, [("", float(statistics[name]))])  # type: ignore[literal-required]
        return "\n".join(lines) + "\n"


def _restore_tasks(arguments: dict[str, Any]) -> None:
    if "input" in arguments:
        arguments["input"] = from_tagged(arguments["input"])
    if "requests" in arguments:
        arguments["requests"] = [
            msgspec.structs.replace(request, input=from_tagged(request.input)) for request in arguments["requests"]
        ]


def _tagged(rollout: Rollout) -> Rollout:
    """The rollout as it travels, with the tags in its task that JSON needs."""
    if isinstance(rollout.input, str | int | float | None):
        return rollout
    return msgspec.structs.replace(rollout, input=to_tagged(rollout.input))


async def _disconnect(receive: Receive) -> None:
    """Returns when the client has gone; what it still sends is not looked at."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _may_be_in_batch(route: _Route, arguments: dict[str, Any]) -> bool:
    """Writes, and claims that do not wait."""
    is_claim = route.name in ("dequeue_rollout", "dequeue_many_rollouts")
    return (is_claim and not arguments.get("wait_seconds")) or (
        not is_claim and route.method.kind in ("write", "derived")
    )


def _error(kind: str, message: str) -> bytes:
    return _encode({"error": {"type": kind, "message": message}})


async def _nothing_more() -> MutableMapping[str, Any]:
    """What a write of a batch receives: its body has been read."""
    return {"type": "http.disconnect"}


def _verb(sent: str, headers: dict[bytes, bytes]) -> str:
    """A read with long arguments is sent as a POST with a body that says so."""
    return "GET" if sent == "POST" and headers.get(b"x-http-method-override") == b"GET" else sent


def _is_listed(origin: str, allowed: frozenset[str]) -> bool:
    return "*" in allowed or origin in allowed


def _content_type(headers: dict[bytes, bytes]) -> str:
    return headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    return host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
