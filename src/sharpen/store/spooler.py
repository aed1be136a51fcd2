"""Finished work that cannot be delivered now: it goes to the spool, and from there to the server when that is back."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Protocol

from ..backoff import Backoff
from ..errors import AccessDeniedError, SharpenError, StoreError, StoreFileError, StoreUnavailableError
from .spool import Entry, Spool, key_of

log = logging.getLogger(__name__)


class Away(Exception):
    """The server gave no answer, or said that it cannot now; `kind` is the class of the error that it named."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class OtherStore(Away):
    """Another store answers at the address."""


class Sender(Protocol):
    """What reaches the server."""

    url: str
    store_id: str | None

    async def send_surely(self, request: Entry, seconds: float) -> bytes | None: ...
    async def send(self, request: Entry, store_id: str | None = None) -> bytes | None: ...


class Spooler:
    """Delivers finished work: to the server or, while that is away, to the spool and from there to the server."""

    def __init__(self, client: Sender, folder: Path, *, max_bytes: int, patience_seconds: float) -> None:
        self._client, self._folder, self._max_bytes = client, folder, max_bytes
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._own: Spool | None = None
        self._leftovers: list[Spool] = []
        self._adopted_for: str | None = None
        self._replaying: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        return sum(spool.count for spool in self._spools())

    def _spools(self) -> list[Spool]:
        return [*self._leftovers, *([self._own] if self._own else [])]

    async def deliver(self, request: Entry) -> bytes | None:
        """The server's answer, or None when the work lies safely in the spool."""
        if self._own is None or self._own.count == 0:
            try:
                return await self._client.send_surely(request, self._patience_seconds)
            except StoreUnavailableError as error:
                log.warning("%s; finished work is saved in %s until the server can be reached", error, self._folder)
        spool = self._spool()
        await asyncio.to_thread(spool.append, request)
        self._start_replay()
        return None

    def _spool(self) -> Spool:
        """The spool for the store that answered last; work for an earlier one stays in its own."""
        with self._lock:
            store_id = self._client.store_id
            if self._own is not None and self._own.store_id not in (None, store_id):
                self._leftovers.append(self._own)
                self._own = None
            if self._own is None:
                key = key_of(store_id, self._client.url)
                self._own = Spool(self._folder, key, max_bytes=self._max_bytes)
            return self._own

    def server_is_there(self) -> None:
        """Called after every answer: look once for what earlier workers left for this store."""
        client = self._client
        if self._adopted_for is None or (client.store_id is not None and self._adopted_for != client.store_id):
            self._adopted_for = client.store_id or client.url
            keys = {key_of(client.store_id, client.url), key_of(None, client.url)}
            self._leftovers += Spool.adopt_leftovers(self._folder, keys, max_bytes=self._max_bytes)
            if self._leftovers:
                log.info("sending %d spooled requests with finished work of earlier workers", self.count)
        if self._leftovers or (self._own is not None and self._own.count):
            self._start_replay()

    def _start_replay(self) -> None:
        """Replay in this loop, unless it goes on already; it may have ended with the loop of another thread."""
        with self._lock:
            task = self._replaying
            if task is None or task.done() or task.get_loop().is_closed():
                self._replaying = asyncio.get_running_loop().create_task(self._replay_until_done())

    async def _replay_until_done(self) -> None:
        backoff = Backoff(0.2, maximum=5.0, jitter=0.5)
        while self.count:
            try:
                await self._replay()
            except Away:
                await backoff.wait_async()

    async def _replay(self) -> None:
        """Send everything, leftovers of earlier workers first; what belongs to another store stays."""
        stays: OtherStore | None = None
        for spool in self._spools():
            try:
                await self._replay_spool(spool)
            except OtherStore as error:
                stays = error
        if stays is not None:
            raise stays

    async def _replay_spool(self, spool: Spool) -> None:
        sent = 0
        while not spool.drop_sent(sent):
            for entry in list(spool.entries(skip=sent)):
                await self._replay_one(spool, entry)
                sent += 1
        if spool in self._leftovers:
            self._leftovers.remove(spool)

    async def _replay_one(self, spool: Spool, entry: Entry) -> None:
        try:
            if not entry.verb:
                raise StoreError("the line is unreadable")
            await self._client.send(entry, spool.store_id)
        except (AccessDeniedError, StoreFileError) as error:
            raise Away(str(error)) from error
        except SharpenError as error:
            aside = spool.reject(entry, str(error))
            log.warning("the store refused spooled work, which was moved to %s: %s", aside, error)

    async def close(self) -> None:
        if self._replaying is not None:
            await _end(self._replaying)
        if self.count:
            try:
                await self._replay()
            except (Away, StoreError) as error:
                log.warning("%d spooled requests with finished work stay in %s: %s", self.count, self._folder, error)
        for spool in self._spools():
            spool.close()


async def _end(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end, also where it runs in the loop of another thread."""
    loop = task.get_loop()
    if loop is asyncio.get_running_loop():
        task.cancel()
        await asyncio.wait([task])
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_end(task), loop))
