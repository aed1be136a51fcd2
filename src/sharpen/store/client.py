"""`LightningStoreClient`: the store over HTTP.

Every write carries the caller's id, so a call whose answer was lost is simply sent again. When the server cannot be
reached, calls are retried with growing pauses for a bounded time and then fail with the last error; finished work
(spans and outcomes) goes to a local spool instead, and is replayed in order when the server is back.
"""

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import UNSET

from ..backoff import Backoff
from ..errors import ConfigError, StoreError, StoreFullError, StoreUnavailableError, from_wire
from ..http.client import HttpClient
from ..http.proxies import is_loopback
from ..types import (
    Attempt,
    AttemptedRollout,
    FinishedRollouts,
    ResourcesUpdate,
    Rollout,
    Span,
    StoredSpans,
    check_no_secrets,
)
from .base import (
    LightningStore,
    LightningStoreCapabilities,
    check_number,
    check_seconds,
    check_spans,
    new_id,
)
from .methods import METHODS, BatchAnswer, MaybeAttempted, Method, change_rollouts, forward_methods
from .opening import ServerAddress
from .spool import Entry, OtherStore, SpoolSender, Unreachable, default_folder
from .task_json import TASK, encode_equal, from_tagged, has_tag
from .token_files import given_token, read_token, token_file_of
from .transitions import ENDED

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.25  # how soon a call that waits for the server notices that it should not
POLL_SECONDS = 20.0  # one long poll; longer waits are made of several
TOKEN_SECONDS, TOKEN_CHECK_SECONDS = 2.0, 0.05
MAX_BATCH = 2_000
MAX_BATCH_BYTES = 16 * 2**20
MAX_QUERY_CHARACTERS = 8 * 1024  # longer arguments of a read are sent in a body: servers bound the head of a request
MAX_IN_FLIGHT = 2
MAX_WRITES = 64
HOLD_SECONDS = 0.005  # how long writes wait for a claim that was announced
CLAIM = "/v1/queue:claim-batch"
MAX_BATCHED_BODY = 64 * 1024  # larger ones are worth a request of their own
_encode = msgspec.json.Encoder().encode
_decode_answers = msgspec.json.Decoder(list[BatchAnswer]).decode
_decoders = {name: msgspec.json.Decoder(m.answer_type).decode for name, m in METHODS.items()}

Answer = tuple[int, bytes]
"""Status and body."""
Send = Callable[[Entry], Awaitable[Answer]]


