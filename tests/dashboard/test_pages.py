"""The pages of runs, as a browser without scripts sees them."""

import os
import re
from pathlib import Path

import pytest
from starlette.types import ASGIApp as App

from sharpen.store import InMemoryLightningStore
from tests.dashboard.internals import RunSource, StoreSource, make_app, pages_runs

from .asgi_client import ask, ask_htmx
from .made_runs import fill


async def test_the_list_shows_each_run_with_its_state_reward_and_course(app: App) -> None:
    answer = await ask(app, "/")
    row = re.search(r'<tr data-href="/runs/second">.*?</tr>', answer.text, re.DOTALL)
    assert row is not None
    for part in (
        'data-status="succeeded"',
        "VERL",
        "calculator",
        "9.0 s",
        "0.800",
        "val/reward_mean from",
        "<polyline",
    ):
        assert part in row[0]


async def test_runs_are_found_by_words_and_state(app: App) -> None:
    piece = await ask_htmx(app, "/?q=VERL+seco")
    assert "second" in piece.text
    assert "/runs/first" not in piece.text
    assert "<html" not in piece.text
    assert "/runs/broken" in (await ask(app, "/?state=failed")).text
    assert "No runs match" in (await ask(app, "/?q=nothing")).text


async def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    from tests.dashboard.internals import RunsSource

    answer = await ask(make_app(RunsSource(tmp_path), view_token=None, edit_token=None), "/")
    assert "sharpen train" in answer.text


async def test_a_folder_whose_name_is_no_text_breaks_no_list(tmp_path: Path) -> None:
    from tests.dashboard.internals import RunsSource

    for name in (b"good", b"bad\xff"):
        folder = tmp_path / os.fsdecode(name)
        folder.mkdir()
        (folder / "metrics.jsonl").write_text('{"step": 1, "time": 1.0, "loss": 1.0}\n')
    answer = await ask(make_app(RunsSource(tmp_path), view_token=None, edit_token=None), "/")
    assert answer.status == 200
    assert "/runs/good" in answer.text


async def test_a_run_shows_its_counts_settings_and_links(app: App) -> None:
    text = (await ask(app, "/runs/first")).text
    assert re.search(r'data-stat="total">6<', text)
    assert re.search(r'data-stat="by_status.failed">2<', text)
    assert "<dt>runners</dt><dd>2</dd>" in text
    for page in ("rollouts", "resources", "workers", "log", "metrics.csv"):
        assert f'href="/runs/first/{page}"' in text
    assert 'data-events="/runs/first/events"' in text
    assert 'aria-current="page">Overview' in text


async def test_a_run_that_failed_says_why(app: App) -> None:
    text = (await ask(app, "/runs/broken")).text
    assert "Why it failed" in text
    assert "<pre>ValueError: no tasks</pre>" in text
    assert "Traceback" in text


async def test_what_finished_last_stands_first(app: App) -> None:
    text = (await ask_htmx(app, "/runs/first/newest")).text
    assert re.findall(r'<td class="num">([01]\.\d{3})</td>', text)[:2] == ["1.000", "0.800"]


async def test_curves_hold_the_main_metrics_or_those_asked_for(app: App) -> None:
    found = (await ask(app, "/runs/first/curves.json")).json
    assert found["series"]["val/reward_mean"]["values"] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert "rollouts_per_second" in found["names"]
    only = (await ask(app, "/runs/first/curves.json?name=rollouts_per_second&name=unknown")).json
    assert list(only["series"]) == ["rollouts_per_second"]
    assert only["series"]["rollouts_per_second"]["axis"] == "seconds"


async def test_a_store_alone_shows_its_newest_rollouts(tmp_path: Path) -> None:
    await fill(tmp_path / "store.db", 9)
    source = RunSource(tmp_path / "store.db")
    app = make_app(source, view_token=None, edit_token=None)
    first = await ask(app, "/")
    assert first.status == 303
    page = await ask(app, first.header("location") or "")
    assert "Recent reward" in page.text
    curves = (await ask(app, f"{first.header('location')}/curves.json")).json
    assert curves["series"]["reward"]["values"] == [number / 8 for number in range(9)]
    assert "rollouts_per_second" in curves["series"]
    await source.close()


