"""The pages of rollouts in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from sharpen.types import Span

from ..made_rollouts import EVIL, START, add_group, add_hostile, add_rollout, call_attributes, make_folder
from ..test_prompts import book
from .served_store import EDIT_TOKEN, Complaints, ServedStore, served_store

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    from tests.algorithm.internals import write_records

    folder = make_folder(tmp_path_factory.mktemp("runs"))
    write_records(folder / "prompts", book())
    lines = [json.dumps({"iteration": n // 5, "stage": "train", "episode": n, "reward": n * 1.0}) for n in range(50)]
    (folder / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    with served_store(folder) as made:
        made.do(add_group(made.store))
        made.do(add_hostile(made.store))
        yield made


@pytest.fixture(params=["light", "dark", "phone"])
def look(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(browser: Browser, served: ServedStore, request: pytest.FixtureRequest) -> Iterator[Page]:
    look = request.getfixturevalue("look") if "look" in request.fixturenames else "light"
    size = {"width": 390, "height": 844} if look == "phone" else {"width": 1360, "height": 900}
    context = browser.new_context(viewport=size, color_scheme="dark" if look == "dark" else "light")  # type: ignore[arg-type]
    made = context.new_page()
    made.goto(f"{served.url}/?token={EDIT_TOKEN}")
    yield made
    context.close()


PAGES = [
    "rollouts",
    "rollouts/member-2",
    "rollouts/hostile",
    "rollouts/hostile?span=span-1",
    "rollouts/member-1/group",
    "resources",
    "resources/kit/2?against=1",
    "prompts",
    "prompts?version=v2",
    "episodes",
]


def test_every_page_fits_the_screen_and_runs_nothing_foreign(page: Page, served: ServedStore, look: str) -> None:
    complaints = Complaints.of(page)
    for path in PAGES:
        page.goto(f"{served.url}/runs/lab/{path}")
        assert page.title() != "pwned"
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{path} is {wider} px too wide ({look})"
    assert complaints == []


def test_filters_change_the_list_and_the_address_and_back_undoes_them(page: Page, served: ServedStore) -> None:
    page.goto(f"{served.url}/runs/lab/rollouts")
    rows = page.locator("tr[data-id]")
    expect(rows).to_have_count(4)
    page.fill("#rollout-search", "member-2")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(f"{served.url}/runs/lab/rollouts?q=member-2")
    page.reload()
    expect(rows).to_have_count(1)
    page.go_back()
    expect(rows).to_have_count(4)
    page.fill('input[name="reward_min"]', "much")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").first).to_contain_text("much")


def test_rows_are_reached_by_keys_and_opened_with_enter(page: Page, served: ServedStore) -> None:
    page.goto(f"{served.url}/runs/lab/rollouts?q=member")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/rollouts/member-1")
    page.keyboard.press("]")
    page.wait_for_url("**/rollouts/member-0")


def test_a_row_that_leads_nowhere_is_not_opened(page: Page, served: ServedStore) -> None:
    page.goto(f"{served.url}/runs/lab/episodes")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    expect(page.locator("tr[data-row]").nth(1)).to_have_class("is-current")
    expect(page).to_have_url(f"{served.url}/runs/lab/episodes")


def test_a_span_is_shown_by_click_and_by_keys_and_has_a_link(page: Page, served: ServedStore) -> None:
    page.goto(f"{served.url}/runs/lab/rollouts/member-2")
    page.locator(".bar").nth(1).click()
    expect(page.locator("#span-detail")).to_contain_text("sharpen.reward.0.value")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator("#span-detail")).to_contain_text("gen_ai.usage.input_tokens")
    page.wait_for_url("**span=span-0")
    page.reload()
    expect(page.locator("#span-detail")).to_contain_text("gen_ai.usage.input_tokens")


def test_a_token_tells_its_number_and_probability(page: Page, served: ServedStore) -> None:
    page.goto(f"{served.url}/runs/lab/rollouts/member-2")
    page.locator(".tk").nth(1).hover()
    expect(page.locator(".token-detail")).to_have_text("token 101, log-probability -0.5000, 60.7 %")
    page.locator(".tk").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token-detail")).to_contain_text("token 102")


def test_a_hostile_trace_stays_text(page: Page, served: ServedStore) -> None:
    complaints = Complaints.of(page)
    page.goto(f"{served.url}/runs/lab/rollouts/hostile?span=span-1")
    page.get_by_role("button", name="Show all 300,000 characters").click()
    expect(page.locator("#span-detail pre").filter(has_text="y" * 100).first).to_be_visible()
    assert page.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0
    assert page.title().startswith("hostile")
    assert EVIL[:30] in page.locator("main").inner_text()
    assert complaints == []


def test_new_rollouts_are_announced_and_nothing_moves(page: Page, served: ServedStore) -> None:
    waiting = served.do(served.store.enqueue_rollout("a task", rollout_id="later"))
    page.goto(f"{served.url}/runs/lab/rollouts")
    expect(page.locator("#live")).to_have_text("live")
    before = page.locator("tr[data-id]").count()
    served.do(add_rollout(served.store, "brand-new", "new task", reward=1.0))
    served.do(served.store.cancel_rollouts([waiting.rollout_id]))
    expect(page.locator("#new-rollouts")).to_be_visible()
    expect(page.locator('tr[data-id="later"]')).to_contain_text("cancelled")
    assert page.locator("tr[data-id]").count() == before
    page.locator("#new-rollouts").click()
    expect(page.locator('tr[data-id="brand-new"]')).to_be_visible()


def test_selected_rollouts_are_retried_after_a_question(page: Page, served: ServedStore) -> None:
    page.goto(f"{served.url}/runs/lab/rollouts?q=member-0")
    page.locator('input[name="id"]').first.check()
    page.get_by_role("button", name="Retry…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 1 rollout?")
    page.get_by_role("button", name="Retry rollouts").click()
    expect(page.locator(".report")).to_have_text("1 rollout enqueued again.")
    expect(page.locator("tr[data-id]")).to_have_count(2)


def test_candidates_are_chosen_in_the_tree(page: Page, served: ServedStore) -> None:
    page.goto(f"{served.url}/runs/lab/prompts")
    page.locator('.candidates a[data-version="v0"]').click()
    expect(page.locator("#candidate h2")).to_have_text("v0")
    page.wait_for_url("**version=v0")


def test_a_rollout_of_2000_spans_is_drawn_at_once_and_its_rest_on_demand(page: Page, served: ServedStore) -> None:
    calls = [("sharpen.llm_call", call_attributes(f"q {n}", "word " * 50, tokens=50)) for n in range(2000)]
    served.do(add_rollout(served.store, "big", "t", calls))
    page.goto(f"{served.url}/runs/lab/rollouts/big", wait_until="domcontentloaded")
    expect(page.locator(".bar")).to_have_count(2000)
    expect(page.locator("article")).to_have_count(80)
    page.locator(".more-entries").click()
    expect(page.locator("article")).to_have_count(160)
    last = page.locator("article").last
    expect(last.locator(".tk")).to_have_count(0)
    last.locator("details.tokens summary").first.click()
    expect(last.locator(".tk")).to_have_count(50)


def test_a_branch_of_the_waterfall_folds_and_unfolds(page: Page, served: ServedStore) -> None:
    attempt_id = served.do(add_rollout(served.store, "tree", "t"))
    parents = {"a": None, "b": "a", "c": "b", "d": "a", "e": None}
    spans = [
        Span("tree", attempt_id, number + 1, "t", name, parent, name=name, start_time=START, end_time=START + 1)
        for number, (name, parent) in enumerate(parents.items())
    ]
    served.do(served.store.add_many_spans(spans))
    page.goto(f"{served.url}/runs/lab/rollouts/tree")
    shown = page.locator(".bar:visible")
    expect(shown).to_have_count(5)
    page.locator('.bar[data-span="b"] i').click()
    expect(shown).to_have_count(4)
    page.locator('.bar[data-span="a"] i').click()
    expect(shown).to_have_count(2)
    page.keyboard.press("ArrowRight")
    expect(shown).to_have_count(4)  # what was folded within stays folded


def test_the_folder_of_a_run_is_not_needed(browser: Browser, tmp_path: Path) -> None:
    with served_store() as alone:
        page = browser.new_page()
        page.goto(f"{alone.url}/?token={EDIT_TOKEN}")
        page.goto(f"{alone.url}/runs/lab/rollouts")
        expect(page.get_by_text("No rollouts yet.")).to_be_visible()
        page.close()