@functools.cache
def _warn_if_readable(url: str) -> None:
    """Warn, once for each address, that the token of the environment is sent unencrypted."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        log.warning(
            "SHARPEN_TOKEN is sent to %s:%s unencrypted: use https:// unless you trust the network, and pass token= if "
            "the variable belongs to another store",
            parts.hostname,
            parts.port or 80,
        )


def _request(method: Method) -> Callable[..., Awaitable[Any]]:
    async def call(self: "LightningStoreClient", *args: Any, **kwargs: Any) -> Any:
        arguments = method.bind(args, kwargs)
        if method.name == "complete_attempt" or (method.name == "update_attempt" and arguments.get("status") in ENDED):
            return await self._deliver_outcome(method, arguments)
        return await self._call(method, arguments)

    return call


@forward_methods(_request)
class LightningStoreClient(LightningStore):
    """A store that is served by a `LightningStoreServer`. It can be used from several threads and event loops.

    Args:
        url: The address of the server, such as `http://127.0.0.1:4747`.
        token: The token of the server. Default: `SHARPEN_TOKEN`, otherwise the file that a server of this user on this
            machine writes. The file is read again when the server refuses the token, for example after a restart.
        server_address: Another name for `url`.
        retry_seconds: How long a call tries to reach the server.
        spool_after_seconds: How long to try to send finished work before it is written to the spool.
        request_seconds: The time-out of one request.
        spool_folder: The folder of the spool. Default: `SHARPEN_SPOOL`, otherwise the state folder of the user.
        max_spool_bytes: The maximum size of the spool.
        token_file: The file to read a new token from when the server refuses `token`. Default: none if a token is
            given, otherwise the file of the server.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        server_address: str | None = None,
        retry_seconds: float = 60.0,
        spool_after_seconds: float = 5.0,
        request_seconds: float = 60.0,
        spool_folder: str | Path | None = None,
        max_spool_bytes: int = 256 * 2**20,
        token_file: str | Path | None = None,
    ) -> None:
        if (url is None) == (server_address is None):
            raise ConfigError(f"url is {url!r} and server_address is {server_address!r}: pass exactly one of them")
        url = url or server_address or ""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ConfigError(f"url is {url!r}: use the address of a store server, such as http://127.0.0.1:4747")
        self.url = url.rstrip("/")
        self.token_file = None if token_file is None else Path(token_file)
        """Where the token came from, and where the next one is looked for when this one is refused."""
        if token is None and (token := given_token()) is not None:
            _warn_if_readable(self.url)
        elif token is None:
            self.token_file = self.token_file or token_file_of(self.url)
            token = read_token(self.token_file)
        self._token = token
        self.options: dict[str, Any] = {
            "retry_seconds": retry_seconds,
            "spool_after_seconds": spool_after_seconds,
            "request_seconds": request_seconds,
            "spool_folder": None if spool_folder is None else str(Path(spool_folder).absolute()),
            "max_spool_bytes": max_spool_bytes,
        }
        """The keyword arguments, for a client of the same server in another process."""
        self._retry_seconds, self._request_seconds = retry_seconds, request_seconds
        self._by_loop: dict[asyncio.AbstractEventLoop, _Link] = {}
        self._resources: dict[tuple[str, int], ResourcesUpdate] = {}
        self._spool = SpoolSender(
            self,
            Path(spool_folder or default_folder()),
            max_bytes=max_spool_bytes,
            patience_seconds=min(spool_after_seconds, retry_seconds),
        )
        self.store_id: str | None = None
        """The id of the store behind the server, known after the first response."""
        self.is_away = False
        """Whether the server did not respond to the last request."""
        self._is_waiting = True

    @property
    def spooled(self) -> int:
        """The number of requests with finished work in the spool."""
        return self._spool.count

    def stop_waiting(self) -> None:
        """Stop retrying: calls, including those in progress, fail after one try, and finished work is spooled at once.

        It can be called from any thread.
        """
        self._is_waiting = False

    # -- requests ------------------------------------------------------------------------------------

    async def _call(self, method: Method, arguments: dict[str, Any]) -> Any:
        request = _to_request(method, _prepare(method.name, arguments))
        return _restore(method, await self.send_surely(request, self._retry_seconds))

    async def send_surely(self, request: Entry, seconds: float) -> bytes | None:
        """Send a request, with retries, and return the response; None means that the store found nothing."""
        end, backoff = time.monotonic() + seconds, None
        while True:
            try:
                answer = await self.send(request)
            except Unreachable as error:
                self.is_away = True
                if backoff is None:  # most calls need none
                    left = end - time.monotonic()
                    backoff = Backoff(0.05, maximum=5.0, jitter=0.5, deadline_seconds=left)
                pause = next(backoff, None)
                if pause is None or not self._is_waiting:
                    if error.kind == StoreFullError.__name__:
                        raise StoreFullError(str(error)) from error
                    when = f"within {seconds:g} s" if self._is_waiting else "after the parent process ended"
                    raise StoreUnavailableError(
                        f"the store at {self.url} did not respond {when}; last error: {error}"
                    ) from error
                await self._rest(pause)
            else:
                self.is_away = False
                self._spool.note_answer()
                return answer

    async def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._is_waiting and (left := until - time.monotonic()) > 0:  # noqa: ASYNC110 - any thread may end it
            await asyncio.sleep(min(left, CHECK_SECONDS))

    async def send(self, request: Entry, store_id: str | None = None, *, piggyback: bool = False) -> bytes | None:
        """Send a request once, only to the given store. With `piggyback`, a claim shares a request with held writes."""
        if store_id is None and (can_batch(request) or piggyback):
            status, body = await self._link().batcher.send(request)
        else:
            status, body = await self._exchange(request, store_id)
        if status == 200:
            return body
        _raise_refusal(status, body, self.url)
        return None

    async def _exchange(self, request: Entry, store_id: str | None = None) -> tuple[int, bytes]:
        """One request and its answer; with a new token where the old one is refused and there is another."""
        link = self._link()
        used = link.token
        status, body = await self._exchange_over(link.connections, request, store_id)
        if status == 401 and await self._has_new_token(link, used):
            status, body = await self._exchange_over(link.connections, request, store_id)
        return status, body

    async def _exchange_over(self, connections: HttpClient, request: Entry, store_id: str | None) -> tuple[int, bytes]:
        verb, headers = request.verb, [] if store_id is None else [("sharpen-store", store_id)]
        if verb == "GET" and request.body:
            verb, headers = "POST", [*headers, ("x-http-method-override", "GET")]
        body, seconds = request.body.encode(), self._request_seconds
        try:
            answer = await connections.exchange(verb, request.path, headers=headers, body=body, seconds=seconds)
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        self.store_id = answer.header("sharpen-store") or self.store_id
        return answer.status, await answer.read()

    def _link(self) -> "_Link":
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            for old in [each for each in list(self._by_loop) if each.is_closed()]:
                self._by_loop.pop(old, None)
            found = self._by_loop[loop] = _Link(self.url, self._token, WriteBatcher(self._exchange))
        return found

    async def _has_new_token(self, link: "_Link", refused: str | None) -> bool:
        """Take another token than the refused one from the file. A server that takes the place of another one writes
        its token a moment after its first answer."""
        end = time.monotonic() + (TOKEN_SECONDS if refused else 0)
        while self.token_file is not None:
            if link.token != refused:
                return True  # another request has taken it
            token = read_token(self.token_file)
            if token not in (None, refused):
                self._token = token
                link.connect(token)
                return True
            if time.monotonic() >= end:
                break
            await asyncio.sleep(TOKEN_CHECK_SECONDS)
        return False

    # -- waiting: long polls, one after another ------------------------------------------------------

    async def _poll(
        self,
        name: str,
        arguments: dict[str, Any],
        seconds: float | None,
        is_enough: Callable[[Any], bool],
        *,
        wait: str = "wait_seconds",
    ) -> Any:
        """Repeat a long poll until an answer is enough or the time is up, and return the last one."""
        if seconds is not None:
            check_seconds(wait, seconds)
        end = time.monotonic() + (math.inf if seconds is None else seconds)
        while True:
            left = max(end - time.monotonic(), 0)
            answer = await self._call(METHODS[name], arguments | {wait: min(left, POLL_SECONDS)})
            if is_enough(answer) or left <= POLL_SECONDS:
                return answer

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]:
        check_seconds("wait_seconds", wait_seconds)
        arguments = {"limit": limit, "worker_id": worker_id, "request_id": request_id or new_id("rq")}
        if self._link().batcher.has_held and (claimed := await self._claim_with_held(arguments)):
            return claimed
        return await self._poll("dequeue_many_rollouts", arguments, wait_seconds, bool)  # type: ignore[no-any-return]

    def expect_claim(self) -> None:
        """Announce that a claim follows the next completion, so that both are sent in one request."""
        self._link().batcher.expect_claim()

    async def _claim_with_held(self, arguments: dict[str, Any]) -> list[AttemptedRollout]:
        """Claim without waiting, together with the writes that were held back for it."""
        method = METHODS["dequeue_many_rollouts"]
        try:
            answer = await self.send(_to_request(method, _prepare(method.name, arguments)), piggyback=True)
        except Unreachable:
            return []  # asked again by itself
        return _restore(method, answer)  # type: ignore[no-any-return]

    async def finished_rollouts(self, after: int = 0, limit: int = 1000, wait_seconds: float = 0) -> FinishedRollouts:
        arguments = {"after": after, "limit": limit}
        found: FinishedRollouts
        found = await self._poll("finished_rollouts", arguments, wait_seconds, lambda found: bool(found.items))
        return found

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        finished: dict[str, Rollout] = {}
        wanted = list(dict.fromkeys(rollout_ids))
        arguments = {"rollout_ids": wanted}

        def are_all(found: list[Rollout]) -> bool:
            finished.update((rollout.rollout_id, rollout) for rollout in found)
            arguments["rollout_ids"] = [each for each in wanted if each not in finished]
            return not arguments["rollout_ids"]

        await self._poll("wait_for_rollouts", arguments, timeout, are_all, wait="timeout")
        return [finished[each] for each in wanted if each in finished]

    # -- finished work -------------------------------------------------------------------------------

    async def add_many_spans(self, spans: Sequence[Span]) -> StoredSpans:
        check_spans(spans)
        stored: list[Span | None] = []
        unwanted: list[str] = []
        for batch in _batches(spans):
            answer = await self._spool.deliver(_to_request(METHODS["add_many_spans"], {"spans": batch}))
            part = StoredSpans(batch) if answer is None else _decoders["add_many_spans"](answer).restore(batch)
            stored += part
            unwanted += part.unwanted
        return StoredSpans(stored, dict.fromkeys(unwanted))

    async def _deliver_outcome(self, method: Method, arguments: dict[str, Any]) -> Attempt:
        """Deliver how an attempt ended; while it lies in the spool, the answer holds what is known here."""
        batches = _batches(arguments.get("spans", ()))
        for batch in batches[:-1]:
            await self.add_many_spans(batch)
        if "spans" in arguments:
            arguments = arguments | {"spans": batches[-1] if batches else []}
        answer = await self._spool.deliver(_to_request(method, _prepare(method.name, arguments)))
        if answer is not None:
            return _restore(method, answer)  # type: ignore[no-any-return]
        status = arguments.get("status", "succeeded")
        return Attempt(arguments["rollout_id"], arguments["attempt_id"], 0, 0.0, time.time(), status)

    # -- the rest ------------------------------------------------------------------------------------

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        """Return one version, by default the newest. A version never changes, so it is requested only once."""
        if version is not None and (known := self._resources.get((resources_id, version))):
            return known
        arguments = {"resources_id": resources_id, "version": version}
        found: ResourcesUpdate | None = await self._call(METHODS["get_resources_by_id"], arguments)
        if found is not None:
            if len(self._resources) >= 64:
                self._resources.pop(next(iter(self._resources)))
            self._resources[found.resources_id, found.version] = found
        return found

    async def release_loop(self) -> None:
        """Close the connections of the running event loop, before it ends."""
        link = self._by_loop.pop(asyncio.get_running_loop(), None)
        if link is not None:
            link.connections.close()

    async def close(self) -> None:
        """Send spooled work if the server can be reached, and close the connections. The rest stays in the spool."""
        await self._spool.close()
        await self.release_loop()
        for loop, link in list(self._by_loop.items()):
            if loop.is_running():
                loop.call_soon_threadsafe(link.connections.close)
        self._by_loop.clear()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": True}

    def address(self) -> ServerAddress:
        token_file = None if self.token_file is None else str(self.token_file)
        return ServerAddress(self.url, self._token, token_file, self.options)

    def otlp_traces_endpoint(self) -> str:
        return f"{self.url}/v1/traces"


