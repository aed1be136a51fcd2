"""The pages of runs in a real browser: curves, live updates, keys, themes."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sharpen.runs import RunFolder
from tests.dashboard.internals import RunSource, RunsSource

from ..made_runs import HOSTILE, STARTED, config

pytestmark = pytest.mark.browser
Serve = Callable[..., str]
CHART = 'figure[aria-label^="val/reward_mean"]'


def test_a_run_draws_its_curves_smoothed_over_time_and_as_chosen(page: Page, serve: Serve, runs_folder: Path) -> None:
    page.goto(f"{serve(RunsSource(runs_folder))}/runs/second")
    expect(page.locator(f"{CHART} canvas")).to_be_visible()
    expect(page.locator(CHART)).to_have_attribute(
        "aria-label", "val/reward_mean. second: 7 points, last 0.800, minimum 0.114, maximum 0.800"
    )
    page.get_by_role("button", name="Time").click()
    page.get_by_label("Smoothing").fill("0.5")
    page.locator(".chooser summary").click()
    page.get_by_role("button", name="None").click()
    expect(page.locator("figure.chart")).to_have_count(0)
    page.get_by_label("train/loss").check()
    expect(page.locator("figure.chart")).to_have_count(1)
    expect(page).to_have_url(re.compile(re.escape("?x=time&smooth=0.5&metric=train%2Floss") + "$"))
    page.reload()
    expect(page.locator("figure.chart")).to_have_count(1)
    expect(page.get_by_role("button", name="Time")).to_have_attribute("aria-pressed", "true")


def test_a_live_run_grows_before_the_eyes(page: Page, serve: Serve, tmp_path: Path) -> None:
    folder = RunFolder.create(run_dir=tmp_path / "live")
    folder.write_config(config("APO", "calculator", 1))
    folder.append_metrics({"step": 1, "time": STARTED, "val/reward_mean": 0.25})
    page.goto(f"{serve(RunSource(folder.path))}/")
    expect(page.locator(CHART)).to_contain_text("0.250")
    expect(page.locator("#live")).to_have_text("live")
    folder.append_metrics({"step": 2, "time": STARTED + 1, "val/reward_mean": 0.75})
    expect(page.locator(CHART)).to_contain_text("0.750")
    expect(page.locator('[data-stat="metric:val/reward_mean"]')).to_have_text("0.750")
    folder.append_metrics({"step": 3, "time": STARTED + 2, "val/reward_mean": 0.8, "train/new": 5})
    expect(page.locator('.choices input[value="train/new"]')).to_have_count(1)
    folder.write_result({"status": "succeeded", "seconds": 3.0})
    folder.release()
    expect(page.locator("#run-state .badge")).to_have_text("succeeded")


def test_runs_are_found_selected_and_compared_by_keys(page: Page, serve: Serve, runs_folder: Path) -> None:
    page.goto(f"{serve(RunsSource(runs_folder))}/")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("tbody tr")).to_have_count(4)
    page.keyboard.press("/")
    page.keyboard.type("calculator")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("Escape")
    for _ in range(2):
        page.keyboard.press("j")
        page.keyboard.press("x")
    page.get_by_role("button", name="Compare (2)").click()
    expect(page.locator("figure.chart canvas").first).to_be_visible()
    expect(page.get_by_role("list", name="Runs").get_by_role("listitem")).to_have_count(2)
    expect(page.get_by_role("heading", name="Changed settings")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("h")
    expect(page.locator("#live")).to_have_text("live")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".tabs")).to_be_visible()


def test_light_and_dark_are_kept(page: Page, serve: Serve, runs_folder: Path) -> None:
    page.goto(f"{serve(RunsSource(runs_folder))}/")
    page.get_by_role("button", name="Theme").click()
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 22, 26)"


def test_hostile_names_are_text(page: Page, serve: Serve, runs_folder: Path) -> None:
    url = serve(RunsSource(runs_folder))
    page.goto(f"{url}/")
    box = page.get_by_role("checkbox", name=HOSTILE)
    box.check()
    with page.expect_response(lambda answer: "page=1" in answer.url):
        page.evaluate("document.body.dispatchEvent(new CustomEvent('live:runs', {detail: {}}))")
    expect(box).to_be_checked()
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.locator("h1")).to_have_text(HOSTILE)
    page.locator(".chooser summary").click()
    page.get_by_role("checkbox", name=HOSTILE).check()
    expect(page.locator("figure.chart b", has_text=HOSTILE)).to_be_visible()
    page.get_by_role("link", name="Log").click()
    expect(page.locator("#log")).to_contain_text(HOSTILE)


def test_a_phone_shows_one_column(page: Page, serve: Serve, runs_folder: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    url = serve(RunsSource(runs_folder))
    for path in ("/", "/runs/first", "/runs/first/workers", "/runs/first/log", "/compare?run=first&run=second"):
        page.goto(url + path)
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_token_leaves_the_address(page: Page, serve: Serve, runs_folder: Path) -> None:
    url = serve(RunsSource(runs_folder), view_token="a-token-of-this-test")
    page.goto(f"{url}/runs/first?token=a-token-of-this-test")
    expect(page.locator("h1")).to_have_text("first")
    assert page.url == f"{url}/runs/first"
    page.goto(f"{url}/runs/second")
    expect(page.locator("h1")).to_have_text("second")


def test_the_log_follows_its_end(page: Page, serve: Serve, tmp_path: Path) -> None:
    folder = RunFolder.create(run_dir=tmp_path / "live")
    folder.write_config(config("APO", "calculator", 1))
    line = "2026-11-15 22:00:00.000 INFO    trainer: line {}\n"
    folder.log_path.write_text("".join(line.format(number) for number in range(100)))
    page.goto(f"{serve(RunSource(folder.path))}/runs/live/log")
    expect(page.locator("#log li").last).to_be_in_viewport()
    expect(page.locator("#live")).to_have_text("live")
    with open(folder.log_path, "a") as file:
        file.write(line.format("new"))
    expect(page.locator("#log li").last).to_contain_text("line new")
    expect(page.locator("#log li").last).to_be_in_viewport()
    folder.release()
