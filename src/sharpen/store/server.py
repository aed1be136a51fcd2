"""The store over HTTP: `LightningStoreServer`, and the application that it serves from a thread of its own.

REST below `/v1` with one path for each method of the store, a batch of writes, OTLP traces, `/health` and `/metrics`.
What always holds:

- a request is checked (`WebApp`: host, origin, size, type; here: token, store, number of items) before the store is
  called, and an error keeps its class by name;
- a long poll ends early when its client goes away, so that nothing is claimed for it, or when the server stops;
- `sharpen-store` in a response names the store, and a request that names another one is refused.
"""

import asyncio
import contextlib
import hmac
import math
import os
import signal
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.types import ASGIApp as App, Message, Receive, Scope, Send

from .._version import __version__
from ..errors import ConfigError, InvalidInputError, StoreError, TooLargeError
from ..http.proxies import is_loopback
from ..types import PaginatedResult, Rollout, Span, StoredSpans, check_no_secrets
from ..web.app import (
    HEADERS,
    JSON,
    BytesResponse,
    ClientGone,
    HttpError,
    RawHeaders,
    WebApp,
    content_type,
    disconnected,
    error_kind,
    read_body,
    server_stopping,
)
from ..web.serving import ServerThread, address, allowed_hosts, listen
from . import openapi, otlp
from .base import LightningStore, LightningStoreCapabilities, LightningStoreStatistics
from .methods import (
    METHODS,
    BatchAnswer,
    BatchEntry,
    BatchRequest,
    Method,
    SpanReceipt,
    StoreWrapper,
    call_method,
    change_rollouts,
)
from .opening import ServerAddress, StoreAddress, address_of
from .task_json import from_tagged, has_tag, to_tagged

MAX_WAIT_SECONDS = 30.0
MAX_BATCH_WRITES = 256
METRICS_PREFIX = "sharpen_store"
_LABEL = "sharpen.label"  # where a request keeps the name under which it is counted
_encode = msgspec.json.Encoder().encode
_decode_batch = msgspec.json.Decoder(BatchRequest).decode
T = TypeVar("T")


