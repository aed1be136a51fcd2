"""How pages keep up with what happens: hidden ones, connections that are lost or refused, answers that cross."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Browser, Error, Page, Route, expect

from sharpen.runs import RunFolder
from sharpen.types import Span
from tests.dashboard.internals import RunSource, RunsSource

from ..made_rollouts import START, add_rollout
from ..made_runs import STARTED, config
from .served_store import EDIT_TOKEN, ServedStore, served_store
from .watching import Serve

pytestmark = pytest.mark.browser
CHART = 'figure[aria-label^="val/reward_mean"]'
# A tab that is opened in the background, until the test brings it to the front.
HIDDEN = "window.isHidden = true; Object.defineProperty(document, 'hidden', { get: () => window.isHidden });"
SHOW = "window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))"
HIDE = "window.isHidden = true; document.dispatchEvent(new Event('visibilitychange'))"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    made = RunFolder.create(run_dir=tmp_path / "live")
    made.write_config(config("APO", "calculator", 1))
    made.append_metrics(point(1))
    yield made
    made.release()


@pytest.fixture
def lab() -> Iterator[ServedStore]:
    """Named before `page`, so that the page is closed before its server."""
    with served_store() as made:
        yield made


def point(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "time": STARTED + step, "val/reward_mean": step / 10, **more}


def is_live(page: Page) -> None:
    expect(page.locator("#live")).to_have_text("live")


def has_points(page: Page, count: int) -> None:
    expect(page.locator(CHART)).to_have_attribute("aria-label", re.compile(f"{count} points"))


def drawn(page: Page) -> str:
    """The picture of the curve, once what is told has been drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return str(page.locator(f"{CHART} canvas").evaluate("(each) => each.toDataURL()"))


