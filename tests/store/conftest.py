"""One fixture for every kind of store: the contract is tested through them."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sharpen.store import LightningStore

from .servers import PostgresServer, RedisServer, postgres_server, redis_server
from .worlds import ALL_KINDS, KEEPS_OBJECTS, WRITES_JSON, Clock, Ground, World, open_world


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests of this process. Who kills it takes one of its own: `postgres_server()`."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A Redis server for all tests of this process. Who kills it takes one of its own: `redis_server()`."""
    with redis_server() as server:
        yield server


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    """Where any kind of store can be opened."""
    opened = Ground(tmp_path, request.getfixturevalue)
    yield opened
    opened.give_back()


@pytest.fixture(params=ALL_KINDS)
async def world(request: pytest.FixtureRequest, ground: Ground) -> AsyncIterator[World]:
    """Any store, with a clock that the test moves."""
    async with open_world(request.param, ground, Clock()) as opened:
        yield opened


@pytest.fixture
def store(world: World) -> LightningStore:
    """Any store."""
    return world.store


@pytest.fixture
def clock(world: World) -> Clock:
    """The clock of the store."""
    return world.clock


@pytest.fixture(params=ALL_KINDS)
async def live_store(request: pytest.FixtureRequest, ground: Ground) -> AsyncIterator[LightningStore]:
    """Any store, on the clock of the machine."""
    async with open_world(request.param, ground, time.time) as opened:
        yield opened.store


@pytest.fixture(params=WRITES_JSON)
async def json_store(request: pytest.FixtureRequest, ground: Ground) -> AsyncIterator[LightningStore]:
    """A durable or remote store: what it takes is written as JSON."""
    async with open_world(request.param, ground, Clock()) as opened:
        yield opened.store


@pytest.fixture(params=KEEPS_OBJECTS)
async def object_store(request: pytest.FixtureRequest, ground: Ground) -> AsyncIterator[LightningStore]:
    """A store in this process: what it takes is kept as it is."""
    async with open_world(request.param, ground, Clock()) as opened:
        yield opened.store
