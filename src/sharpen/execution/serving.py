"""How the store of a run is served to its runners: by a separate process, by a thread of this one, or by somebody else.

A SQLite file is served by a child, `python -m sharpen.execution.serving`, so that a heavy learning step here does not
hold up the runners there. The parent keeps the listening socket: a child that dies is restarted on the same address,
and whoever connects meanwhile waits instead of being refused. The store is the last to end, since runners report to it.

Where the roles are separate, another program starts the server, earlier or later than this one. Runners wait for it,
and end when it has gone for good. They may outlive the algorithm that serves the store: the next one on the same
address has another token, which is found where the first was.

Other applications, such as a dashboard, may be mounted at the address of the store. They are named by import path, so
that neither the store nor this package knows them, and made in the process that serves the store, at the first request.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from ..backoff import Backoff
from ..errors import AccessDeniedError, ConfigError, MissingExtraError, RunError, StoreUnavailableError
from ..process.python_process import Job, Parent
from ..runs.screen import is_terminal, say
from ..store import UNSET, LightningStore
from ..store.client import LightningStoreClient, connected
from ..store.local import LocalStore
from ..store.methods import Method, StoreWrapper
from ..store.opening import DatabaseAddress, ServerAddress, address_of
from ..store.task_json import TASK, encode_equal
from ..store.token_files import given_token, left_in_file, port_of, read_token, token_file
from ..web.serving import address, listen
from .events import happens
from .supervisor import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, MAX_STARTS, RunnerExit
from .warm_pool import IDLE_SECONDS, RoleProcess, pool

if TYPE_CHECKING:
    from starlette.types import ASGIApp as App, Receive, Scope, Send

    from ..store.server import LightningStoreServer

log = logging.getLogger(__name__)
GRACE_SECONDS, TERMINATE_SECONDS = 10.0, 5.0
LONGEST_WAIT_SECONDS = 2.0  # between two questions whether a server of somebody else answers
LOOK_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
OnEnd = Callable[[BaseException | None], None]


class Mount(msgspec.Struct, frozen=True):
    """An application under a path prefix. `factory` (`package.module:function`) is called with the store, the
    options and `edit_token`, the token of the store's server; the options are plain JSON values."""

    prefix: str
    factory: str
    title: str
    options: dict[str, Any] = {}


@contextlib.contextmanager
def announced(
    store: LightningStore, *, managed: bool | None, host: str, port: int | None, mounts: Sequence[Mount]
) -> "Iterator[Served]":
    """Serve the store to whoever holds its token: the one that the user has set, or a new one that is left in a
    file."""
    token = given_token() or new_token()
    served = serve(store, managed=managed, host=host, port=port, token=token, mounts=mounts)
    with contextlib.ExitStack() as stack:
        if served.address.token == token:
            file = None if given_token() else token_file(host, port_of(served.url))
            if file is not None:
                stack.enter_context(left_in_file(file, token))
            announce(mounts, served.url, token, file)
        yield served


def announce(mounts: Sequence[Mount], url: str, token: str, token_file: Path | None) -> None:
    """Log where they are. The token opens the store, so it is shown to a person only and never logged: the log says
    where to find it."""
    for mount in mounts:
        place = f"{url}{mount.prefix}/"
        log.info("%s: %s (its token is in %s)", mount.title, place, token_file or "SHARPEN_TOKEN")
        if is_terminal():
            say(f"{mount.title}: {place}?token={quote(token)}")


def serve(
    store: LightningStore,
    *,
    managed: bool | None,
    host: str,
    port: int | None,
    token: str,
    mounts: Sequence[Mount] = (),
) -> "Served":
    """Choose how the store is served. A taken port is an error here, before anything starts."""
    found = address_of(store)
    if isinstance(found, ServerAddress) and not managed:
        # Runs use clients of their own, closed in the loop that they were used in; the user's stays as it is.
        is_client = isinstance(store, LightningStoreClient)
        return Served(found) if is_client else Shared(store, is_wrapped=False, address=found)
    if managed is False:
        raise ConfigError(
            f"managed_store is False, but {type(store).__name__} is not being served: pass a LightningStoreClient "
            "or a started LightningStoreServer, or omit managed_store"
        )
    listening = listen(host, port or 0)
    settings = ServerSettings(host, token, list(mounts))
    served_at = ServerAddress(address(host, listening.getsockname()[1]), token)
    if isinstance(found, DatabaseAddress) and found.is_file and isinstance(store, LocalStore):
        return ServedByProcess(store, found, settings, listening, served_at)
    return ServedHere(store, settings, listening, served_at)


