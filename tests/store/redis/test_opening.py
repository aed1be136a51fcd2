"""The start of a store in Redis: what it says, what it refuses, and in which words."""

import asyncio
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest
import redis as client

from sharpen import RedisLightningStore
from sharpen.errors import InvalidInputError, StoreError, StoreFileError, StoreUnavailableError, StoreWriteError
from tests.errors import raises
from tests.store.internals import open_url

from ..processes import free_port
from ..servers import RedisServer, find_program, redis_server
from .old_server import old_server

pytestmark = pytest.mark.servers


@contextmanager
def server_with(**settings: str) -> Iterator[RedisServer]:
    """A server of our own, with these settings."""
    find_program("redis-server", variable="REDIS_BIN")
    server = RedisServer()
    server.settings = {**server.settings, **{name.replace("_", "-"): value for name, value in settings.items()}}
    try:
        server.start()
        yield server
    finally:
        server.remove()


async def words_of(url: str, caplog: pytest.LogCaptureFixture) -> tuple[str, list[str]]:
    """What the store says of crashes, and what it warned of at its start."""
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="sharpen"):
        store = RedisLightningStore(url, prefix="words")
    await store.close()
    return store.durability, [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_without_a_log_it_warns_that_a_crash_loses_everything(caplog):
    with redis_server(appendonly=False) as server:
        words, warnings = await words_of(server.url(), caplog)
    assert warnings == [words]
    assert all(each in words for each in ("appendonly no", "snapshot", "--appendonly yes"))
    assert server.password not in words


async def test_it_says_what_each_way_of_logging_would_lose(redis, caplog):
    settings = client.Redis.from_url(redis.url())
    words, warnings = await words_of(redis.url(), caplog)
    assert ("appendfsync always" in words, warnings) == (True, [])
    try:
        settings.config_set("appendfsync", "everysec")
        words, warnings = await words_of(redis.url(), caplog)
        assert ("appendfsync everysec" in words, "one second" in words, warnings) == (True, True, [])
        settings.config_set("appendfsync", "no")
        words, warnings = await words_of(redis.url(), caplog)
        assert all(each in words for each in ("appendfsync no", "30 seconds"))
        assert warnings == [words]
    finally:
        settings.config_set("appendfsync", "always")
        settings.close()


async def test_it_warns_of_a_server_that_deletes_keys_when_it_is_full(caplog):
    with server_with(maxmemory="100mb", maxmemory_policy="allkeys-lru") as server:
        words, warnings = await words_of(server.url(), caplog)
    assert warnings == [words]
    assert "maxmemory-policy allkeys-lru" in words


async def test_where_the_settings_are_hidden_it_says_that_too(caplog):
    with server_with(rename_command='CONFIG ""') as server:
        words, warnings = await words_of(server.url(), caplog)
    assert warnings == [words]
    assert "CONFIG GET" in words


async def test_a_server_without_scripts_is_refused():
    with server_with(rename_command='SCRIPT ""') as server, pytest.raises(StoreError):
        RedisLightningStore(server.url())


async def test_a_user_who_may_not_do_everything_is_refused_before_anything_is_written():
    with redis_server() as server, client.Redis.from_url(server.url()) as admin:
        everything = ["+@all", "~{sharpen}:*", "&{sharpen}:*"]
        refused = {"UNLINK": [*everything, "-unlink"], "PUBLISH": [*everything, "resetchannels"]}
        refused |= {"SUBSCRIBE": [*everything, "-subscribe"]}
        for command, rules in refused.items():
            admin.execute_command("ACL", "SETUSER", command, "reset", "on", ">pass", *rules)
            with raises(StoreError, command):
                RedisLightningStore(f"redis://{command}:pass@127.0.0.1:{server.port}/0")
        assert admin.exists("{sharpen}:meta") == 0
        admin.execute_command("ACL", "SETUSER", "enough", "reset", "on", ">pass", *everything)
        store = RedisLightningStore(f"redis://enough:pass@127.0.0.1:{server.port}/0")
        await store.enqueue_rollout("task")
        assert (await store.dequeue_rollout(wait_seconds=1)).input == "task"
        await store.close()


async def test_an_old_server_is_refused():
    async with old_server() as url:
        with raises(StoreError, "5.0.7", 6.2):
            await asyncio.to_thread(RedisLightningStore, url)


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "", None, "redis://h:port/0"])
def test_a_wrong_address_is_named(url):
    with raises(InvalidInputError, "Redis URL"):
        RedisLightningStore(url)