class _Link:
    """What one event loop uses: its connections, the token that they send, and its batcher."""

    def __init__(self, url: str, token: str | None, batcher: "WriteBatcher") -> None:
        self._url, self.batcher = url, batcher
        self.connections = self._open(token)

    def connect(self, token: str | None) -> None:
        """Use another token from now on."""
        self.connections.close()
        self.connections = self._open(token)

    def _open(self, token: str | None) -> HttpClient:
        self.token = token
        headers = [("content-type", "application/json")]
        if token is not None:
            headers.append(("authorization", f"Bearer {token}"))
        # Every call may be sent twice, so a kept connection that ends without an answer is simply replaced.
        return HttpClient(self._url, headers=headers, stale_seconds=math.inf, uses_proxy=False)


# -- small writes that share a request ----------------------------------------------------------------


def can_batch(entry: Entry) -> bool:
    """Whether it is a small write; claims and waits have to be answered by themselves."""
    waits = "/queue:" in entry.path or entry.path.endswith(":wait")
    return entry.verb != "GET" and not waits and len(entry.body) <= MAX_BATCHED_BODY


class WriteBatcher:
    """Small writes of one event loop that share a request; `send` sends one.

    While two requests are in flight, further writes wait and then leave as one. Many small writes at once cost little
    more than one: the store commits them together, and each gets an answer of its own. A runner that reports an outcome
    and claims the next rollout announces that, and both leave as one.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._in_flight = 0
        self._waiting: list[tuple[Entry, asyncio.Future[Answer]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._hold: asyncio.TimerHandle | None = None

    def expect_claim(self) -> None:
        """Hold writes back until the claim that follows at once, so that they leave with it."""
        if self._hold is None:
            self._hold = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._release)

    @property
    def has_held(self) -> bool:
        """Whether writes wait for the claim that was announced."""
        return self._hold is not None and bool(self._waiting)

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
            self._send_waiting()

    async def send(self, entry: Entry) -> Answer:
        """Return the answer, whether the entry was sent alone or with others."""
        if self._in_flight >= MAX_IN_FLIGHT or self._hold is not None:
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._waiting.append((entry, future))
            if entry.path == CLAIM:
                self._release()
            return await future
        self._in_flight += 1
        try:
            return await self._send(entry)
        finally:
            self._note_answer()

    def _note_answer(self) -> None:
        self._in_flight -= 1
        if self._hold is None:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._waiting:
            batch, self._waiting = self._waiting[:MAX_WRITES], self._waiting[MAX_WRITES:]
            self._in_flight += 1
            task = asyncio.get_running_loop().create_task(self._send_batch(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_batch(self, batch: list[tuple[Entry, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._ask([entry for entry, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._note_answer()

    async def _ask(self, entries: list[Entry]) -> list[Answer]:
        if len(entries) == 1:
            return [await self._send(entries[0])]
        requests = ",".join(
            f'{{"verb":"{entry.verb}","path":{msgspec.json.encode(entry.path).decode()},"body":{entry.body or "{}"}}}'
            for entry in entries
        )
        status, body = await self._send(Entry("POST", "/v1/batch", f'{{"requests":[{requests}]}}'))
        if status == 200:
            try:
                return [(answer.status, bytes(answer.body)) for answer in _decode_answers(body)]
            except msgspec.DecodeError:
                pass  # it is not the answer of a store
        return [await self._send(entry) for entry in entries]


# -- requests and answers -------------------------------------------------------------------------------


def _prepare(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Fill in the ids that make a call repeatable, and refuse what must not or cannot be sent."""
    arguments = {key: value for key, value in arguments.items() if value is not UNSET}
    if name in ("start_attempt", "update_resources") and arguments.get("request_id") is None:
        arguments["request_id"] = new_id("rq")
    if name == "start_rollout" and arguments.get("rollout_id") is None:
        arguments["rollout_id"] = new_id("ro")
    if name == "add_resources" and arguments.get("resources_id") is None:
        arguments["resources_id"] = new_id("rs")
    if name == "enqueue_many_rollouts":
        arguments["requests"] = [_with_id(request) for request in arguments["requests"]]
    if arguments.get("reward") is not None:
        check_number("reward", arguments["reward"])
    if "spans" in arguments:
        check_spans(arguments["spans"])
    for what in ("input", "metadata", "heartbeat_stats"):
        if arguments.get(what) is not None:
            arguments[what] = msgspec.Raw(encode_equal(arguments[what], TASK if what == "input" else what))
    if "resources" in arguments:
        check_no_secrets(arguments["resources"])
    return arguments


