"""One rollout and its relatives, over real runs: waterfall, conversation, tokens, attempts, the group."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .kept_rollouts import ids
from .test_every_page import REFUND, RETRIED, UNKNOWN

pytestmark = pytest.mark.browser


@pytest.fixture
def refund(page: Page, dashboard: str, made_runs: Path) -> Page:
    """The rollout in which the model looked an order up, refunded it, and answered."""
    page.goto(f"{dashboard}/runs/help-desk/rollouts/{ids(made_runs, 'help-desk', REFUND)[0]}")
    return page


def test_a_conversation_tells_turns_tools_and_rewards(refund: Page) -> None:
    talk = refund.locator("#talk")
    expect(talk.locator(".entry.e-call")).to_have_count(3)
    expect(talk).to_contain_text("The bookshelf of order 4713 came broken")
    names = talk.locator(".e-call .tool-name")
    assert names.all_inner_texts() == ["find_order", "refund_order"]
    expect(talk.locator(".e-call .tool").first).to_contain_text('{"order": 4713}')
    expect(talk.locator(".e-call .tool-result").first).to_contain_text("freight")
    expect(talk.locator(".e-call .answer").last).to_contain_text("The bookshelf was refunded")
    assert [float(each) for each in talk.locator(".e-reward .reward-mark").all_inner_texts()] == [0.2, 0.4, 1.0]
    expect(refund.locator(".stats")).to_contain_text(re.compile(r"Calls\s*3"))
    expect(refund.locator(".stats")).to_contain_text(re.compile(r"Cost\s*\$0\.0"))


def test_a_span_is_chosen_in_the_waterfall_or_the_conversation_and_has_a_link(refund: Page) -> None:
    refund.locator(".bar", has_text="refund_order").first.click()
    detail = refund.locator("#span-detail")
    expect(detail).to_contain_text("refund_order")
    expect(detail).to_contain_text("Attributes")
    expect(refund.locator(".entry.on")).to_have_count(1)
    refund.wait_for_url("**span=*")
    first = detail.inner_text()
    refund.reload()
    expect(detail).to_contain_text("refund_order")
    assert detail.inner_text() == first
    refund.locator(".entry.e-call button.entry-title").first.click()
    expect(detail).to_contain_text("gen_ai.")
    expect(refund.locator(".bar.on")).to_have_count(1)


def test_branches_of_the_waterfall_fold_by_click_and_by_keys(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/many/rollouts/ro-many-spans")
    bars = page.locator(".bar")
    total = bars.count()
    assert total >= 200
    parent = page.locator(".bar[data-below]").first
    below = int(parent.get_attribute("data-below") or 0)
    assert below > 0
    parent.locator("i").first.click()
    expect(page.locator(".bar:not([hidden])")).to_have_count(total - below)
    expect(parent).to_have_attribute("aria-expanded", "false")
    expect(parent).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".bar:not([hidden])")).to_have_count(total)
    page.keyboard.press("ArrowDown")
    expect(bars.nth(1)).to_be_focused()
    with page.expect_response("**/span?**"):
        page.keyboard.press("Enter")
    expect(page.locator("#span-detail .span-card")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(bars.nth(1)).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("End")
    expect(bars.last).to_be_focused()


def test_all_2000_spans_can_be_drawn(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/many/rollouts/ro-many-spans")
    expect(page.locator(".stats")).to_contain_text(re.compile(r"Spans\s*2,000"))
    more = page.get_by_role("link", name="Show all")
    if more.count():
        more.click()
    expect(page.locator(".bar")).to_have_count(2000)


def test_tokens_tell_their_ids_texts_and_probabilities(refund: Page) -> None:
    strip = refund.locator(".entry.e-call").last.locator("details.tokens")
    if strip.get_attribute("open") is None:
        strip.locator("summary").click()
    cells = strip.locator(".tk")
    expect(cells.first).to_have_text("I")
    assert "".join(cells.all_text_contents()).startswith("I am sorry about that.")
    shades = {each.get_attribute("class") for each in cells.all()}
    assert len(shades) > 3  # likely and unlikely ones differ
    cells.nth(2).hover()
    told = strip.locator(".token-detail")
    expect(told).to_contain_text(re.compile(r"token \d+.*log-probability -?\d+\.\d+"))
    cells.first.focus()
    before = told.inner_text()
    refund.keyboard.press("ArrowRight")
    expect(told).not_to_have_text(before)


def test_tokens_of_a_trained_model_are_those_it_sampled(page: Page, dashboard: str, made_runs: Path) -> None:
    page.goto(f"{dashboard}/runs/tokens/rollouts/{ids(made_runs, 'tokens')[0]}")
    strip = page.locator("details.tokens").first
    if strip.get_attribute("open") is None:
        strip.locator("summary").click()
    expect(strip.locator(".tk")).to_have_count(1)
    strip.locator(".tk").hover()
    expect(strip.locator(".token-detail")).to_contain_text(re.compile(r"token \d+.*log-probability -\d"))
    reward = float(page.locator(".stats dd").first.inner_text())
    token = int(re.findall(r"token (\d+)", strip.locator(".token-detail").inner_text())[0])
    assert reward == float(token % 2 == 0)  # what the agent paid for


def test_every_attempt_is_kept_with_the_reason_it_ended(page: Page, dashboard: str, made_runs: Path) -> None:
    page.goto(f"{dashboard}/runs/help-desk/rollouts/{ids(made_runs, 'help-desk', RETRIED)[0]}")
    attempts = page.get_by_role("navigation", name="Attempts").get_by_role("link")
    expect(attempts).to_have_count(2)
    expect(attempts.first).to_contain_text("the warehouse does not answer")
    expect(attempts.nth(1)).to_contain_text("succeeded")
    expect(page.locator("#talk")).to_contain_text("in the warehouse")
    attempts.first.click()
    expect(page.get_by_role("region", name="Errors")).to_contain_text("ConnectionError: the warehouse does not answer")
    expect(page.locator("#talk")).not_to_contain_text("Your office chair is")
    expect(page).to_have_url(re.compile("attempt="))


def test_a_failure_tells_why(page: Page, dashboard: str, made_runs: Path) -> None:
    page.goto(f"{dashboard}/runs/help-desk/rollouts/{ids(made_runs, 'help-desk', UNKNOWN)[0]}")
    expect(page.locator(".heading .badge")).to_have_text("failed")
    expect(page.get_by_role("region", name="Errors")).to_contain_text("there is no order 9999")
    expect(page.locator(".bar.bad").first).to_be_visible()


def test_a_group_stands_side_by_side_with_advantages(page: Page, dashboard: str, made_runs: Path) -> None:
    page.goto(f"{dashboard}/runs/tokens/rollouts/{ids(made_runs, 'tokens')[0]}")
    page.get_by_role("link", name="Group", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("8 rollouts of one task")
    members = page.locator(".member")
    expect(members).to_have_count(8)
    rewards = [float(each) for each in members.locator(".big").all_inner_texts()]
    mean = float(page.locator(".stats dd").first.inner_text())
    assert mean == pytest.approx(sum(rewards) / 8, abs=1e-3)
    for member, reward in zip(members.all(), rewards, strict=True):
        told = member.locator("[title='reward minus the mean']")
        if told.count():
            assert float(told.inner_text()) == pytest.approx(reward - mean, abs=1e-3)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Waterfall")).to_be_visible()


def test_neighbours_of_the_list_are_a_key_away(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/help-desk/rollouts?mode=val&order=oldest")
    rows = page.locator("tr[data-id]")
    names = [each.get_attribute("data-id") or "" for each in rows.all()][:3]
    page.goto(f"{dashboard}/runs/help-desk/rollouts/{names[1]}")
    page.keyboard.press("]")
    page.wait_for_url(f"**/{names[2]}")
    page.keyboard.press("[")
    page.wait_for_url(f"**/{names[1]}")