class LightningStoreServer(StoreWrapper):
    """An HTTP server for a store, under `/v1`. Code in the same process can use the server as a store.

    Args:
        store: The store to serve.
        host: The address to bind. Other than on loopback, a token is required.
        port: The port to bind, or None for a free one.
        token: The token that clients must send.
        mounts: Other ASGI applications, as pairs of a path prefix and an application.
        socket: A listening socket to use instead of `host` and `port`. It stays open when the server stops, so that
            clients that connect after that wait.
        max_body_bytes: The maximum size of a request body.
        max_batch: The maximum number of items in one call.
        max_wait_seconds: The maximum duration of a long poll.
        cors_allow_origins: The origins whose pages may use the server from a browser, `"*"` for any. They need the
            token too.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
        mounts: Iterable[tuple[str, App]] = (),
        *,
        socket: socket.socket | None = None,
        max_body_bytes: int = 64 * 2**20,
        max_batch: int = 10_000,
        max_wait_seconds: float = MAX_WAIT_SECONDS,
        cors_allow_origins: Sequence[str] | str | None = None,
    ) -> None:
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"host is {host!r}, which other machines can reach: pass a token, or use 127.0.0.1 (the default)"
            )
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"port is {port}: use 1 to 65535, or None for a free one")
        if token is not None and (not token.isascii() or not token.isprintable() or " " in token or not token):
            raise ConfigError("the token is not printable ASCII without spaces: choose another one")
        super().__init__(store)
        self.host, self.port = host, port
        self._socket, self._token, self._pid = socket, token, os.getpid()
        origins = cors_allow_origins or ()
        self._options: dict[str, Any] = {
            "token": token,
            "hosts": allowed_hosts(host),
            "mounts": list(mounts),
            "max_body_bytes": max_body_bytes,
            "max_batch": max_batch,
            "max_wait_seconds": max_wait_seconds,
            "origins": [origins] if isinstance(origins, str) else origins,
        }
        self._server: ServerThread | None = None
        self._app: StoreApp | None = None

    async def _call(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_process(method.name)
        return await super()._call(method, args, kwargs)

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        self._check_process("add_otel_span")
        return await super().add_otel_span(rollout_id, attempt_id, readable_span, sequence_id)

    def _check_process(self, name: str) -> None:
        """A forked child has a copy of the store: what it wrote there would be acknowledged and lost."""
        if os.getpid() != self._pid:
            client = f"LightningStoreClient({self.endpoint!r})" if self.port is not None else "a LightningStoreClient"
            raise StoreError(
                f"{name} was called in process {os.getpid()}, but the store is served by process {self._pid}: "
                f"use {client} in a forked child"
            )

    @property
    def endpoint(self) -> str:
        """The URL for clients."""
        if self.port is None:
            raise StoreError("the store server has no port yet: call start() first")
        return address(self.host, self.port)

    @property
    def is_running(self) -> bool:
        """Whether the server is running."""
        return self._server is not None

    async def start(self) -> None:
        """Bind the address and start serving; a port in use raises an error."""
        if self._server is not None:
            return
        self._pid = os.getpid()
        bound = listen(self.host, self.port or 0) if self._socket is None else self._socket.dup()
        self.port = bound.getsockname()[1]
        self._server = ServerThread(self._make_app, bound, name="sharpen-store")
        try:
            await asyncio.to_thread(self._server.start)
        except Exception:
            self._server = None
            raise

    def _make_app(self, stopping: asyncio.Event) -> "StoreApp":
        self._app = StoreApp(self.store, stopping=stopping, **self._options)
        return self._app

    async def stop(self) -> None:
        """Finish the requests in progress, end long polls and release the port. The store stays open."""
        server = self._server
        if server is not None:
            await asyncio.to_thread(server.stop)
            if self._server is server:
                self._server = None

    async def run_forever(self, announce: Callable[[str], object] | None = None) -> None:
        """Serve until SIGINT or SIGTERM, or until `stop` is called.

        `announce` is called with the URL once the server responds and the signal handlers are installed.
        """
        await self.start()
        loop, signaled = asyncio.get_running_loop(), asyncio.Event()
        signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        for each in signals:
            loop.add_signal_handler(each, signaled.set)
        try:
            if announce is not None:
                announce(self.endpoint)
            while self._server is not None and self._server.is_alive and not signaled.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(signaled.wait(), 0.5)
        finally:
            try:
                await self.stop()
            finally:  # to the end: a second signal must not break off what the first one ends in order
                for each in signals:
                    loop.remove_signal_handler(each)

    async def close(self) -> None:
        """Stop serving and close the store."""
        await self.stop()
        await self.store.close()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.store.capabilities, "otlp_traces": True}

    def address(self) -> StoreAddress | None:
        return ServerAddress(self.endpoint, self._token) if self.is_running else address_of(self.store)

    def otlp_traces_endpoint(self) -> str:
        return f"{self.endpoint}/v1/traces"


# -- the application ---------------------------------------------------------------------------------


class _CheckedApp(WebApp):
    """A `WebApp` whose errors hold what 0.1's clients read: class and message."""

    json_headers: RawHeaders = [(b"content-type", JSON.encode())]

    def error_response(self, scope: Scope, error: HttpError) -> App:
        return BytesResponse(error.status, _error_body(error), [*self.json_headers, *error.headers])


