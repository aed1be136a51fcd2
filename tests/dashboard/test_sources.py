"""Where the runs on the pages come from."""

import shutil
from pathlib import Path

import pytest

from sharpen.errors import StoreError, StoreWriteError, UnknownIdError
from sharpen.store import InMemoryLightningStore, SQLiteStore
from tests.dashboard.internals import RunSource, RunsSource, StoreSource, make_app, source_of, sources
from tests.errors import raises

from .asgi_client import ask
from .made_runs import fill


async def test_stores_of_runs_are_kept_open_for_reading_only(source: RunsSource, runs_folder: Path) -> None:
    before = (runs_folder / "first" / "store.db").read_bytes()
    store = await source.store("first")
    assert await source.store("first") is store
    assert (await store.statistics())["total_rollouts"] == 6
    with pytest.raises(StoreWriteError):
        await store.enqueue_rollout("task")
    assert (runs_folder / "first" / "store.db").read_bytes() == before


@pytest.mark.parametrize("name", ["..", ".", "", "../runs", "/etc", "nothing", "first/..", "%2e%2e"])
async def test_nothing_beyond_the_folder_is_reached(source: RunsSource, name: str) -> None:
    with pytest.raises(UnknownIdError):
        source.entry(name)
    with pytest.raises(UnknownIdError):
        await source.store(name)


async def test_stores_that_nobody_asks_for_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_OPEN", 2)
    monkeypatch.setattr(sources, "UNUSED_SECONDS", -1.0)
    source = RunsSource(tmp_path)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        await fill(tmp_path / name / "store.db", 1)
        await source.store(name)
    assert len(source._stores._open) == 1
    await source.close()
    assert not source._stores._open


async def test_a_store_in_use_is_closed_only_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_OPEN", 1)
    monkeypatch.setattr(sources, "UNUSED_SECONDS", -1.0)
    source = RunsSource(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        await fill(tmp_path / name / "store.db", 2)
    store = await source.store("a")
    async with source.in_use(store):
        await source.store("b")
        assert (await store.statistics())["total_rollouts"] == 2
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "a").mkdir()
        await fill(tmp_path / "a" / "store.db", 3)
        assert (await (await source.store("a")).statistics())["total_rollouts"] == 3
        await store.query_rollouts()
    with pytest.raises(StoreError):
        await store.query_rollouts()
    await source.close()


async def test_a_run_that_was_made_anew_under_its_name_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "store.db"
    await fill(path, 2)
    writer = SQLiteStore(path)
    await writer.enqueue_rollout("one more")
    source = RunsSource(tmp_path)
    assert (await (await source.store("run")).statistics())["total_rollouts"] == 3
    await writer.close()
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    await fill(path, 5)
    assert (await (await source.store("run")).statistics())["total_rollouts"] == 5
    shutil.rmtree(path.parent)
    with pytest.raises(UnknownIdError):
        await source.store("run")
    await source.close()


async def test_a_store_without_a_folder_shows_no_files_of_the_working_folder(
    runs_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs_folder / "first")
    source = StoreSource(InMemoryLightningStore(), "other")
    entry = source.entry("other")
    assert (entry.log_path, entry.config(), entry.prompt_folders(), entry.metrics_path) == (None, {}, [], None)
    app = make_app(source, view_token=None, edit_token=None)
    page = (await ask(app, "/runs/other")).text
    assert "calculator" not in page
    assert "<dt>folder</dt>" not in page
    assert "it begins" not in (await ask(app, "/runs/other/log")).text
    for name in ("episodes", "prompts"):
        assert (await ask(app, f"/runs/other/{name}")).status == 404


async def test_a_run_of_its_own_is_found_by_its_name_only(runs_folder: Path) -> None:
    source = RunSource(runs_folder / "first")
    assert [run.name for run in source.runs()] == ["first"]
    assert source.metrics_path("first") == runs_folder / "first" / "metrics.jsonl"
    with raises(UnknownIdError, "first"):
        source.entry("second")


async def test_an_open_store_is_shown_before_its_run_wrote_anything(tmp_path: Path) -> None:
    store = InMemoryLightningStore()
    source = StoreSource(store, "http://x/y", tmp_path)
    entry = source.runs()[0]
    assert (entry.name, entry.state, entry.has_store) == ("http:--x-y", "running", True)
    assert await source.store(entry.name) is store
    await source.close()
    await store.enqueue_rollout("still open")


def test_a_path_tells_what_is_meant(runs_folder: Path) -> None:
    assert not source_of(runs_folder).is_single
    assert source_of(runs_folder / "first").is_single
    assert source_of(runs_folder / "first" / "store.db").is_single
    with pytest.raises(UnknownIdError):
        source_of(runs_folder / "missing.db")
