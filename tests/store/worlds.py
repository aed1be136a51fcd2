"""Every store that keeps the contract, each with a clock that tests can move."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import sharpen.store as stores

KEEPS_OBJECTS = ("memory", "threaded")
WRITES_JSON = ("sqlite", "memory-http", "sqlite-http")
ALL_KINDS = ("memory", "sqlite", "memory-http", "sqlite-http", "threaded")


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
    inner: "stores.InMemoryLightningStore | stores.SQLiteStore"
    clock: Clock

    def pass_time(self, seconds: float) -> None:
        """Let time pass and apply what it brings."""
        self.clock.advance(seconds)
        self.inner.expire()


@asynccontextmanager
async def open_world(kind: str, folder: Path, clock: Callable[[], float]) -> AsyncIterator[World]:
    """Open one kind of store; close all of its parts in order."""
    if kind.startswith("sqlite"):
        inner = stores.SQLiteStore(folder / "store.db", clock=clock)
    else:
        inner = stores.InMemoryLightningStore(clock=clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(inner.close)
        store = inner
        if kind.endswith("-http"):
            server = stores.LightningStoreServer(inner)
            await server.start()
            stack.push_async_callback(server.stop)
            store = stores.LightningStoreClient(server.endpoint)
            stack.push_async_callback(store.close)
        elif kind == "threaded":
            store = stores.LightningStoreThreaded(inner)
        yield World(kind, store, inner, clock)