async def test_a_run_without_store_or_metrics_is_shown_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"components": {}, "agent": null}')
    app = make_app(RunSource(tmp_path), view_token=None, edit_token=None)
    place = (await ask(app, "/")).header("location")
    assert (await ask(app, str(place))).status == 200
    assert (await ask(app, f"{place}/curves.json")).json["names"] == []
    assert "has no log" in (await ask(app, f"{place}/log")).text
    assert "has no store" in (await ask(app, f"{place}/workers")).text


async def test_a_damaged_store_leaves_the_rest_of_the_page(runs_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((runs_folder / "first" / "config.json").read_bytes())
    (tmp_path / "metrics.jsonl").write_bytes((runs_folder / "first" / "metrics.jsonl").read_bytes())
    (tmp_path / "store.db").write_bytes(b"no database at all" * 100)
    app = make_app(RunSource(tmp_path), view_token=None, edit_token=None)
    answer = await ask(app, str((await ask(app, "/")).header("location")))
    assert answer.status == 200
    assert "cannot be read" in answer.text


async def test_a_comparison_draws_all_runs_and_tells_what_differs(app: App) -> None:
    page = await ask(app, "/compare?run=first&run=second")
    assert page.text.count("curves.json") == 2
    table = (await ask(app, "/compare/table?run=first&run=second")).text
    for part in ("settings.seed", "val reward", "inconclusive", "components.algorithm.class"):
        assert part in table


async def test_a_comparison_of_nothing_or_too_much_is_refused_in_words(app: App) -> None:
    assert (await ask(app, "/compare")).status == 400
    many = "&".join(f"run=r{number}" for number in range(13))
    assert "at most 12" in (await ask(app, f"/compare?{many}")).text
    assert (await ask(app, "/compare?run=first&run=nothing")).status == 404


async def test_workers_show_what_they_do_and_say(app: App) -> None:
    text = (await ask(app, "/runs/first/workers")).text
    assert "runner-0" in text
    assert "slots 2" in text
    assert 'data-status="gone"' in text
    assert "<html" not in (await ask_htmx(app, "/runs/first/workers")).text


async def test_the_workers_of_a_live_store_are_idle_or_busy() -> None:
    store = InMemoryLightningStore()
    started = await store.start_rollout("task", worker_id="runner-0")
    await store.update_worker("runner-0")
    await store.update_worker("gateway-of-this", {"address": "http://x"})
    app = make_app(StoreSource(store, "live"), view_token=None, edit_token=None)
    text = (await ask(app, "/runs/live/workers")).text
    assert 'data-status="busy"' in text
    assert f"/runs/live/rollouts/{started.rollout_id}" in text
    assert "<h2>Gateway" in text


async def test_the_log_is_shown_from_a_level_on_and_by_words(app: App) -> None:
    text = (await ask(app, "/runs/first/log")).text
    assert text.count("<li data-level=") == 3
    errors = (await ask_htmx(app, "/runs/first/log?level=error")).text
    assert errors.count("<li data-level=") == 1
    assert "ValueError: x" in errors
    found = (await ask_htmx(app, "/runs/first/log?q=BEGINS")).text
    assert found.count("<li data-level=") == 1


async def test_all_links_stand_under_the_root_path(app: App) -> None:
    for path in ("/", "/runs/first", "/compare?run=first&run=second", "/nothing"):
        text = (await ask(app, path, root_path="/some/where")).text
        links = re.findall(r'(?:href|src|action|hx-get|data-events|data-base)="([^"]*)"', text)
        assert links
        assert all(link.startswith(("/some/where/", "#")) for link in links)


async def test_the_list_remembers_its_page_and_never_shows_one_that_is_not_there(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_runs, "PAGE", 2)
    rows = (await ask_htmx(app, "/?page=2")).text
    assert 'id="page-number" name="page" value="2"' in rows
    fewer = (await ask_htmx(app, "/?page=2&q=second")).text
    assert 'name="page" value="1"' in fewer
    assert "No run matches" not in fewer
