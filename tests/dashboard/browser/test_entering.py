"""Coming to a locked dashboard in a real browser."""

from html import escape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.internals import RunsSource

from .watching import Serve

pytestmark = pytest.mark.browser
TOKEN = "token-of-this-test"


@pytest.mark.parametrize("is_link", [False, True])
def test_a_link_from_elsewhere_opens_it_and_loses_its_token(
    page: Page, serve: Serve, runs_folder: Path, tmp_path: Path, is_link: bool
) -> None:
    url = serve(RunsSource(runs_folder), view_token=TOKEN)
    place = escape(f"{url}/?q=second&token={TOKEN}")
    refresh = f'<meta http-equiv="refresh" content="0; url={place}">'
    file = tmp_path / "open.html"
    file.write_text(f'<!doctype html>{"" if is_link else refresh}<a href="{place}">open</a>')
    page.watch.allowed.append(file.as_uri())  # type: ignore[attr-defined]
    page.goto(file.as_uri())
    if is_link:
        page.get_by_text("open").click()
    expect(page.get_by_role("link", name="second")).to_be_visible()
    assert page.url == f"{url}/?q=second"
    page.reload()
    expect(page.get_by_role("link", name="second")).to_be_visible()