class StoreApp(_CheckedApp):
    """Serves one store.

    Args:
        store: The store.
        mounts: Pairs of a path prefix and another ASGI application, which checks tokens itself.
        max_batch: The maximum number of items in one call.
        max_wait_seconds: The maximum duration of a long poll.
        token, hosts, origins, max_body_bytes, stopping: See `WebApp`.
    """

    def __init__(
        self,
        store: LightningStore,
        *,
        token: str | None = None,
        hosts: frozenset[str] | None = None,
        origins: Sequence[str] = (),
        mounts: Iterable[tuple[str, App]] = (),
        max_body_bytes: int = 64 * 2**20,
        max_batch: int = 10_000,
        max_wait_seconds: float = MAX_WAIT_SECONDS,
        stopping: asyncio.Event | None = None,
    ) -> None:
        super().__init__(
            self._serve,
            hosts=hosts,
            origins=origins,
            max_body_bytes=max_body_bytes,
            stopping=stopping,
        )
        self.store, self.metrics = store, Metrics()
        self._store_id = str(getattr(store, "store_id", "")).encode()
        self.json_headers = [*self.json_headers, (b"sharpen-store", self._store_id)]
        self._bearer = None if token is None else token.encode()
        self._max_batch, self._max_wait_seconds = max_batch, max_wait_seconds
        self._mounts = [
            (prefix.rstrip("/"), _CheckedApp(app, hosts=hosts, stopping=self.stopping)) for prefix, app in mounts
        ]
        # A path alternates names and ids, so its length and its names tell which methods it has.
        self._routes: dict[tuple[int | str, ...], dict[str, _Route]] = {}
        for method in METHODS.values():
            segments = ["v1", *method.path[1:].split("/")]
            self._routes.setdefault((len(segments), *segments[1::2]), {})[method.verb] = _Route(method)
        self._pages: dict[str, tuple[str, str, Callable[[Scope, Receive], Awaitable[BytesResponse]]]] = {
            "/health": ("GET", "health", self._show_health),
            "/metrics": ("GET", "metrics", self._show_metrics),
            "/v1/openapi.json": ("GET", "openapi", self._show_openapi),
            "/v1/traces": ("POST", "traces", self._store_traces),
            "/v1/batch": ("POST", "batch", self._write_batch),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for prefix, app in self._mounts:
            if scope.get("path") == prefix or scope.get("path", "").startswith(prefix + "/"):
                scope["root_path"] = scope.get("root_path", "") + prefix
                return await app(scope, receive, send)
        self.metrics.in_progress += 1
        try:
            return await super().__call__(scope, receive, send)
        finally:
            self.metrics.in_progress -= 1

    def note_response(self, scope: Scope, status: int, seconds: float) -> None:
        label = scope.get(_LABEL) or ("preflight" if status == 204 else "other")
        self.metrics.record(label, status, seconds)
        super().note_response(scope, status, seconds)

    def authorize(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        if scope["path"] == "/health" and scope["method"] == "GET":
            return
        scheme, _, shown = headers.get(b"authorization", b"").partition(b" ")
        if self._bearer is not None and (scheme.lower() != b"bearer" or not hmac.compare_digest(shown, self._bearer)):
            message = "the token is missing or wrong: send Authorization: Bearer TOKEN"
            raise HttpError(401, message, headers=[(b"www-authenticate", b"Bearer")])
        # Spooled work names the store that it belongs to: another one at the same address must not get it.
        wanted = headers.get(b"sharpen-store", self._store_id)
        if wanted != self._store_id:
            message = f"this server does not serve the store {wanted.decode('latin-1')!r}"
            raise HttpError(421, message, kind="StoreUnavailableError")

    def as_http(self, error: Exception, scope: Scope) -> HttpError:
        if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):  # a ValidationError is a DecodeError
            return HttpError(400, str(error))
        return super().as_http(error, scope)

    # -- one request ---------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, verb = scope["path"], scope["method"]
        if verb == "POST" and scope[HEADERS].get(b"x-http-method-override") == b"GET":
            verb = "GET"  # a read with long arguments is sent with a body
        page = self._pages.get(path)
        if page is not None and page[0] == verb:
            scope[_LABEL] = page[1]
            response = await page[2](scope, receive)
        else:
            route, ids = self._find(verb, path)
            scope[_LABEL] = route.method.name
            body = b"" if scope["method"] == "GET" else await read_body(scope, receive)
            response = self._json(await self._answer(route, route.arguments(body, scope["query_string"], ids), receive))
        await response(scope, receive, send)

    def _find(self, verb: str, path: str) -> tuple["_Route", list[str]]:
        segments = path.split("/")[1:]
        by_verb: dict[str, _Route] = {}
        if segments and segments[0] == "v1" and all(segments):  # so "/v2/…" and "/v1/rollouts/" are not found
            by_verb = self._routes.get((len(segments), *segments[1::2]), by_verb)
        if verb in by_verb:
            return by_verb[verb], segments[2::2]
        allowed = self._pages[path][0] if path in self._pages else ", ".join(by_verb)
        if allowed:
            raise HttpError(405, f"{path} only allows {allowed}", headers=[(b"allow", allowed.encode())])
        raise HttpError(404, f"{path} does not exist; see /v1/openapi.json for the paths")

    async def _answer(self, route: "_Route", arguments: dict[str, Any], receive: Receive) -> Any:
        """Call the store, and return what goes into the response."""
        name = route.method.name
        self._check(arguments)
        wait = self._limit_wait(route.method, arguments)
        call = call_method(self.store, name, (), arguments)
        answer = await (self._poll(call, receive) if wait else call)
        if answer is None and route.method.verb == "GET":
            raise HttpError(404, "not found", kind="Nothing")
        if name.startswith("query_") and isinstance(answer, list):  # as a store of the user's own may answer
            answer = PaginatedResult(answer, arguments.get("limit", -1), arguments.get("offset", 0), len(answer))
        return SpanReceipt.of(answer) if isinstance(answer, StoredSpans) else change_rollouts(answer, _tagged)

    def _check(self, arguments: dict[str, Any]) -> None:
        for name in ("spans", "requests", "pairs"):
            if name in arguments and len(arguments[name]) > self._max_batch:
                raise TooLargeError(f"{name} has {len(arguments[name])} items; the limit is {self._max_batch} per call")
        if "resources" in arguments:
            check_no_secrets(arguments["resources"])

    def _limit_wait(self, method: Method, arguments: dict[str, Any]) -> bool:
        """Bound how long a call may wait for others; whether it may wait at all."""
        longest = self._max_wait_seconds
        if method.name == "wait_for_rollouts":
            timeout = arguments.get("timeout")
            arguments["timeout"] = longest if timeout is None else min(timeout, longest)
            return True
        if "wait_seconds" in method.parameters:
            arguments["wait_seconds"] = min(arguments.get("wait_seconds", 0), longest)
        return bool(arguments.get("wait_seconds", 0) > 0)

    async def _poll(self, call: Awaitable[Any], receive: Receive) -> Any:
        """Wait, unless the client goes away or the server stops."""
        task, gone = asyncio.ensure_future(call), asyncio.ensure_future(disconnected(receive))
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((task, gone, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
            if not task.cancelled():
                return task.result()
            raise server_stopping() if stop.done() else ClientGone
        finally:
            for each in (task, gone, stop):
                each.cancel()

    def _json(self, answer: Any) -> BytesResponse:
        return BytesResponse(200, _encode(answer), self.json_headers)

    # -- a batch of writes ---------------------------------------------------------------------------

    async def _write_batch(self, scope: Scope, receive: Receive) -> BytesResponse:
        """Writes that share a request: the store takes them in one commit, and each has an answer of its own."""
        entries = _decoded(_decode_batch, await read_body(scope, receive)).requests
        if len(entries) > MAX_BATCH_WRITES:
            raise TooLargeError(f"requests has {len(entries)} items; the limit is {MAX_BATCH_WRITES} per call")
        writes = [asyncio.ensure_future(self._write(entry)) for entry in entries]
        group_writes = getattr(self.store, "group_writes", None)
        if group_writes is not None:
            group_writes()
        return self._json(await asyncio.gather(*writes))

    async def _write(self, entry: BatchEntry) -> BatchAnswer:
        try:
            route, ids = self._find(entry.verb, unquote(entry.path))
            arguments = route.arguments(bytes(entry.body), b"", ids)
            if not route.is_write(arguments):
                message = f"{entry.verb} {entry.path} cannot be in a batch, which takes only writes that do not wait"
                raise InvalidInputError(message)
            return BatchAnswer(200, msgspec.Raw(_encode(await self._answer(route, arguments, _nothing_more))))
        except Exception as error:  # noqa: BLE001 - each write has an answer of its own
            failed = self.as_http(error, {"method": entry.verb, "path": entry.path})
            return BatchAnswer(failed.status, msgspec.Raw(_error_body(failed)))

    # -- the other pages -----------------------------------------------------------------------------

    async def _show_health(self, scope: Scope, receive: Receive) -> BytesResponse:
        status = "stopping" if self.stopping.is_set() else "ok"
        return self._json({"status": status, "store_id": getattr(self.store, "store_id", None), "version": __version__})

    async def _show_metrics(self, scope: Scope, receive: Receive) -> BytesResponse:
        text = self.metrics.render(await self.store.statistics())
        return BytesResponse(200, text.encode(), [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")])

    async def _show_openapi(self, scope: Scope, receive: Receive) -> BytesResponse:
        return self._json(self._document)

    @cached_property
    def _document(self) -> msgspec.Raw:
        return msgspec.Raw(_encode(openapi.document()))

    async def _store_traces(self, scope: Scope, receive: Receive) -> BytesResponse:
        body = await read_body(scope, receive, types=(otlp.PROTOBUF, otlp.JSON), encodings=("gzip",))
        kind = content_type(scope[HEADERS])
        answer = await otlp.store_traces(self.store, body, kind)
        return BytesResponse(200, answer, [(b"content-type", kind.encode())])


class _Route:
    """A method of the store with the decoder of its arguments."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self._decode = msgspec.json.Decoder(method.request_type).decode
        self._fields = method.request_type.__struct_fields__

    def arguments(self, body: bytes, query: bytes, ids: list[str]) -> dict[str, Any]:
        """The arguments of a request, as the store's method takes them."""
        given = self._read(body, query)
        arguments = {name: value for name in self._fields if (value := getattr(given, name)) is not msgspec.UNSET}
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
            raise InvalidInputError(f"{self.method.name} takes its arguments in the request body, not in the query")
        return _decoded(self._decode, body or b"{}")

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

    def is_write(self, arguments: dict[str, Any]) -> bool:
        """Whether it may be in a batch: a write, or a claim that does not wait."""
        if self.method.name in ("dequeue_rollout", "dequeue_many_rollouts"):
            return not arguments.get("wait_seconds")
        return self.method.kind in ("write", "derived")


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
        requests = {f'method="{name}",status="{status}"': n for (name, status), n in sorted(self._requests.items())}
        seconds = {f'method="{name}"': spent for name, spent in sorted(self._seconds.items())}
        by_status = {f'status="{status}"': n for status, n in statistics["rollouts_by_status"].items()}
        families: list[tuple[str, str, str, Mapping[str, float]]] = [
            ("requests_total", "counter", "Completed requests.", requests),
            ("request_seconds_total", "counter", "Seconds spent on requests, including long polls.", seconds),
            ("requests_in_progress", "gauge", "Requests in progress, including long polls.", {"": self.in_progress}),
            ("rollouts", "gauge", "Rollouts by status.", by_status),
            ("queue_length", "gauge", "Rollouts waiting for a worker.", {"": statistics["queue_length"]}),
            ("open_attempts", "gauge", "Attempts in progress.", {"": statistics["open_attempts"]}),
            ("total_spans", "gauge", "Spans stored.", {"": statistics["total_spans"]}),
            ("total_workers", "gauge", "Known workers.", {"": statistics["total_workers"]}),
            ("size_bytes", "gauge", "Bytes stored.", {"": statistics["size_bytes"]}),
            ("uptime_seconds", "gauge", "Seconds since the store was opened.", {"": statistics["uptime_seconds"]}),
        ]
        lines: list[str] = []
        for name, kind, text, samples in families:
            lines += [f"# HELP {METRICS_PREFIX}_{name} {text}", f"# TYPE {METRICS_PREFIX}_{name} {kind}"]
            for labels, value in samples.items():
                lines.append(f"{METRICS_PREFIX}_{name}{labels and f'{{{labels}}}'} {float(value)!r}")
        return "\n".join(lines) + "\n"


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except RecursionError:
        raise InvalidInputError("the request body is nested too deeply") from None


def _restore_tasks(arguments: dict[str, Any]) -> None:
    if "input" in arguments:
        arguments["input"] = from_tagged(arguments["input"])
    if "requests" in arguments:
        arguments["requests"] = [
            msgspec.structs.replace(request, input=from_tagged(request.input)) for request in arguments["requests"]
        ]


def _tagged(rollout: Rollout) -> Rollout:
    """The rollout as it is sent, with the tags in its task that JSON needs."""
    if isinstance(rollout.input, str | int | float | None):
        return rollout
    return msgspec.structs.replace(rollout, input=to_tagged(rollout.input))


def _error_body(error: HttpError) -> bytes:
    return _encode({"error": {"type": error_kind(error, "class"), "message": error.message}})


async def _nothing_more() -> Message:
    """What a write of a batch receives: its body has been read."""
    return {"type": "http.disconnect"}
