"""Every page, over real runs: nothing goes wrong on it, it fits, it can be read and named, in every look."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from .kept_rollouts import ids
from .watching import nameless, pale_texts, settled, too_wide, watched

pytestmark = pytest.mark.browser
RETRIED = "input LIKE '%4714%' AND resources_version = 3"
REFUND = "input LIKE '%4713%' AND resources_version = 3"
UNKNOWN = "input LIKE '%9999%' AND resources_version = 3"
PAGES = {
    "runs": "/",
    "runs found": "/?q=help&state=succeeded",
    "no runs found": "/?q=nothing-of-the-kind",
    "run": "/runs/help-desk",
    "run of prompts": "/runs/dates",
    "run of a model": "/runs/tokens",
    "run of a simulator": "/runs/room",
    "run without metrics": "/runs/many",
    "rollouts": "/runs/help-desk/rollouts",
    "no rollouts found": "/runs/help-desk/rollouts?q=nothing-of-the-kind",
    "rollout": f"/runs/help-desk/rollouts/{{help-desk: {REFUND}}}",
    "rollout of two attempts": f"/runs/help-desk/rollouts/{{help-desk: {RETRIED}}}",
    "failed rollout": f"/runs/help-desk/rollouts/{{help-desk: {UNKNOWN}}}",
    "rollout with tokens": "/runs/tokens/rollouts/{tokens: 1}",
    "rollout of many spans": "/runs/many/rollouts/ro-many-spans",
    "group": "/runs/tokens/rollouts/{tokens: 1}/group",
    "resources": "/runs/help-desk/resources",
    "resources whole": "/runs/help-desk/resources/desk/3",
    "resources compared": "/runs/help-desk/resources/desk/3?against=1",
    "prompts": "/runs/dates/prompts",
    "a prompt": "/runs/dates/prompts?version=v0",
    "workers": "/runs/help-desk/workers",
    "episodes": "/runs/room/episodes",
    "log": "/runs/help-desk/log",
    "comparison": "/compare?run=help-desk&run=help-desk-plain",
    "comparison of models": "/compare?run=tokens&run=tokens-slow",
}
LOOKS = {"light": (1360, "light"), "dark": (1360, "dark"), "phone": (390, "light")}


def path_of(page: str, runs: Path) -> str:
    """The path of a page; `{run: condition}` in it stands for the first such rollout."""
    head, mark, rest = PAGES[page].partition("{")
    if not mark:
        return head
    wanted, _, tail = rest.partition("}")
    run, _, where = wanted.partition(": ")
    return head + ids(runs, run, where)[0] + tail


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_a_complaint_fits_and_can_be_read(
    name: str, browser: Browser, dashboard: str, made_runs: Path
) -> None:
    path = path_of(name, made_runs)
    for look, (width, scheme) in LOOKS.items():
        context = browser.new_context(
            viewport={"width": width, "height": 844},
            color_scheme=scheme,
            reduced_motion="reduce",  # type: ignore[arg-type]
        )
        page = context.new_page()
        with watched(page):
            page.goto(dashboard + path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            settled(page)
            assert too_wide(page) <= 0, look
            assert pale_texts(page) == {}, look
            assert nameless(page) == [], look
        context.close()


def test_a_page_that_is_not_there_says_so_and_leads_back(page: Page, dashboard: str) -> None:
    page.watch.allowed = ["404"]  # type: ignore[attr-defined]
    for path, words in (
        ("/nothing", "/nothing"),
        ("/runs/nothing", "nothing"),
        ("/runs/help-desk/rollouts/nothing", "nothing"),
        ("/runs/help-desk/episodes", "help-desk"),
        ("/runs/help-desk/resources/desk/99", "99"),
    ):
        page.goto(dashboard + path)
        expect(page.get_by_role("heading", level=1)).to_contain_text("Not found")
        expect(page.locator("main")).to_contain_text(words)
        assert nameless(page) == []
    page.get_by_role("link", name="Back to runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
