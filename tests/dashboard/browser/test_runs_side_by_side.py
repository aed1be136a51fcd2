"""What runs hold besides rollouts: comparisons, prompts, resources, episodes, workers, logs, and what can be saved."""

import csv
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Download, Page, expect

from .kept_rollouts import count, ids
from .test_every_page import REFUND
from .watching import go_back, settled

pytestmark = pytest.mark.browser


def saved(page: Page, name: str, *, menu: bool = False) -> Download:
    """What a button saves."""
    if menu:
        page.locator("summary", has_text="Export").click()
    with page.expect_download() as started:
        page.get_by_role("link", name=name, exact=True).click()
    return started.value


def text_of(download: Download) -> str:
    return Path(download.path()).read_text()


# -- comparisons -------------------------------------------------------------------------------------


def test_two_runs_are_overlaid_and_their_difference_is_told(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/?q=help")
    for name in ("help-desk", "help-desk-plain"):
        page.get_by_label(f"Select {name}", exact=True).check()
    page.get_by_role("button", name="Compare (2)").click()
    expect(page).to_have_url(re.compile(r"/compare\?run=.*&run="))
    chart = page.locator('figure[aria-label^="val/reward_mean"]')
    expect(chart).to_have_attribute(
        "aria-label", re.compile(r"help-desk: 3 points.*help-desk-plain: 3 points|help-desk-plain: 3.*help-desk: 3")
    )
    expect(page.get_by_role("list", name="Runs").get_by_role("listitem")).to_have_count(2)
    differences = page.get_by_role("region", name="Differences on common tasks").first
    expect(differences).to_contain_text(re.compile("better|worse|inconclusive"))
    expect(page.locator("#numbers")).to_contain_text("Changed settings")
    expect(page.get_by_role("region", name="Changed settings").first).to_contain_text("seed")
    drawn = page.evaluate(
        """() => { const canvas = document.querySelector("figure.chart canvas");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const found = new Set();
        const rough = (place) => [0, 1, 2].map((part) => pixels[place + part] >> 5).join();
        for (let place = 0; place < pixels.length; place += 4) if (pixels[place + 3] > 200) found.add(rough(place));
        return found.size; }"""
    )
    assert drawn > 4  # two colours of lines beside those of the axes


def test_curves_of_a_run_are_chosen_and_the_address_keeps_the_choice(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/tokens")
    settled(page)
    expect(page.locator("figure.chart canvas").first).to_be_visible()
    page.locator(".chooser summary").click()
    page.get_by_role("button", name="None").click()
    page.get_by_label("Search metrics").fill("reward")
    page.get_by_role("button", name="All matches").click()
    chosen = page.locator(".choices input:checked").count()
    expect(page.locator("figure.chart b")).to_have_count(chosen)
    names = page.locator("figure.chart b").all_inner_texts()
    assert chosen > 0
    assert all("reward" in each for each in names)
    page.reload()
    expect(page.locator("figure.chart b")).to_have_text(names)


# -- prompts and resources ---------------------------------------------------------------------------


def test_a_tree_of_candidates_tells_who_came_from_whom(page: Page, dashboard: str, made_runs: Path) -> None:
    book = json.loads((made_runs / "dates" / "prompts" / "candidates.json").read_text())
    versions = re.findall(r'"version": ?"(v\d+)"', json.dumps(book))
    page.goto(f"{dashboard}/runs/dates/prompts")
    nodes = page.locator(".candidates a.node")
    expect(nodes).to_have_count(len(set(versions)))
    assert page.locator(".candidates .edge").count() >= len(set(versions)) - 1
    shown = page.locator("#candidate")
    expect(shown).to_contain_text("★ best")
    expect(shown.locator("ins").first).to_be_visible()
    expect(shown).to_contain_text("Critique")
    best = shown.locator("h2").inner_text()
    shown.get_by_role("link").first.click()  # its parent
    expect(shown.locator("h2")).not_to_have_text(best)
    page.go_back()
    expect(shown.locator("h2")).to_have_text(best)
    page.locator('.candidates a[data-version="v0"]').click()
    expect(shown.locator("h2")).to_have_text("v0")
    expect(page).to_have_url(re.compile("version=v0"))


def test_versions_of_resources_are_compared(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/help-desk/resources")
    versions = page.locator("tbody tr", has=page.get_by_role("link", name="desk", exact=True))
    expect(versions).to_have_count(3)
    versions.first.get_by_role("link", name="diff").click()
    expect(page.locator(".d-added")).to_contain_text("Refund only what was delivered")
    page.get_by_label("Compare with").fill("1")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".d-removed").first).to_contain_text("Answer the customer")
    expect(page.locator(".d-added").first).to_contain_text("Look the order up")
    expect(page).to_have_url(re.compile(r"desk/3\?against=1"))
    page.get_by_role("link", name="Show rollouts").click()
    expect(page).to_have_url(re.compile("resources=desk%403"))
    expect(page.locator("tr[data-id]").first).to_contain_text("desk v3")


# -- episodes, workers, log --------------------------------------------------------------------------


def test_episodes_of_a_simulator_are_spread_and_listed(page: Page, dashboard: str, made_runs: Path) -> None:
    lines = (made_runs / "room" / "episodes.jsonl").read_text().splitlines()
    page.goto(f"{dashboard}/runs/room/episodes")
    expect(page.locator("#episode-list")).to_contain_text(f"{len(lines):,} episodes")
    assert page.locator(".spread g.box").count() >= 6
    page.get_by_label("Stage").select_option("val")
    expect(page).to_have_url(re.compile("stage=val"))
    wanted = sum(json.loads(each).get("stage") == "val" for each in lines)
    expect(page.locator("#episode-list")).to_contain_text(f"{wanted:,} episodes")
    page.get_by_label("Order").select_option("reward_high")
    rewards = page.locator("#episode-list tbody tr td:nth-child(4)")
    expect(page).to_have_url(re.compile("order=reward_high"))
    shown = [float(each) for each in rewards.all_inner_texts()]
    assert shown == sorted(shown, reverse=True)
    go_back(page)
    expect(page.get_by_label("Order")).to_have_value("newest")
    expect(page.locator("#episode-list")).to_contain_text(f"{wanted:,} episodes")
    go_back(page)
    expect(page.locator("#episode-list")).to_contain_text(f"{len(lines):,} episodes")


def test_workers_of_a_run_that_is_over_are_gone_and_lead_to_their_rollouts(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/help-desk/workers")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator('[data-status="gone"]')).to_have_count(2)
    expect(page.get_by_role("region", name="Gateway").first).to_be_visible()
    page.locator("tbody tr a").first.click()
    expect(page).to_have_url(re.compile("worker="))
    expect(page.locator("tr[data-id]").first).to_be_visible()


def test_the_log_is_filtered_by_level_and_words(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/help-desk/log")
    entries = page.locator("#log li")
    everything = entries.count()
    assert everything > 3
    page.get_by_label("Search").fill("9999")
    expect(entries).not_to_have_count(everything)
    expect(entries.first).to_contain_text("9999")
    expect(page).to_have_url(re.compile("q=9999"))


# -- exports -----------------------------------------------------------------------------------------


def test_a_list_is_saved_as_lines_of_json_just_as_it_is_filtered(page: Page, dashboard: str, made_runs: Path) -> None:
    page.goto(f"{dashboard}/runs/help-desk/rollouts")
    page.get_by_role("checkbox", name="failed").check()
    expect(page).to_have_url(re.compile("status=failed"))
    failed = count(made_runs, "help-desk", "status = 'failed'")
    expect(page.locator("tr[data-id]")).to_have_count(failed)
    download = saved(page, "Rollouts (JSON Lines)", menu=True)
    assert download.suggested_filename.endswith(".jsonl")
    lines = [json.loads(each) for each in text_of(download).splitlines()]
    assert {each["rollout_id"] for each in lines} == set(ids(made_runs, "help-desk", "status = 'failed'"))
    with_spans = [json.loads(each) for each in text_of(saved(page, "Rollouts with spans (JSON Lines)")).splitlines()]
    assert len(with_spans) == failed
    assert all(each["spans"] for each in with_spans)


def test_50000_rollouts_are_saved_whole(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/many/rollouts")
    download = saved(page, "Rollouts (JSON Lines)", menu=True)
    with open(download.path()) as lines:
        assert len({json.loads(each)["rollout_id"] for each in lines}) == 50_000


def test_a_rollout_is_saved_as_json_and_read_as_markdown(page: Page, dashboard: str, made_runs: Path) -> None:
    rollout = ids(made_runs, "help-desk", REFUND)[0]
    page.watch.allowed = ["favicon.ico"]  # type: ignore[attr-defined]
    page.goto(f"{dashboard}/runs/help-desk/rollouts/{rollout}")
    download = saved(page, "Save JSON", menu=True)
    assert download.suggested_filename == f"{rollout}.json"
    kept = json.loads(text_of(download))
    assert kept["rollout_id"] == rollout
    assert {"attempts", "spans"} <= set(kept)
    page.get_by_role("link", name="Markdown").click()
    page.wait_for_url("**.md*")
    told = page.inner_text("body")
    assert told.startswith("# ")
    assert r"refund\_order" in told


def test_metrics_are_saved_as_a_table(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/runs/help-desk")
    rows = list(csv.DictReader(text_of(saved(page, "Download metrics (CSV)")).splitlines()))
    assert [row["val/reward_mean"] for row in rows if row.get("step") == "3"]
