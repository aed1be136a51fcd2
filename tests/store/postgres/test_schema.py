"""The schema moves forward under everybody's hands, and nothing foreign or newer is touched."""

import asyncio

import pytest

from sharpen.errors import StoreError, StoreFileError
from sharpen.store import PostgresStore
from tests.errors import raises
from tests.store.internals import MIGRATIONS

from ..scenes import finish_new
from ..servers import PostgresServer
from .claimer import Claimer

pytestmark = pytest.mark.servers


def make_old(server: PostgresServer, schema: str) -> None:
    """Take a store back to version 1."""
    for index in ("rollouts_reward", "rollouts_group", "rollouts_lost"):
        server.execute(f"DROP INDEX {schema}.{index}")
    server.execute(f"UPDATE {schema}.meta SET value = '1' WHERE name = 'version'")


def version_of(server: PostgresServer, schema: str) -> str:
    ((version,),) = server.execute(f"SELECT value FROM {schema}.meta WHERE name = 'version'")
    return str(version)


async def test_an_older_schema_is_brought_forward_with_all_it_holds(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    store = PostgresStore(postgres.url(schema))
    finished = await finish_new(store, reward=0.5)
    store_id = store.store_id
    await store.close()
    make_old(postgres, schema)
    reading = PostgresStore(postgres.url(schema), read_only=True)
    assert [each.rollout_id for each in (await reading.search_rollouts(reward_min=0.1)).items] == [finished.rollout_id]
    await reading.close()
    assert version_of(postgres, schema) == "1"
    store = PostgresStore(postgres.url(schema))
    assert store.store_id == store_id
    assert [each.rollout_id for each in (await store.search_rollouts(reward_min=0.1)).items] == [finished.rollout_id]
    assert version_of(postgres, schema) == str(len(MIGRATIONS))
    await store.close()


@pytest.mark.parametrize("is_old", [False, True])
async def test_processes_that_open_a_schema_at_once_get_one_store(postgres: PostgresServer, is_old: bool) -> None:
    schema = postgres.new_schema()
    if is_old:
        await PostgresStore(postgres.url(schema)).close()
        make_old(postgres, schema)
    claimers = [Claimer(postgres.url(schema)) for _ in range(3)]
    assert len(set(await asyncio.gather(*(claimer.opened() for claimer in claimers)))) == 1
    assert await asyncio.gather(*(claimer.go() for claimer in claimers)) == [[], [], []]
    assert version_of(postgres, schema) == str(len(MIGRATIONS))


async def test_a_newer_schema_is_refused(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    await PostgresStore(postgres.url(schema)).close()
    postgres.execute(f"UPDATE {schema}.meta SET value = '99' WHERE name = 'version'")
    for read_only in (False, True):
        with raises(StoreFileError, 99):
            PostgresStore(postgres.url(schema), read_only=read_only)


async def test_tables_of_another_program_are_left_alone(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    postgres.execute(f"CREATE TABLE {schema}.workers (name text)")
    with pytest.raises(StoreFileError):
        PostgresStore(postgres.url(schema))
    assert postgres.execute(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'") == [(1,)]


async def test_a_schema_that_is_not_there_is_named(postgres: PostgresServer) -> None:
    with raises(StoreError, "nowhere", "CREATE", "SCHEMA"):
        PostgresStore(postgres.url("nowhere"))


async def test_an_empty_schema_is_no_store_to_read(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    with pytest.raises(StoreFileError):
        PostgresStore(postgres.url(schema), read_only=True)
    assert postgres.execute(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'") == [(0,)]
