"""Every store that keeps the contract, each with a clock that tests can move."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import sharpen.store as stores
from tests.store.internals import LocalStore

from .databases import Database, in_file, in_server
from .servers import Server

KEEPS_OBJECTS = ("memory", "threaded")
IN_SERVERS = tuple(
    pytest.param(kind, marks=pytest.mark.servers) for kind in ("postgres", "postgres-http", "redis", "redis-http")
)
WRITES_JSON = ("sqlite", "memory-http", "sqlite-http", *IN_SERVERS)
ALL_KINDS = ("memory", "sqlite", "memory-http", "sqlite-http", "threaded", *IN_SERVERS)


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class World:
    """A store as callers see it, the local store behind it, and the clock of that one."""

    kind: str
    store: stores.LightningStore
    inner: LocalStore
    clock: Clock

    def pass_time(self, seconds: float) -> None:
        """Let time pass and apply what it brings."""
        self.clock.advance(seconds)
        self.inner.expire()


class Ground:
    """Where stores can be opened: a folder, and servers that start when the first one is opened in them."""

    def __init__(self, folder: Path, server: Callable[[str], Server]) -> None:
        self._folder = folder
        self._server = server
        self._databases: list[Database] = []

    def database(self, kind: str) -> Database:
        """A database of this kind, without anything in it."""
        name = kind.removesuffix("-http")
        self._databases.append(in_file(self._folder) if name == "sqlite" else in_server(self._server(name)))
        return self._databases[-1]

    def give_back(self) -> None:
        """All stores are closed."""
        for database in self._databases:
            database.give_back()

    def open_store(self, kind: str, clock: Callable[[], float]) -> LocalStore:
        """An empty store of this kind, without what may stand before it."""
        if kind.startswith(("memory", "threaded")):
            return stores.InMemoryLightningStore(clock=clock)
        return self.database(kind).open(clock=clock)


@asynccontextmanager
async def open_world(kind: str, ground: Ground, clock: Callable[[], float]) -> AsyncIterator[World]:
    """Open one kind of store; close all of its parts in order."""
    inner = ground.open_store(kind, clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(inner.close)
        store: stores.LightningStore = inner
        if kind.endswith("-http"):
            server = stores.LightningStoreServer(inner)
            await server.start()
            stack.push_async_callback(server.stop)
            store = stores.LightningStoreClient(server.endpoint)
            stack.push_async_callback(store.close)
        elif kind == "threaded":
            store = stores.LightningStoreThreaded(inner)
        yield World(kind, store, inner, clock)