def _with_id(request: Any) -> Any:
    return msgspec.structs.replace(
        request,
        input=msgspec.Raw(encode_equal(request.input, TASK)),
        metadata=msgspec.Raw(encode_equal(request.metadata, "metadata")),
        rollout_id=new_id("ro") if request.rollout_id is None else request.rollout_id,
    )


def _to_request(method: Method, arguments: dict[str, Any]) -> Entry:
    path = "/v1" + method.path.format(**{name: quote(arguments[name], safe="") for name in method.path_parameters})
    rest = {name: value for name, value in arguments.items() if name not in method.path_parameters}
    if method.verb != "GET":
        return Entry(method.verb, path, _encode(rest).decode())
    # An empty list says "none of them", which a query writes as an empty value.
    given = {name: value if value != [] else "" for name, value in rest.items() if value is not None}
    query = urlencode(given, doseq=True)
    if len(query) > MAX_QUERY_CHARACTERS:
        return Entry("GET", path, _encode({name: value for name, value in rest.items() if value is not None}).decode())
    return Entry("GET", f"{path}?{query}" if query else path, "")


def _restore(method: Method, answer: bytes | None) -> Any:
    """The answer as a local store would have given it."""
    if answer is None:
        return None
    decoded, is_tagged = _decoders[method.name](answer), has_tag(answer)

    def restore(rollout: Rollout) -> Rollout:
        if is_tagged:
            rollout = msgspec.structs.replace(rollout, input=from_tagged(rollout.input))
        return rollout.restore() if isinstance(rollout, MaybeAttempted) else rollout

    return change_rollouts(decoded, restore)


