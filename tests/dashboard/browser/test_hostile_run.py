"""What agents print is text on every page: no script runs, nothing is fetched, nothing is restyled or turned around."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.internals import RunsSource

from .conftest import apart, served
from .programs import hostile_run
from .programs.hostile_run import ID, MARK, NAME, ROLLOUT
from .watching import settled, too_wide

pytestmark = pytest.mark.browser
RUN = f"/runs/{quote(NAME)}"
# The page, and words of the hostile texts that have to stand on it.
PAGES = {
    "/": NAME[:20],
    RUN: MARK,
    f"{RUN}/rollouts": MARK,
    f"{RUN}/rollouts?q={quote(MARK)}": MARK,
    f"{RUN}/rollouts?worker={quote(ID)}&group={quote(MARK)}": "No rollout",
    f"{RUN}/rollouts/{quote(ROLLOUT)}": MARK,
    f"{RUN}/rollouts/{quote(ROLLOUT)}?span=span-1": MARK,
    f"{RUN}/rollouts/{quote(ROLLOUT)}?span=span-4": MARK,
    f"{RUN}/rollouts/{quote(ROLLOUT)}/group": MARK,
    f"{RUN}/rollouts/waiting{quote(ID)}": MARK,
    f"{RUN}/resources": NAME[:20],
    f"{RUN}/resources/rs{quote(ID)}/2": MARK,
    f"{RUN}/resources/rs{quote(ID)}/2?against=1": MARK,
    f"{RUN}/prompts": MARK,
    f"{RUN}/prompts?version=v1": MARK,
    f"{RUN}/workers": ID,
    f"{RUN}/episodes": MARK[:20],
    f"{RUN}/log": MARK,
    f"/compare?run={quote(NAME)}&run={quote(NAME)}2": NAME[:20],
}
# Charts set their sizes by script, which the policy allows.
FOREIGN = (
    "main :is(script, style, iframe, img, object, embed), [onerror], [onload], [onfocus], main [style]:not(.chart *)"
)
# Characters that turn text around, hide in it or steer a terminal.
MARKS = "\\u0000-\\u0008\\u000b-\\u001f\\u007f\\u200b\\u202a-\\u202e\\u2066-\\u2069"
HIDDEN = f"[...document.body.innerText].filter((each) => /[{MARKS}]/.test(each)).length"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("hostile")
    folder = hostile_run.make(root)
    apart(lambda: asyncio.run(hostile_run.fill(folder)))
    (root / f"{NAME}2").symlink_to(folder)
    with served(RunsSource(root)) as url:
        yield url


def check(page: Page) -> None:
    """Nothing of it did anything."""
    assert page.evaluate("window.ran") is None
    assert page.evaluate(f"document.querySelectorAll({FOREIGN!r}).length") == 0
    assert page.evaluate("[...document.links].filter((each) => !/^https?:$/.test(each.protocol)).length") == 0
    assert page.evaluate(HIDDEN) == 0


@pytest.mark.parametrize("path", PAGES, ids=[str(number) for number in range(len(PAGES))])
def test_a_page_shows_hostile_texts_as_texts(page: Page, hostile: str, path: str) -> None:
    page.goto(hostile + path)
    settled(page)
    expect(page.locator("main")).to_contain_text(PAGES[path])
    check(page)
    page.set_viewport_size({"width": 390, "height": 844})
    assert too_wide(page) <= 0


def test_a_text_of_a_megabyte_is_cut_and_shown_whole_on_demand(page: Page, hostile: str) -> None:
    page.goto(f"{hostile}{RUN}/rollouts/{quote(ROLLOUT)}")
    assert page.evaluate("document.body.innerText.length") < 100_000
    page.locator(".entry").first.get_by_role("button", name="Show all").first.click()
    page.wait_for_function("() => document.querySelector('.entry').innerText.length > 900_000")
    page.locator(".facts").first.get_by_role("button", name="Show all").click()
    page.wait_for_function("() => document.querySelector('.facts').innerText.length > 900_000")
    check(page)


def test_choosing_searching_and_moving_run_nothing(page: Page, hostile: str) -> None:
    page.goto(f"{hostile}{RUN}/rollouts/{quote(ROLLOUT)}")
    for bar in page.locator(".bar").all():
        bar.click()
        expect(page.locator("#span-detail .span-card").first).to_be_visible()
    page.locator(".tk").first.hover()
    for details in page.locator("details summary").all():
        if details.is_visible():
            details.click()
    check(page)
    page.goto(f"{hostile}{RUN}/rollouts")
    page.locator("#rollout-search").fill(MARK)
    expect(page.locator("tr[data-id]").first).to_be_visible()
    expect(page).to_have_url(re.compile("q=%3Cscript"))
    page.locator("#rollout-search").fill(f"{MARK} nowhere")
    expect(page.locator("#rollout-list")).to_contain_text("No rollouts match")
    page.goto(f"{hostile}{RUN}")
    page.locator(".chooser summary").click()
    page.get_by_role("button", name="All matches").click()
    expect(page.locator("figure.chart b", has_text=MARK)).to_be_visible()
    check(page)
    page.goto(f"{hostile}{RUN}/prompts")
    page.locator(".candidates a").first.click()
    expect(page.locator("#candidate")).to_contain_text("v0")
    check(page)


def test_exports_are_saved_and_never_shown_as_pages(page: Page, hostile: str) -> None:
    page.watch.allowed = ["favicon.ico"]  # type: ignore[attr-defined]
    for path in (f"{RUN}/rollouts/{quote(ROLLOUT)}.json", f"{RUN}/rollouts/{quote(ROLLOUT)}.md"):
        answer = page.request.get(hostile + path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "html" not in answer.headers["content-type"]
        page.goto(hostile + path)
        assert page.evaluate("window.ran") is None
        assert page.evaluate("document.querySelectorAll('script, img, iframe').length") == 0
    assert Path(page.url).suffix == ".md"
