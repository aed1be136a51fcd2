"""What changes while somebody looks."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sharpen.errors import StoreUnavailableError
from sharpen.runs import RunFolder
from sharpen.store import InMemoryLightningStore, LightningStore
from tests.archive.internals import RunEntry
from tests.dashboard.internals import RunsSource, StoreSource, event_stream, live, make_app, sources

from .asgi_client import ask, following
from .made_runs import config


class CountingStore(InMemoryLightningStore):
    """Counts how often it is asked."""

    asked = 0

    async def statistics(self) -> Any:
        self.asked += 1
        return await super().statistics()


class SilentStore(InMemoryLightningStore):
    """Never answers."""

    async def statistics(self) -> Any:
        await asyncio.Event().wait()


class AwayStore(InMemoryLightningStore):
    async def statistics(self) -> Any:
        raise StoreUnavailableError("the store is away")


class SlowSource(StoreSource):
    """Its files take a while to read."""

    def entry(self, name: str) -> RunEntry:
        time.sleep(0.1)
        return super().entry(name)


class GoneLog(RunEntry, frozen=True):
    """Its log goes between the moment it is found and the moment it is asked for its size."""

    @property
    def log_path(self) -> Path:
        return self.path / "gone.log"


class GoneLogSource(StoreSource):
    def entry(self, name: str) -> RunEntry:
        return GoneLog(**msgspec.structs.asdict(super().entry(name)))


class SlowRuns(RunsSource):
    def runs(self) -> list[RunEntry]:
        time.sleep(0.1)
        return super().runs()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "QUICK_SECONDS", 0.01)
    monkeypatch.setattr(live, "QUIET_SECONDS", 0.01)


@pytest.fixture
async def store() -> AsyncIterator[CountingStore]:
    made = CountingStore()
    yield made
    await made.close()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(run_dir=tmp_path / "run")
    made.write_config(config("APO", "calculator", 1))
    return made


def app_of(store: LightningStore, folder: RunFolder | None = None, **options: Any) -> Any:
    source = StoreSource(store, "run", None if folder is None else folder.path)
    return make_app(source, view_token=None, edit_token=None, **options)


async def finish_one(store: LightningStore) -> None:
    started = await store.start_rollout("task", worker_id="runner-0")
    await store.complete_attempt(started.rollout_id, started.attempt.attempt_id, reward=1.0)


async def test_counts_and_workers_are_told_as_they_change(store: CountingStore) -> None:
    async with following(app_of(store), "/runs/run/events") as stream:
        assert (await stream.until("stats"))["total"] == 0
        await finish_one(store)
        assert (await stream.until("rollouts"))["finished"] == 1
        await stream.until("workers")
        told = [detail for name, detail in stream.events if name == "stats"]
        assert told[-1]["by_status"]["succeeded"] == 1


async def test_new_metrics_and_log_lines_are_told(store: CountingStore, folder: RunFolder) -> None:
    folder.append_metrics({"step": 1, "time": 1.0, "val/reward_mean": 0.1})
    folder.log_path.write_text("one\n")
    async with following(app_of(store, folder), "/runs/run/events") as stream:
        assert (await stream.until("state"))["state"] == "running"
        await stream.until("stats")
        folder.append_metrics({"step": 2, "time": 2.0, "val/reward_mean": 0.2, "bad": "nan"})
        folder.log_path.write_text("one\ntwo\n")
        lines = (await stream.until("metrics"))["lines"]
        assert lines == [{"step": 2.0, "time": 2.0, "values": {"val/reward_mean": 0.2}}]
        await stream.until("log")
        folder.write_result({"status": "succeeded", "seconds": 1.0})
        folder.release()
        async with asyncio.timeout(10):
            while [detail["state"] for name, detail in stream.events if name == "state"] != ["running", "succeeded"]:
                stream.changed.clear()
                await stream.changed.wait()


async def test_what_happens_after_the_answer_is_told_however_long_the_first_look_takes(
    store: CountingStore, folder: RunFolder
) -> None:
    folder.append_metrics({"step": 1, "time": 1.0, "loss": 0.1})
    folder.log_path.write_text("one\n")
    app = make_app(SlowSource(store, "run", folder.path), view_token=None, edit_token=None)
    async with following(app, "/runs/run/events") as stream:
        await stream.begun()
        folder.append_metrics({"step": 2, "time": 2.0, "loss": 0.2})
        folder.log_path.write_text("one\ntwo\n")
        assert [line["step"] for line in (await stream.until("metrics"))["lines"]] == [2.0]
        await stream.until("log")


async def test_a_store_that_does_not_answer_holds_nobody_up(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "LOOK_SECONDS", 0.05)
    async with following(app_of(SilentStore(), folder), "/runs/run/events") as stream:
        await stream.begun()
        assert stream.messages[0]["status"] == 200


async def test_the_end_of_the_server_does_not_wait_for_the_first_look(folder: RunFolder) -> None:
    stopping = asyncio.Event()
    stopping.set()
    async with following(app_of(SilentStore(), folder, stopping=stopping), "/runs/run/events") as stream:
        await asyncio.wait_for(stream.task, 2)


async def test_a_store_that_is_away_does_not_hide_what_the_files_tell(folder: RunFolder) -> None:
    folder.append_metrics({"step": 1, "time": 1.0, "loss": 0.1})
    async with following(app_of(AwayStore(), folder), "/runs/run/events") as stream:
        assert (await stream.until("state"))["state"] == "running"
        folder.append_metrics({"step": 2, "time": 2.0, "loss": 0.2})
        assert [line["step"] for line in (await stream.until("metrics"))["lines"]] == [2.0]


async def test_a_log_that_goes_does_not_hide_the_state(store: CountingStore, folder: RunFolder) -> None:
    app = make_app(GoneLogSource(store, "run", folder.path), view_token=None, edit_token=None)
    async with following(app, "/runs/run/events") as stream:
        assert (await stream.until("state"))["state"] == "running"


async def test_the_first_metrics_of_a_run_are_told(store: CountingStore, folder: RunFolder) -> None:
    async with following(app_of(store, folder), "/runs/run/events") as stream:
        await stream.until("state")
        folder.append_metrics({"step": 1, "time": 1.0, "loss": 0.1})
        assert [line["step"] for line in (await stream.until("metrics"))["lines"]] == [1.0]


async def test_metrics_that_are_written_anew_are_asked_for_again(store: CountingStore, folder: RunFolder) -> None:
    folder.append_metrics({"step": 5, "time": 1.0, "loss": 1.0})
    async with following(app_of(store, folder), "/runs/run/events") as stream:
        await stream.until("stats")
        folder.metrics_path.write_text('{"step": 1, "time": 9.0, "loss": 3.0}\n')
        await stream.until("resync")


async def test_all_viewers_of_a_run_share_one_watcher_which_ends_with_the_last(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "QUICK_SECONDS", 3600)
    app = app_of(store)
    async with following(app, "/runs/run/events") as first, following(app, "/runs/run/events") as second:
        await first.until("stats")
        await second.until("stats")
        assert store.asked == 1
    following_now = app._app.state.live.watched
    assert following_now == []


async def test_events_end_when_the_server_stops(store: CountingStore) -> None:
    stopping = asyncio.Event()
    async with following(app_of(store, stopping=stopping), "/runs/run/events") as stream:
        await stream.until("stats")
        stopping.set()
        await asyncio.wait_for(stream.task, 10)
        assert stream.messages[-1] == {"type": "http.response.body", "body": b""}


async def test_a_mounted_one_ends_with_the_server_it_is_mounted_in(store: CountingStore) -> None:
    stopping = asyncio.Event()
    extra = {"sharpen.stopping": stopping}
    async with following(app_of(store), "/runs/run/events", **extra) as stream:
        await stream.until("stats")
        stopping.set()
        await asyncio.wait_for(stream.task, 10)


async def test_a_viewer_that_cannot_keep_up_is_told_to_ask_again() -> None:
    viewer = live.Viewer(lambda viewer: None, asyncio.Event())
    for number in range(live.KEPT_EVENTS + 1):
        viewer.put([("stats", number)])
    assert await viewer.next() == ("resync", {})


async def test_a_silent_stream_shows_that_it_lives(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "BEAT_SECONDS", 0.01)
    async with following(app_of(store), "/runs/run/events") as stream:
        async with asyncio.timeout(10):
            while not any(message.get("body") == b": still here\n\n" for message in stream.messages):
                stream.changed.clear()
                await stream.changed.wait()


async def test_too_many_viewers_are_refused_in_words(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_VIEWERS", 0)
    answer = await ask(app_of(store), "/runs/run/events")
    assert answer.status == 503
    assert "close some" in answer.text


async def test_many_viewers_that_come_at_once_are_counted_before_they_are_served(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_VIEWERS", 3)
    app = app_of(store)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(following(app, "/runs/run/events")) for _ in range(8)]
        async with asyncio.timeout(10):
            while not all(stream.messages for stream in streams):
                await asyncio.sleep(0.01)
        assert sorted(stream.messages[0]["status"] for stream in streams) == [200] * 3 + [503] * 5
    assert (await ask(app, "/runs/run/events", method="HEAD")).status == 200
    assert app._app.state.live.watched == []


async def test_the_list_of_runs_tells_of_a_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LIST_SECONDS", 0.0)
    monkeypatch.setattr(live, "LIST_SECONDS", 0.01)
    app = make_app(SlowRuns(tmp_path), view_token=None, edit_token=None)
    async with following(app, "/events") as stream:
        await stream.begun()
        made = RunFolder.create("made", root=tmp_path)
        made.write_config(config("APO", "calculator", 1))
        made.release()
        assert (await stream.until("runs"))["runs"] == 1