def test_a_wrong_address_shows_no_password():
    for url in ("http://me:hidden@localhost", "me:hidden@localhost", "hidden@localhost", "redis://me:hidden@h:port/0"):
        with raises(InvalidInputError, "Redis URL") as refused:
            RedisLightningStore(url)
        assert "hidden" not in repr(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hun/ter2@localhost:6379/0",
        "redis://:123/ter2@localhost:6379/0",
        "redis://:hun#ter2@localhost:6379/0",
        "redis://:hun?ter2@localhost:6379/0",
        "redis://:hun?ter2=1@localhost:6379/0",
        "redis://:hun[ter2@localhost:6379/0",
        "redis://:hun\u2100ter2@localhost:6379/0",
        "redis://me:hun@ter2/more@localhost:6379/0",
        "redis://:hunter2/0",
        "rediss://:hun/ter2@localhost:6379/0",
        "unix://:hun/ter2@/run/redis.sock",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("open_it", [RedisLightningStore, open_url])
def test_a_password_that_cuts_the_address_in_two_is_not_shown(url, open_it):
    with raises(InvalidInputError, "%2F") as refused:
        open_it(url)
    shown = "".join(traceback.format_exception(refused.value)).rpartition("InvalidInputError")[2]
    assert not any(part in shown for part in ("hun", "ter2", "123"))


@pytest.mark.parametrize("url", ["redis://:{}@127.0.0.1:{}/0", "REDIS://:{}@127.0.0.1:{}/0"])
async def test_signs_of_a_password_may_be_written_in_the_way_of_urls(url):
    with redis_server() as server, client.Redis.from_url(server.url()) as admin:
        admin.config_set("requirepass", "a/b?c#d[e@f")
        store = RedisLightningStore(url.format("a%2Fb%3Fc%23d%5Be%40f", server.port))
        await store.enqueue_rollout("task")
        await store.close()


async def test_the_path_of_a_socket_may_hold_an_at_sign():
    with TemporaryDirectory(prefix="sharpen@") as folder, server_with(unixsocket=f"{folder}/redis.sock") as server:
        store = RedisLightningStore(f"unix://:{server.password}@{folder}/redis.sock")
        await store.enqueue_rollout("task")
        assert repr(store) == f"RedisLightningStore('unix://{folder}/redis.sock', prefix='sharpen')"
        await store.close()


def test_a_server_that_is_not_there_is_named_after_a_while():
    port = free_port()
    with raises(StoreUnavailableError, f"redis://127.0.0.1:{port}/0"):
        RedisLightningStore(f"redis://127.0.0.1:{port}/0", busy_seconds=0.2)


@pytest.mark.parametrize("address", ["redis://:wr0ng-secret@{}/0", "redis://{}/0?password=wr0ng-secret"])
def test_a_wrong_password_is_refused_and_never_shown(redis, caplog, address):
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError) as refused:
        RedisLightningStore(address.format(f"127.0.0.1:{redis.port}"))
    assert "wr0ng-secret" not in f"{refused.value!r} {caplog.text}"


async def test_the_password_stands_in_no_message(redis):
    store = RedisLightningStore(redis.url(), prefix=redis.new_prefix())
    await store.close()
    with pytest.raises(StoreError) as closed:
        await store.enqueue_rollout("task")
    assert redis.password not in f"{store!r} {store.durability} {closed.value!r} {store._connection.address!r}"


@pytest.mark.parametrize("prefix", ["", "a b", "a{b", "a}b", "x" * 101, None])
def test_a_prefix_that_could_not_be_told_apart_is_refused(redis, prefix):
    with raises(InvalidInputError, "prefix"):
        RedisLightningStore(redis.url(), prefix=prefix)


async def test_stores_with_different_prefixes_know_nothing_of_each_other(redis):
    prefix = redis.new_prefix()
    one = RedisLightningStore(redis.url(), prefix=prefix)
    other = RedisLightningStore(redis.url(), prefix=f"{prefix}:r")
    assert one.store_id != other.store_id
    rollout = await one.enqueue_rollout("task")
    assert await other.get_rollout_by_id(rollout.rollout_id) is None
    assert await other.dequeue_rollout() is None
    assert (await other.statistics())["total_rollouts"] == 0
    await one.close()
    await other.close()


async def test_a_prefix_that_holds_something_else_is_refused(redis):
    prefix, foreign = redis.new_prefix(), client.Redis.from_url(redis.url())
    foreign.set(f"{{{prefix}}}:meta", "mine")
    with pytest.raises(StoreFileError):
        RedisLightningStore(redis.url(), prefix=prefix)
    assert foreign.get(f"{{{prefix}}}:meta") == b"mine"
    foreign.close()


async def test_a_store_of_a_newer_version_is_refused(redis):
    prefix, newer = redis.new_prefix(), client.Redis.from_url(redis.url())
    newer.hset(f"{{{prefix}}}:meta", mapping={"layout": 2, "store_id": "st-new"})
    with raises(StoreFileError, 2, 1):
        RedisLightningStore(redis.url(), prefix=prefix)
    newer.close()


async def test_a_store_that_is_only_read_changes_nothing(redis):
    prefix, looking = redis.new_prefix(), client.Redis.from_url(redis.url())
    with pytest.raises(StoreFileError):
        RedisLightningStore(redis.url(), prefix=prefix, read_only=True)
    assert list(looking.scan_iter(f"*{prefix}*")) == []
    looking.close()
    store = RedisLightningStore(redis.url(), prefix=prefix)
    rollout = await store.enqueue_rollout("task")
    reader = RedisLightningStore(redis.url(), prefix=prefix, read_only=True)
    assert (reader.is_read_only, reader.store_id) == (True, store.store_id)
    assert (await reader.get_rollout_by_id(rollout.rollout_id)).input == "task"
    for write in (reader.enqueue_rollout("more"), reader.dequeue_rollout(), reader.prune(0)):
        with pytest.raises(StoreWriteError):
            await write
    await reader.close()
    await store.close()
