"""Opening a store by what a user calls it."""

from pathlib import Path

import pytest

from sharpen.errors import AccessDeniedError, ConfigError, InvalidInputError, StoreError, UnknownIdError
from sharpen.store import InMemoryLightningStore, LightningStoreServer, SQLiteStore
from tests.archive.internals import open_store


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