def _raise_refusal(status: int, body: bytes, url: str) -> None:
    """Raise the server's error as the class that it was there, unless it only says that there is no such thing."""
    kind, message = _error_in(body)
    if status == 404 and kind == "Nothing":
        return
    if status == 421:
        raise OtherStore(message)
    if status in (429, 502, 503, 504):
        raise Unreachable(f"HTTP {status}: {message or 'no error message'}", kind)
    if not kind or (status == 404 and kind != "UnknownIdError"):
        # The answer is not quoted: it may be a whole page.
        raise StoreError(f"{url} is not a store server (HTTP {status}): check the address")
    raise from_wire(kind, message)


def _error_in(body: bytes) -> tuple[str, str]:
    """Kind and message of an error as stores write it; nothing where somebody else has answered."""
    try:
        error = msgspec.json.decode(body)["error"]
        return error["type"], error["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return "", ""


def _batches(spans: Sequence[Span]) -> list[list[Span]]:
    """Parts that stay within the limits of a server, by number and, roughly, by size."""
    parts: list[list[Span]] = []
    size = 0
    for span in spans:
        weight = 256 + sum(len(value) for value in span.attributes.values() if isinstance(value, str | list))
        if not parts or len(parts[-1]) >= MAX_BATCH or size + weight > MAX_BATCH_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(span)
        size += weight
    return parts


@contextlib.asynccontextmanager
async def connected(
    url: str, token: str | None, *, token_file: Path | None = None, **options: Any
) -> AsyncIterator[LightningStoreClient]:
    """A client inside the block, closed in the loop that it was used in.

    Where the token came from a file, a new one is looked for there when the server refuses it.
    """
    client = LightningStoreClient(url, token, token_file=token_file, **options)
    try:
        yield client
    finally:
        await client.close()