def test_a_page_in_the_background_holds_no_connection_until_it_is_looked_at(
    page: Page, serve: Serve, folder: RunFolder
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/events") else None)
    page.add_init_script(HIDDEN)
    page.goto(f"{serve(RunSource(folder.path))}/")
    has_points(page, 1)
    assert not asked
    folder.append_metrics(point(2))
    page.evaluate(SHOW)
    is_live(page)
    has_points(page, 2)
    assert len(asked) == 1


def test_after_an_answer_that_refuses_the_page_asks_again_and_shows_what_it_missed(
    page: Page, serve: Serve, folder: RunFolder
) -> None:
    page.watch.allowed = ["503"]  # type: ignore[attr-defined]
    page.route("**/events", lambda route: route.fulfill(status=503, body="too many"), times=1)
    page.goto(f"{serve(RunSource(folder.path))}/")
    expect(page.locator("#live")).to_have_text("reconnecting")
    has_points(page, 1)
    folder.append_metrics(point(2))
    is_live(page)
    has_points(page, 2)


def test_points_that_come_while_curves_are_fetched_are_drawn(page: Page, serve: Serve, folder: RunFolder) -> None:
    page.goto(f"{serve(RunSource(folder.path))}/")
    is_live(page)
    has_points(page, 1)
    page.evaluate("document.body.addEventListener('live:metrics', () => { window.hasHeard = true; })")
    held: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        held.append((route, route.fetch()))

    page.route("**/curves.json", hold, times=1)
    page.evaluate("document.body.dispatchEvent(new CustomEvent('live:resync', { detail: {} }))")
    while not held:
        page.wait_for_timeout(20)
    folder.append_metrics(point(2))
    page.wait_for_function("() => window.hasHeard")
    route, answer = held[0]
    route.fulfill(response=answer)
    has_points(page, 2)
    folder.append_metrics(point(3))
    has_points(page, 3)


def test_points_keep_their_time_when_a_line_without_a_step_comes(page: Page, serve: Serve, folder: RunFolder) -> None:
    for step in (10, 20):
        folder.append_metrics(point(step))
    page.goto(f"{serve(RunSource(folder.path))}/runs/live?x=time")
    is_live(page)
    has_points(page, 3)
    page.evaluate("document.body.addEventListener('live:metrics', () => { window.hasHeard = true; })")
    before = drawn(page)
    folder.append_metrics({"time": STARTED + 30, "seconds": 30.0})
    page.wait_for_function("() => window.hasHeard")
    assert drawn(page) == before


def test_all_metrics_are_drawn_however_many(page: Page, serve: Serve, folder: RunFolder) -> None:
    folder.append_metrics(point(2, **{f"metric-{number:03}": 1.0 for number in range(149)}))
    page.goto(f"{serve(RunSource(folder.path))}/")
    page.locator(".chooser summary").click()
    page.get_by_role("button", name="All matches").click()
    expect(page.locator("figure.chart")).to_have_count(150)


def test_a_refresh_does_not_undo_what_is_typed(page: Page, serve: Serve, runs_folder: Path) -> None:
    page.goto(f"{serve(RunsSource(runs_folder))}/")
    is_live(page)
    held: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        held.append((route, route.fetch()))

    page.route("**/?*page=1*", hold, times=1)
    page.evaluate("document.body.dispatchEvent(new CustomEvent('live:runs', { detail: {} }))")
    while not held:
        page.wait_for_timeout(20)
    page.fill("#q", "second")
    expect(page.locator("tbody tr")).to_have_count(1)
    with contextlib.suppress(Error):  # the page has given it up
        held[0][0].fulfill(response=held[0][1])
    page.wait_for_function("() => !document.querySelector('.htmx-request')")
    expect(page.locator("tbody tr")).to_have_count(1)


def opened(page: Page, lab: ServedStore, path: str) -> None:
    page.goto(f"{lab.url}/?token={EDIT_TOKEN}")
    page.goto(f"{lab.url}/runs/lab/{path}")


def test_rows_that_change_show_the_time_of_the_viewer(browser: Browser, lab: ServedStore) -> None:
    lab.do(lab.store.enqueue_rollout("a task", rollout_id="one"))
    for zone in ("Asia/Tokyo", "America/New_York"):  # the machine may be in one of them
        context = browser.new_context(timezone_id=zone)
        page = context.new_page()
        opened(page, lab, "rollouts")
        row = page.locator('tr[data-id="one"]')
        time = row.locator("time").inner_text()
        page.evaluate("document.querySelector('tr[data-id=one]').isOld = true")
        page.evaluate("document.body.dispatchEvent(new CustomEvent('live:rollouts', { detail: {} }))")
        page.wait_for_function("() => !document.querySelector('tr[data-id=one]').isOld")
        assert row.locator("time").inner_text() == time
        context.close()


def test_a_filtered_list_says_that_it_changed_only_where_it_did(lab: ServedStore, page: Page) -> None:
    lab.do(add_rollout(lab.store, "one", "a task", reward=1.0))
    page.add_init_script(HIDDEN.replace("true", "false", 1))
    opened(page, lab, "rollouts?status=succeeded")
    mark = page.locator("#new-rollouts")
    page.evaluate("document.body.addEventListener('live:stats', () => { window.hasHeard = true; })")
    is_live(page)
    for is_changed in (False, True):
        page.evaluate(HIDE)
        if is_changed:
            lab.do(add_rollout(lab.store, "two", "a task", reward=1.0))
        page.evaluate("window.hasHeard = false")
        page.evaluate(SHOW)
        page.wait_for_function("() => window.hasHeard")
        expect(mark).to_be_visible() if is_changed else expect(mark).to_be_hidden()
    page.get_by_label("Order").select_option("oldest")
    expect(page.locator("tr[data-id]").first).to_have_attribute("data-id", "one")
    expect(page.locator("tr[data-id]")).to_have_count(2)
    expect(mark).to_be_hidden()


def test_spans_of_an_unfinished_rollout_are_announced(lab: ServedStore, page: Page) -> None:
    attempt_id = lab.do(lab.store.start_rollout("a task", rollout_id="one", worker_id="runner-0")).attempt.attempt_id

    def add_span(number: int) -> None:
        times = {"start_time": START, "end_time": START + 1}
        lab.do(lab.store.add_many_spans([Span("one", attempt_id, number, "t", f"s{number}", None, name="a", **times)]))

    add_span(1)  # it is running from now on, and no count of rollouts changes any more
    opened(page, lab, "rollouts/one")
    is_live(page)
    add_span(2)
    page.locator("#rollout-changed").click()
    expect(page.locator(".bar")).to_have_count(2)


def test_g_and_a_letter_go_to_a_page_and_turn_none(lab: ServedStore, page: Page) -> None:
    for number in range(51):
        lab.do(lab.store.enqueue_rollout("a task", rollout_id=f"ro-{number}"))
    opened(page, lab, "rollouts")
    page.keyboard.press("n")
    expect(page.locator('[data-page="back"]')).to_be_visible()
    page.wait_for_load_state()
    page.evaluate(
        "document.querySelector('[data-page=back]').addEventListener('click', () => { window.hasTurned = true; })"
    )
    page.keyboard.press("g")
    page.keyboard.press("p")
    assert not page.evaluate("window.hasTurned")
