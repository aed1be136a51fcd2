"""One fixture for every kind of store: the contract is tested through them."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sharpen.store import LightningStore

from .worlds import ALL_KINDS, KEEPS_OBJECTS, WRITES_JSON, Clock, World, open_world


@pytest.fixture(params=ALL_KINDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Any store, with a clock that the test moves."""
    async with open_world(request.param, tmp_path, Clock()) as opened:
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
async def live_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LightningStore]:
    """Any store, on the clock of the machine."""
    async with open_world(request.param, tmp_path, time.time) as opened:
        yield opened.store


@pytest.fixture(params=WRITES_JSON)
async def json_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LightningStore]:
    """A durable or remote store: what it takes is written as JSON."""
    async with open_world(request.param, tmp_path, Clock()) as opened:
        yield opened.store


@pytest.fixture(params=KEEPS_OBJECTS)
async def object_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LightningStore]:
    """A store in this process: what it takes is kept as it is."""
    async with open_world(request.param, tmp_path, Clock()) as opened:
        yield opened.store
