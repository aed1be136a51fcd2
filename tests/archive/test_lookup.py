"""Stores and rollouts by what a user calls them."""

import asyncio
from pathlib import Path

import pytest

from sharpen.errors import AccessDeniedError, ConfigError, InvalidInputError, StoreError, UnknownIdError
from sharpen.runs import RunFolder
from sharpen.store import InMemoryLightningStore, LightningStoreServer, SQLiteStore
from sharpen.types import EnqueueRolloutRequest, Rollout
from tests.archive.internals import RunEntry, open_store, task_group, with_live_rollouts

from .run_scenes import write_lines


async def make_run(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"algorithm": "none"}')
    store = SQLiteStore(folder / "store.db")
    await store.enqueue_rollout(name, rollout_id=f"ro-{name}")
    await store.close()
    return folder


async def only_task(text: str | None) -> object:
    async with open_store(text) as opened:
        return (await opened.store.query_rollouts())[0].input


async def test_a_run_is_opened_by_its_name_its_folder_or_its_file(runs: Path) -> None:
    folder = await make_run(runs, "20260101-120000-first")
    for text in (folder.name, "first", str(folder), str(folder / "store.db"), f"sqlite:///{folder / 'store.db'}"):
        assert await only_task(text) == folder.name


async def test_without_a_name_the_newest_run_is_opened(runs: Path) -> None:
    await make_run(runs, "20260101-120000-first")
    newest = await make_run(runs, "20260202-120000-second")
    assert await only_task(None) == await only_task("last") == newest.name
    opened = open_store("last")
    assert (opened.label, opened.run and opened.run.name) == (newest.name, newest.name)


async def test_a_store_is_opened_for_reading_alone(runs: Path) -> None:
    folder = await make_run(runs, "one")
    before = (folder / "store.db").read_bytes()
    async with open_store(str(folder)) as opened:
        with pytest.raises(StoreError):
            await opened.store.enqueue_rollout("more")
    assert (folder / "store.db").read_bytes() == before
    async with open_store(str(folder), read_only=False) as opened:
        await opened.store.enqueue_rollout("more")


async def test_a_server_is_opened_by_its_address_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LightningStoreServer(InMemoryLightningStore(), token="secret")
    await server.start()
    try:
        await server.enqueue_rollout("served")
        monkeypatch.delenv("SHARPEN_TOKEN", raising=False)
        with pytest.raises(AccessDeniedError):
            await only_task(server.endpoint)
        monkeypatch.setenv("SHARPEN_TOKEN", "secret")
        assert await only_task(server.endpoint) == "served"
        async with open_store(server.endpoint, token="secret") as opened:
            assert (opened.label, opened.path, opened.run) == (server.endpoint, None, None)
    finally:
        await server.close()


async def test_what_is_not_there_is_named(runs: Path, tmp_path: Path) -> None:
    await make_run(runs, "20260101-120000-first")
    with pytest.raises(UnknownIdError):
        open_store("fist")
    with pytest.raises(UnknownIdError):
        open_store(f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(InvalidInputError):
        open_store(" ")
    text = tmp_path / "notes.txt"
    text.write_text("hello, this is no store")
    with pytest.raises(InvalidInputError):
        open_store(str(text))


async def test_a_run_without_a_store_says_where_its_rollouts_may_be(runs: Path) -> None:
    folder = runs / "memory"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    with pytest.raises(UnknownIdError):
        open_store("memory")


async def test_a_store_that_is_not_open_cannot_be_used(runs: Path) -> None:
    await make_run(runs, "one")
    with pytest.raises(ConfigError):
        _ = open_store("one").store


# -- groups ----------------------------------------------------------------------------------------


async def enqueued(store: InMemoryLightningStore, *tasks: object, group: str | None = None) -> list[Rollout]:
    metadata = None if group is None else {"group": group}
    return await store.enqueue_many_rollouts([EnqueueRolloutRequest(task, metadata=metadata) for task in tasks])


async def test_a_group_is_what_its_algorithm_called_one() -> None:
    store = InMemoryLightningStore()
    first = await enqueued(store, "a", "b", group="g-1")
    await enqueued(store, "a", "b", group="g-2")
    found = await task_group(store, first[0])
    assert {each.rollout_id for each in found} == {each.rollout_id for each in first}


async def test_without_groups_rollouts_of_the_same_task_stand_together() -> None:
    store = InMemoryLightningStore()
    wanted = [(await enqueued(store, {"question": number % 3}))[0] for number in range(9)]
    found = await task_group(store, wanted[4])
    assert [each.rollout_id for each in found] == [wanted[number].rollout_id for number in (1, 4, 7)]


async def test_a_large_group_is_cut_to_those_nearest() -> None:
    now = [0.0]
    store = InMemoryLightningStore(clock=lambda: now[0])
    made = []
    for number in range(40):
        now[0] = float(number)
        made += await enqueued(store, "task")
    found = await task_group(store, made[20], limit=5)
    assert [each.start_time for each in found] == [18, 19, 20, 21, 22]


async def test_a_rollout_alone_is_its_own_group() -> None:
    store = InMemoryLightningStore()
    [only] = await enqueued(store, "task")
    assert [each.rollout_id for each in await task_group(store, only)] == [only.rollout_id]


# -- running runs ----------------------------------------------------------------------------------


async def _work(path: Path) -> SQLiteStore:
    store = SQLiteStore(path)
    for number in range(3):
        rollout = await store.start_rollout(number)
        if number:
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    return store


def test_the_count_of_a_run_that_works_is_of_its_store_and_not_behind(tmp_path: Path) -> None:
    async def count() -> int | None:
        folder = RunFolder.create("busy", root=tmp_path)
        folder.write_config({"components": {}})
        write_lines(folder.path / "metrics.jsonl", [{"time": 1.0, "rollouts": 0}])
        store = await _work(folder.store_path)
        entry = RunEntry.of(folder.path)
        assert (entry.state, entry.rollouts) == ("running", 0)  # its metrics are behind
        found = await with_live_rollouts(entry)
        await store.close()
        folder.release()
        ended = RunEntry.of(folder.path)
        assert await with_live_rollouts(ended) == ended  # its result has the number
        return found.rollouts

    assert asyncio.run(count()) == 2


def test_a_count_that_nobody_knows_is_none(tmp_path: Path) -> None:
    folder = RunFolder.create("in-memory", root=tmp_path)
    folder.write_config({"components": {}})
    write_lines(folder.path / "metrics.jsonl", [{"time": 1.0, "rollouts": 0}])
    assert asyncio.run(with_live_rollouts(RunEntry.of(folder.path))).rollouts is None
    folder.release()
