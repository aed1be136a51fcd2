"""Stores that an earlier version filled: everything is read as it was written, and work goes on where it was."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sharpen import (
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
    PostgresStore,
    PromptTemplate,
    RedisLightningStore,
    Span,
    SQLiteStore,
)
from tests.store.servers import PostgresServer, RedisServer, postgres_server, redis_server

from . import databases, store_content
from .packed import Packed
from .reading import Command, as_recorded
from .store_content import LEASED_ID

Open = Callable[..., LightningStore]


@dataclass
class Kept:
    """A store that was filled: how to open it, its address, and what was recorded of it."""

    open: Open
    address: str
    content: store_content.Content


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["sqlite", *(pytest.param(kind, marks=pytest.mark.servers) for kind in ("postgres", "redis"))])
def kept(request: pytest.FixtureRequest, packed: Packed, tmp_path: Path) -> Kept:
    if request.param == "sqlite":
        path = packed.unpack("sqlite", tmp_path) / "store.db"
        return Kept(partial(SQLiteStore, path), str(path), packed.recorded("sqlite"))
    server = request.getfixturevalue(request.param)
    if request.param == "postgres":
        databases.load_postgres(server, packed.text("postgres.sql"))
        url = databases.postgres_url(server)
        return Kept(partial(PostgresStore, url), url, packed.recorded("postgres"))
    databases.load_redis(server, packed.recorded("redis-dump"))
    open_store = partial(RedisLightningStore, server.url(), prefix=databases.PREFIX)
    return Kept(open_store, databases.redis_url(server), packed.recorded("redis"))


async def test_everything_is_read_as_it_was_written(kept: Kept) -> None:
    store = kept.open(read_only=True)  # as it was left: a store that is written to ends the lease that ran out
    found = await store_content.read(store)
    await store.close()
    for part, recorded in kept.content.items():
        assert as_recorded(found[part], recorded) == recorded, part


def test_the_command_line_reads_it(kept: Kept, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_ADDRESS", kept.address)  # a password is not for the list of processes
    where = ["--store", kept.address if kept.address.startswith("/") else "env:STORE_ADDRESS"]
    listed = command("rollouts", "list", "--limit", "0", "--order", "oldest", *where)["rollouts"]
    recorded = {each["rollout_id"]: each for each in kept.content["rollouts"]}
    assert [each["rollout_id"] for each in listed] == list(recorded)
    for each in listed:
        plain = recorded[each["rollout_id"]]
        assert as_recorded(each, plain) == plain
    shown = command("rollouts", "show", "ro-long", "--spans", *where)
    assert as_recorded(shown["spans"], kept.content["spans"]["ro-long"]) == kept.content["spans"]["ro-long"]
    assert as_recorded(shown["attempts"], kept.content["attempts"]["ro-long"]) == kept.content["attempts"]["ro-long"]


async def test_a_server_serves_it(kept: Kept) -> None:
    store = kept.open(read_only=True)
    server = LightningStoreServer(store, port=0)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    found = await store_content.read(client)
    await client.close()
    await server.stop()
    await store.close()
    for part, recorded in kept.content.items():
        assert as_recorded(found[part], recorded) == recorded, part


async def test_work_goes_on_where_it_was(kept: Kept) -> None:
    store = kept.open()
    content = kept.content
    await _finish_what_was_running(store, content)
    claimed = [await store.dequeue_rollout("w-new", wait_seconds=60) for _ in range(len(content["queue"]) + 1)]
    # The rollout whose lease ran out comes last: this is found out only now.
    assert [each.rollout_id for each in claimed if each] == [*content["queue"], LEASED_ID]
    for each in claimed:
        assert each is not None
        before = content["attempts"][each.rollout_id]
        assert each.attempt.sequence_id == len(before) + 1
        await store.complete_attempt(each.rollout_id, each.attempt.attempt_id, reward=1.0)
    finished = await store.finished_rollouts(after=content["finished_cursor"])
    assert [each.rollout_id for each in finished.items] == ["ro-running", *content["queue"], LEASED_ID]
    assert finished.cursor == content["finished_cursor"] + len(finished.items)
    await store.close()
    again = kept.open(read_only=True)
    assert (await again.statistics())["queue_length"] == 0
    assert (await again.statistics())["total_rollouts"] == content["statistics"]["total_rollouts"]
    await again.close()


async def _finish_what_was_running(store: LightningStore, content: store_content.Content) -> None:
    (attempt,) = content["attempts"]["ro-running"]
    ids = {"rollout_id": "ro-running", "attempt_id": attempt["attempt_id"]}
    last = max(each["sequence_id"] for each in content["spans"]["ro-running"])
    assert await store.get_next_span_sequence_id(**ids) > last
    span = await store.add_span(Span.from_attributes(attributes={"long": store_content.LONG_TEXT}, name="more", **ids))
    assert span is not None
    assert span.sequence_id > last
    await store.complete_attempt(**ids, reward=0.5)


async def test_what_was_asked_before_is_not_done_twice(kept: Kept) -> None:
    store, content = kept.open(), kept.content
    again = await store.enqueue_rollout("another task", rollout_id="ro-plain")
    assert again.input == content["rollouts"][1]["input"]
    claimed = await store.dequeue_rollout("w-2", request_id=f"{store_content.CLAIM_REQUEST}-ro-preparing")
    assert claimed is not None
    assert claimed.attempt.attempt_id == content["attempts"]["ro-preparing"][0]["attempt_id"]
    prompt = {"prompt": PromptTemplate("newer {question}")}
    repeated = await store.update_resources("prompts", prompt, store_content.RESOURCES_REQUEST)
    assert (repeated.version, repeated.resources) != (4, prompt)
    assert (await store.update_resources("prompts", prompt)).version == 4
    recorded = content["spans"]["ro-plain"][0]
    span = next(each for each in await store.query_spans("ro-plain") if each.span_id == recorded["span_id"])
    assert await store.add_span(span) is None
    statistics: dict[str, Any] = dict(await store.statistics())
    assert statistics["total_rollouts"] == content["statistics"]["total_rollouts"]
    assert statistics["total_spans"] == content["statistics"]["total_spans"]
    await store.close()


async def test_old_rollouts_can_be_pruned(kept: Kept) -> None:
    store, content = kept.open(), kept.content
    assert await store.prune(older_than=0) == len(content["finished"])
    left = {each["rollout_id"] for each in content["rollouts"]} - set(content["finished"])
    assert {each.rollout_id for each in await store.query_rollouts()} == left
    assert list(await store.query_spans("ro-long")) == []
    await store.close()


async def test_finished_work_in_a_spool_reaches_the_store(
    packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recorded = packed.unpack("spool", tmp_path), packed.recorded("spool")
    monkeypatch.setenv("SHARPEN_SPOOL", str(folder / "spool"))
    assert list((folder / "spool").glob("*.spool"))
    store = SQLiteStore(folder / "store.db")
    server = LightningStoreServer(store, port=0)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    await client.statistics()  # the first answer of the server lets the client send what is spooled
    (rollout,) = await client.wait_for_rollouts(rollout_ids=[recorded["rollout_id"]], timeout=60)
    assert (rollout.status, rollout.reward) == ("succeeded", 0.5)
    (attempt,) = await store.query_attempts(recorded["rollout_id"])
    assert (attempt.attempt_id, attempt.metadata) == (recorded["attempt_id"], {"seconds": 1.5})
    spans = await store.query_spans(recorded["rollout_id"])
    assert [each.name for each in spans] == ["span-0", "span-1", "span-2"]
    assert [each.attributes for each in spans] == [{"number": number, "text": "größe"} for number in range(3)]
    await client.close()
    await server.stop()
    await store.close()
    assert not list((folder / "spool").glob("*.spool"))