def new_token() -> str:
    return secrets.token_urlsafe(32)


# -- ways to serve a store ---------------------------------------------------------------------------


class Served:
    """A store that runners reach at an address. Here somebody else serves it; subclasses begin and end the serving."""

    num_processes = 0
    """How many processes serve it, for the run."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address

    @property
    def url(self) -> str:
        return self.address.url

    async def open(self, on_end: OnEnd) -> None:
        """Begin to serve; `on_end` is called when that is over too early."""

    async def close(self) -> None:
        """End the serving, after everybody else has ended."""

    def kill(self) -> None:
        """End it at once."""

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        """Return the store for somebody in this process, in the event loop of the caller."""
        return opened(self.address)

    def ends_work(self, ended: RunnerExit) -> bool:
        """Whether a worker whose runner ended like this has no work left."""
        return False


@contextlib.asynccontextmanager
async def opened(address: ServerAddress) -> AsyncIterator[LightningStore]:
    """A client inside the block, closed in the loop that it was used in."""
    store = address.open()
    try:
        yield store
    finally:
        await store.close()


class ServedByProcess(Served):
    """A SQLite file, served by a child that is restarted when it dies."""

    num_processes = 1

    def __init__(
        self,
        store: LocalStore,
        database: DatabaseAddress,
        settings: "ServerSettings",
        listening: socket.socket,
        address: ServerAddress,
    ) -> None:
        super().__init__(address)
        self._local: LocalStore | None = store
        self._listening = listening
        self._options = msgspec.to_builtins({"store": database, "settings": settings})
        self._child: RoleProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def open(self, on_end: OnEnd) -> None:
        assert self._local is not None
        self._local.expires_attempts = False  # heartbeats go to the child
        self._keeping = asyncio.create_task(self._keep(on_end))

    async def _keep(self, on_end: OnEnd) -> None:
        pauses = Backoff(FIRST_PAUSE_SECONDS, maximum=LONGEST_PAUSE_SECONDS)
        while not self._stopping.is_set():
            child = self._child = pool.take("store")
            job = Job(self._options, files=[self._listening.fileno()])
            report = await child.work("the store server", job, lambda _: None)
            if self._stopping.is_set():
                return
            reason = report.describe() if report.failure is None else report.failure.traceback
            log.warning("the store server exited (%s); restarting it", reason)
            if child.is_ready:
                pauses.reset()
            elif not child.was_lost_early:
                pause = next(pauses)
                if pauses.tries >= MAX_STARTS:
                    words = f"the store server failed to start {MAX_STARTS} times in a row; last: {reason}"
                    on_end(RunError(words))
                    return
                await happens(self._stopping, pause)

    async def close(self) -> None:
        self._stopping.set()
        try:
            if self._keeping is not None and self._child is not None:
                await self._child.stop((None, GRACE_SECONDS), (signal.SIGTERM, TERMINATE_SECONDS))
                await self._keeping
        finally:
            self._listening.close()
            if self._local is not None:
                self._local.expires_attempts = True
                self._local = None  # its watchdog ends with the last one who holds it

    def kill(self) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.kill()


class Shared(Served):
    """A store of this process, for all threads of a run; one that is not thread-safe gets a separate event loop."""

    def __init__(self, store: LightningStore, *, is_wrapped: bool | None, address: ServerAddress | None = None) -> None:
        super().__init__(address or ServerAddress(""))
        self._store, self._is_wrapped = store, is_wrapped
        if is_wrapped is None:
            self._is_wrapped = not store.capabilities.get("thread_safe")
        if self._is_wrapped:
            from ..store.threading import LightningStoreThreaded

            self._store = LightningStoreThreaded(LentStore(store))

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        return contextlib.nullcontext(self._store)

    async def close(self) -> None:
        """Let go of the wrapper; the store itself belongs to the caller and stays open."""
        if self._is_wrapped:
            await self._store.close()


class ServedHere(Shared):
    """Any store of this process, served by a thread of this process."""

    def __init__(
        self, store: LightningStore, settings: "ServerSettings", listening: socket.socket, address: ServerAddress
    ) -> None:
        super().__init__(store, is_wrapped=None, address=address)
        self._settings, self._listening = settings, listening
        self._server: LightningStoreServer | None = None

    async def open(self, on_end: OnEnd) -> None:
        self._server = self._settings.server(self._store, self._listening)
        starting = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # a server can be stopped only once it has started
            raise

    async def close(self) -> None:
        try:
            if self._server is not None:
                await self._server.stop()
        finally:
            self._listening.close()
            await super().close()

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        return contextlib.nullcontext(LentStore(self._store, checks_tasks=True))


class LentStore(StoreWrapper):
    """The store of the user for the time of a run: whoever closes this one leaves the user's open.

    With `checks_tasks` it is for the algorithm of a run whose runners reach the store over HTTP: a task that would
    arrive there as something else is refused.
    """

    def __init__(self, store: LightningStore, *, checks_tasks: bool = False) -> None:
        super().__init__(store)
        self._checks_tasks = checks_tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def close(self) -> None:
        """Its owner closes it."""

    async def _call(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._checks_tasks and not {"input", "metadata", "requests"}.isdisjoint(method.parameters):
            given = method.bind(args, kwargs)
            found = [(name, given.get(name)) for name in ("input", "metadata")]
            for request in given.get("requests", ()):
                found += [("input", request.input), ("metadata", request.metadata)]
            for name, value in found:
                if value is not None and value is not UNSET:
                    encode_equal(value, TASK if name == "input" else name)
        return await super()._call(method, args, kwargs)


# -- separate roles ----------------------------------------------------------------------------------


class ServedRemotely(Served):
    """A store whose server the other role starts."""

    def __init__(self, host: str, port: int) -> None:
        self._token_file = None if given_token() else token_file(host, port)
        file = None if self._token_file is None else str(self._token_file)
        super().__init__(ServerAddress(address(host, port), given_token(), file))
        self._is_refused = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def open(self, on_end: OnEnd) -> None:
        """Wait until the server answers, and look after it from then on."""
        await self.wait()
        self._looking = asyncio.create_task(self._look(on_end))

    async def wait(self) -> None:
        """Wait until the server answers, however long that takes."""
        pauses = Backoff(FIRST_PAUSE_SECONDS, maximum=LONGEST_WAIT_SECONDS)
        while not await self._answers():
            if not pauses.tries:
                log.warning("waiting for a store server at %s", self.url)
            await pauses.wait_async()
        log.info("connected to the store server at %s", self.url)

    async def _answers(self) -> bool:
        """Ask once, with the token of the server that is there now; a token that stays wrong is an error."""
        file = self._token_file
        # The client waits a moment for another token than one that is refused.
        token = self.address.token if file is None else read_token(file) or "none yet"
        try:
            async with connected(self.url, token, token_file=file, retry_seconds=0) as store:
                await store.get_rollout_by_id("-")  # costs next to nothing, whatever the size of the store
        except StoreUnavailableError:
            return False
        except AccessDeniedError as error:
            raise AccessDeniedError(
                f"the store server at {self.url} rejects the token in {file or 'SHARPEN_TOKEN'}: set SHARPEN_TOKEN to "
                "the same token on both sides"
            ) from error
        return True

    async def _look(self, on_end: OnEnd) -> None:
        """Ask now and then: a server that has not answered for a minute is not coming back."""
        away_since: float | None = None
        while True:
            await happens(self._is_refused, LOOK_SECONDS)
            self._is_refused.clear()
            try:
                is_there, now = await self._answers(), time.monotonic()
            except AccessDeniedError as error:
                on_end(error)
                return
            if is_there:
                if away_since is not None:
                    log.warning("the store at %s is responding again", self.url)
                away_since = None
            elif away_since is None:
                away_since = now
                log.warning("the store at %s is not responding; waiting up to %g s", self.url, PATIENCE_SECONDS)
            elif now - away_since > PATIENCE_SECONDS:
                log.warning("the store is gone: nothing answers at %s; stopping the runners", self.url)
                on_end(None)
                return

    def ends_work(self, ended: RunnerExit) -> bool:
        """Whether the runner has ended because its store has gone."""
        error_type = None if ended.failure is None else ended.failure.kind
        if error_type == "AccessDeniedError":
            self._is_refused.set()  # the store is asked at once: with a new token the runner continues
        if error_type != "StoreUnavailableError":
            return False
        log.warning("the store is gone; stopping the runner: %s", ended.reason)
        return True

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)


async def reached(host: str, port: int) -> LightningStore:
    """Return the store behind a server, once that answers; whoever asks closes it."""
    served = ServedRemotely(host, port)
    await served.wait()
    return served.address.open()


# -- the server, here or in the child ----------------------------------------------------------------


class ServerSettings(msgspec.Struct, frozen=True):
    """The settings of a store server: its host, its token, and what else it serves."""

    host: str
    token: str
    mounts: list[Mount]

    def server(self, store: LightningStore, listening: socket.socket) -> "LightningStoreServer":
        from ..store.server import LightningStoreServer

        mounts = [(mount.prefix, MountedApp(mount, store, self.token)) for mount in self.mounts]
        return LightningStoreServer(store, host=self.host, token=self.token, socket=listening, mounts=mounts)


class MountedApp:
    """Makes the application when somebody asks for it."""

    def __init__(self, mount: Mount, store: LightningStore, token: str | None) -> None:
        self._mount, self._store, self._token = mount, store, token
        self._app: App | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        from starlette.responses import PlainTextResponse

        try:
            async with self._making:
                if self._app is None:
                    # Importing takes a while, and the store has others to answer.
                    self._app = await asyncio.to_thread(self._make)
            app = self._app
        except MissingExtraError as error:
            app = PlainTextResponse(f"{error}\n", status_code=503)
        await app(scope, receive, send)

    def _make(self) -> "App":
        module, _, name = self._mount.factory.partition(":")
        app: App = getattr(import_module(module), name)(self._store, edit_token=self._token, **self._mount.options)
        return app


def run_store(parent: Parent) -> int:
    """Serve a SQLite file until the parent asks for the end, and return the exit code."""
    # Imported before there is a job; uvicorn needs the first two to serve.
    import httptools  # noqa: F401
    import uvicorn.protocols.http.httptools_impl  # noqa: F401

    from ..store import server, sqlite  # noqa: F401

    job = parent.wait_for_job(idle_seconds=IDLE_SECONDS)
    if job is None:
        return 0
    parent.listen(stops_when_orphaned=False)
    job.context.apply("store")
    # Requests make many short-lived objects: looking through all of them after every 700 doubles the decoding.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    asyncio.run(_serve(parent, job))
    return 0


async def _serve(parent: Parent, job: Job) -> None:
    def answers(_: str) -> None:
        parent.on_stop = functools.partial(os.kill, os.getpid(), signal.SIGTERM)
        parent.send_ready()
        if parent.stop_requested.is_set():
            parent.on_stop()

    store = msgspec.convert(job.options["store"], DatabaseAddress).open(expires_attempts=True)
    try:
        with socket.socket(fileno=job.files[0]) as listening:
            server = msgspec.convert(job.options["settings"], ServerSettings).server(store, listening)
            await server.run_forever(announce=answers)
    finally:
        await store.close()


if __name__ == "__main__":
    Parent.inherited().run(run_store)
