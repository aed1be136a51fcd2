"""Finding rollouts among 50,000: filters, search, pages, links; with the keyboard alone."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .kept_rollouts import count, ids
from .watching import go_back

pytestmark = pytest.mark.browser
ROWS = "tr[data-id]"


@pytest.fixture
def many(dashboard: str) -> str:
    return f"{dashboard}/runs/many/rollouts"


def listed(page: Page) -> list[str]:
    return [each.get_attribute("data-id") or "" for each in page.locator(ROWS).all()]


def all_found(page: Page) -> set[str]:
    """What is listed now and, where a search takes long and goes on in pieces, in those."""
    found, onward = set(listed(page)), page.get_by_role("link", name="Continue searching")
    while onward.count():
        onward.click()
        page.wait_for_load_state()
        found |= set(listed(page))
    return found


def arrive(page: Page, url: str) -> None:
    """At a page, with its scripts at work."""
    expect(page).to_have_url(url)
    page.wait_for_load_state()


def test_filters_change_the_list_and_the_address_and_the_way_back_undoes_them(
    page: Page, many: str, made_runs: Path
) -> None:
    page.goto(many)
    expect(page.locator("#rollout-list")).to_contain_text("50,000 rollouts")
    everything = listed(page)
    page.get_by_role("checkbox", name="failed").check()
    failed = count(made_runs, "many", "status = 'failed'")
    expect(page.locator("#rollout-list")).to_contain_text(f"{failed:,} rollouts")
    page.get_by_label("Mode").select_option("val")
    expect(page).to_have_url(re.compile("status=failed&mode=val|mode=val&status=failed"))
    page.get_by_label("Order").select_option("oldest")
    first = ids(made_runs, "many", "status = 'failed' AND mode = 'val'")[0]
    expect(page.locator(ROWS).first).to_have_attribute("data-id", first)
    shown, link = listed(page), page.url

    fresh = page.context.browser.new_page()  # type: ignore[union-attr]
    fresh.goto(link)
    assert listed(fresh) == shown
    expect(fresh.get_by_role("checkbox", name="failed")).to_be_checked()
    expect(fresh.get_by_label("Order")).to_have_value("oldest")
    fresh.close()

    go_back(page)
    expect(page.get_by_label("Order")).to_have_value("newest")
    go_back(page)
    expect(page.get_by_label("Mode")).to_have_value("")
    expect(page.get_by_role("checkbox", name="failed")).to_be_checked()
    go_back(page)
    expect(page).to_have_url(many)
    expect(page.locator("#rollout-list")).to_contain_text("50,000 rollouts")
    assert listed(page) == everything
    expect(page.get_by_role("checkbox", name="failed")).not_to_be_checked()


def test_filters_of_reward_worker_and_resources_show_what_they_say(page: Page, many: str, made_runs: Path) -> None:
    for query, where in (
        ("worker=worker-rare", "worker_id = 'worker-rare'"),
        ("resources=rs-main%4021", "resources_version = 21"),
        ("mode=test&reward_min=0.99&reward_max=1", "mode = 'test' AND reward BETWEEN 0.99 AND 1"),
        ("status=queuing&status=running&mode=test", "mode = 'test' AND status IN ('queuing', 'running')"),
    ):
        page.goto(f"{many}?{query}")
        assert all_found(page) == set(ids(made_runs, "many", where)[-50:]), query
    page.goto(f"{many}?order=reward_high")
    assert float(page.locator("td .reward").first.inner_text()) >= float(page.locator("td .reward").last.inner_text())


def test_a_word_in_three_of_50000_is_found(page: Page, many: str, made_runs: Path) -> None:
    page.goto(many)
    page.get_by_label("Search tasks").fill("needle")
    rows, wanted = page.locator(ROWS), set(ids(made_runs, "many", "input LIKE '%needle%'"))
    expect(page.locator("#rollout-list")).to_have_attribute("data-query", re.compile("q=needle"))
    assert all_found(page) == wanted
    assert len(wanted) == 3
    named = sorted(wanted)[0]
    page.goto(f"{many}?q={named}")  # an id is found at once
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-id", named)


def test_pages_lead_to_the_end_and_back(page: Page, many: str, made_runs: Path) -> None:
    page.goto(f"{many}?status=cancelled")
    wanted = ids(made_runs, "many", "status = 'cancelled'")[::-1]
    seen, first = listed(page), listed(page)
    while page.locator('[data-page="onward"]').count():
        before = listed(page)[0]
        page.keyboard.press("n")
        expect(page.locator(ROWS).first).not_to_have_attribute("data-id", before)
        page.wait_for_load_state()  # its keys are at work
        seen += listed(page)
    assert seen == wanted
    assert len(seen) > 100
    while page.locator('[data-page="back"]').count():
        before = listed(page)[0]
        page.keyboard.press("p")
        expect(page.locator(ROWS).first).not_to_have_attribute("data-id", before)
        page.wait_for_load_state()
    assert listed(page) == first


def test_the_second_page_of_everything_leads_to_the_first(page: Page, many: str) -> None:
    page.goto(many)
    first = listed(page)
    page.locator('[data-page="onward"]').click()
    expect(page.locator(ROWS).first).not_to_have_attribute("data-id", first[0])
    expect(page.locator("#rollout-list")).to_have_attribute("data-is-first", "no")
    page.get_by_role("link", name="First").click()
    expect(page.locator(ROWS).first).to_have_attribute("data-id", first[0])


def test_wrong_filters_are_named_and_nothing_breaks(page: Page, many: str) -> None:
    page.watch.allowed = ["status 400", "400 (Bad Request)"]  # type: ignore[attr-defined]
    for query, words in (("reward_min=much", "much"), ("cursor=nonsense", "cursor"), ("status=odd", "odd")):
        page.goto(f"{many}?{query}")
        expect(page.locator("#rollout-list [role=alert]")).to_contain_text(words)
        page.get_by_role("link", name="Clear").click()
        expect(page.locator(ROWS)).to_have_count(50)


def test_the_keyboard_alone_finds_and_opens_a_rollout(page: Page, dashboard: str, made_runs: Path) -> None:
    page.goto(f"{dashboard}/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("many")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    arrive(page, f"{dashboard}/runs/many")
    page.keyboard.press("g")
    page.keyboard.press("r")
    arrive(page, f"{dashboard}/runs/many/rollouts")
    page.keyboard.press("/")
    expect(page.get_by_label("Search tasks")).to_be_focused()
    page.keyboard.type("ro-many-spans")
    expect(page.locator("#rollout-list")).to_have_attribute("data-query", re.compile("q=ro-many-spans"))
    expect(page.locator(ROWS)).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    focused = page.locator(":focus")
    assert focused.evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid"
    assert focused.evaluate("(each) => parseFloat(getComputedStyle(each).outlineWidth)") >= 2
    page.keyboard.press("Enter")
    arrive(page, f"{dashboard}/runs/many/rollouts/ro-many-spans")
    expect(page.get_by_role("heading", level=1)).to_have_text("ro-many-spans")
    page.keyboard.press("?")
    help_box = page.get_by_role("dialog")
    expect(help_box).to_be_visible()
    expect(help_box).to_contain_text("in the waterfall")
    page.keyboard.press("Escape")
    expect(help_box).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page).to_have_url(f"{dashboard}/runs/many")
    assert count(made_runs, "many") == 50_000


def test_j_and_k_move_between_rows_and_stop_at_the_ends(page: Page, many: str) -> None:
    page.goto(many)
    for _ in range(3):
        page.keyboard.press("j")
    expect(page.locator(f"{ROWS}.is-current")).to_have_attribute("data-id", listed(page)[2])
    for _ in range(5):
        page.keyboard.press("k")
    expect(page.locator(f"{ROWS}.is-current")).to_have_attribute("data-id", listed(page)[0])
    for _ in range(60):
        page.keyboard.press("j")
    expect(page.locator(f"{ROWS}.is-current")).to_have_attribute("data-id", listed(page)[-1])
    expect(page.locator(f"{ROWS}.is-current")).to_be_in_viewport()
