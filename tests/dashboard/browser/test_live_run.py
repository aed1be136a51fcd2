"""A run at work, looked at where its store is served: it changes before the eyes, and can be changed with a token."""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.dashboard.internals import QUICK_SECONDS

from .live_program import TOKEN, LiveProgram, live_program
from .watching import watched

pytestmark = pytest.mark.browser
CURVE = 'figure[aria-label^="val/reward_mean"]'


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveProgram]:
    with live_program(tmp_path) as started:
        yield started


def test_a_run_at_work_changes_before_the_eyes(browser: Browser, live: LiveProgram) -> None:
    context = browser.new_context()
    first = context.new_page()
    first.goto(f"{live.dashboard}/?token={TOKEN}")
    expect(first).to_have_url(f"{live.run}")
    pages = {}
    with watched(first):
        live.sign("round-1")
        for name in ("", "/rollouts", "/workers", "/log"):
            page = context.new_page()
            page.goto(live.run + name)
            expect(page.locator("#live")).to_have_text("live")
            page.evaluate("window.isTheSame = true")  # a page that is loaded again would lose it
            pages[name] = page
        overview, rollouts, workers = pages[""], pages["/rollouts"], pages["/workers"]

        expect(overview.locator('dd[data-stat="queued"]')).to_have_text("4")
        live.start_runners()
        expect(workers.locator("tbody tr")).to_have_count(2)
        expect(workers.locator('[data-status="busy"]')).to_have_count(2)
        expect(overview.locator('dd[data-stat="running"]')).to_have_text("2")

        live.sign("go")
        expect(overview.locator('dd[data-stat="by_status.succeeded"]')).to_have_text("3")
        expect(overview.locator('dd[data-stat="by_status.failed"]')).to_have_text("1")
        expect(workers.locator('[data-status="idle"]')).to_have_count(2)
        expect(overview.locator("#newest tbody tr")).to_have_count(4)
        expect(rollouts.locator('tr[data-id="ro-1-1"]')).to_contain_text("failed")
        expect(rollouts.locator('tr[data-id="ro-1-0"]')).to_contain_text("0.100")

        expect(overview.locator(CURVE)).to_have_attribute("aria-label", re.compile("1 points, last 0.100"))
        live.sign("round-2")
        expect(overview.locator(CURVE)).to_have_attribute("aria-label", re.compile("2 points, last 0.200"))
        expect(overview.locator('dd[data-stat="total"]')).to_have_text("8")
        expect(rollouts.locator("#new-rollouts")).to_have_text("4 new: show")
        assert rollouts.locator("tr[data-id]").count() == 4

        for page in pages.values():
            assert page.evaluate("window.isTheSame")
    live.sign("end")  # the store goes with the run, and with it the dashboard beside it
    expect(overview.locator("#live")).to_have_text("reconnecting")
    context.close()


def test_what_happens_before_the_page_has_its_script_is_told(page: Page, live: LiveProgram) -> None:
    def late(route: Route) -> None:
        live.sign("round-1")
        live.wait_for("ro-1-3")
        time.sleep(2 * QUICK_SECONDS)  # the events of this are sent before anybody listens
        route.continue_()

    page.goto(f"{live.dashboard}/?token={TOKEN}")
    page.route("**/rollouts.js*", late)
    page.goto(f"{live.run}/rollouts")
    assert page.locator("tr[data-id]").count() == 0
    expect(page.locator("#new-rollouts")).to_have_text("4 new: show")


def test_with_the_token_a_rollout_is_cancelled_and_another_retried(page: Page, live: LiveProgram) -> None:
    page.goto(f"{live.dashboard}/?token={TOKEN}")
    live.sign("round-1")
    live.sign("go")
    page.goto(f"{live.run}/rollouts")
    expect(page.locator('#new-rollouts:visible, tr[data-id="ro-1-3"]').first).to_be_visible()
    page.goto(f"{live.run}/rollouts?status=queuing")
    page.get_by_label("Select ro-1-3").check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 1 rollout?")
    assert live.status_of("ro-1-3") == "queuing"
    page.get_by_role("button", name="Cancel rollouts").click()
    expect(page.locator(".report")).to_have_text("1 rollout cancelled.")
    expect(page).to_have_url(re.compile("status=queuing"))
    assert live.status_of("ro-1-3") == "cancelled"

    live.start_runners()
    live.wait_for("ro-1-1", "failed")
    page.goto(f"{live.run}/rollouts/ro-1-1")
    expect(page.locator(".heading .badge")).to_have_text("failed")
    expect(page.get_by_role("region", name="Errors")).to_contain_text("the tool is broken")
    live.sign("mended")
    page.get_by_role("button", name="Retry…").click()
    page.get_by_role("button", name="Retry rollouts").click()
    expect(page.locator(".report")).to_have_text("1 rollout enqueued again.")
    page.goto(f"{live.run}/rollouts?q=retry")
    again = page.locator("tr[data-id]")
    expect(again).to_have_count(1)
    expect(again).to_contain_text("succeeded")
    name = again.get_attribute("data-id") or ""
    assert live.status_of(name) == "succeeded"
    assert live.status_of("ro-1-1") == "failed"
    again.locator("a.id").click()
    expect(page.get_by_role("link", name="ro-1-1", exact=True)).to_be_visible()


def test_without_a_token_nothing_is_shown_and_nothing_changes(page: Page, live: LiveProgram) -> None:
    page.watch.allowed = ["401", "403"]  # type: ignore[attr-defined]
    live.sign("round-1")
    page.goto(f"{live.run}/rollouts")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Token required")
    assert "ro-1-" not in page.content()
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.locator("main")).to_contain_text("The token is not correct.")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    expect(page).to_have_url(f"{live.run}/rollouts")
    assert page.evaluate("document.cookie") == ""  # scripts cannot read it
    assert TOKEN not in page.content() + str(page.context.storage_state())
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"},
    ):
        request = urllib.request.Request(f"{live.run}/actions/cancel", b"id=ro-1-0&key=k", headers, method="POST")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=20)
    assert live.status_of("ro-1-0") == "queuing"
