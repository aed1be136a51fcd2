"""Where scripts are off, what the server sends is enough to find and read rollouts; where no token is, to look only."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.internals import RunSource
from tests.errors import raises

from .kept_rollouts import count, ids
from .test_every_page import REFUND
from .watching import Serve

pytestmark = pytest.mark.browser


@pytest.fixture
def plain(browser: Browser) -> Iterator[Page]:
    """A browser that runs no scripts."""
    context = browser.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


def test_rollouts_are_found_paged_and_read_without_scripts(plain: Page, dashboard: str, made_runs: Path) -> None:
    plain.goto(f"{dashboard}/")
    plain.get_by_role("link", name="many", exact=True).click()
    expect(plain.get_by_role("heading", level=1)).to_have_text("many")
    plain.get_by_role("link", name="Rollouts", exact=True).click()
    plain.get_by_role("checkbox", name="running").check()
    plain.get_by_role("button", name="Show").click()
    expect(plain).to_have_url(re.compile("status=running"))
    expect(plain.locator("tr[data-id]")).to_have_count(count(made_runs, "many", "status = 'running'"))
    plain.goto(f"{dashboard}/runs/many/rollouts")
    plain.locator('[data-page="onward"]').click()
    expect(plain.locator("tr[data-id]")).to_have_count(50)
    plain.goto(f"{dashboard}/runs/help-desk/rollouts/{ids(made_runs, 'help-desk', REFUND)[0]}")
    expect(plain.locator("#talk")).to_contain_text("The bookshelf was refunded")
    expect(plain.locator(".bar").first).to_be_visible()


def test_prompts_resources_and_logs_are_read_without_scripts(plain: Page, dashboard: str) -> None:
    plain.goto(f"{dashboard}/runs/dates/prompts")
    plain.locator('.candidates a[data-version="v0"]').click()
    expect(plain.locator("#candidate h2")).to_have_text("v0")
    plain.goto(f"{dashboard}/runs/help-desk/resources/desk/3?against=1")
    expect(plain.locator(".d-added").first).to_contain_text("Look the order up")
    plain.goto(f"{dashboard}/runs/help-desk/log?q=9999")
    expect(plain.locator("#log li").first).to_contain_text("9999")


def test_without_an_edit_token_there_is_nothing_to_press_and_posts_are_refused(
    page: Page, dashboard: str, made_runs: Path
) -> None:
    rollout = ids(made_runs, "help-desk")[0]
    for path in ("rollouts", f"rollouts/{rollout}"):
        page.goto(f"{dashboard}/runs/help-desk/{path}")
        assert page.locator("form[method=post] button, input[name=id], button[formaction]").count() == 0
        assert page.get_by_role("button", name=re.compile("Cancel|Retry")).count() == 0
    before = count(made_runs, "help-desk")
    for action in ("cancel", "retry"):
        address = f"{dashboard}/runs/help-desk/actions/{action}"
        answer = page.evaluate(
            "(address) => fetch(address, {method: 'POST', body: new URLSearchParams({id: 'x', key: 'k'})})"
            ".then((answer) => answer.status)",
            address,
        )
        assert answer in (401, 403)
        foreign = urllib.request.Request(
            address, b"id=x&key=k", {"Origin": "http://evil.example", "Authorization": "Bearer x"}, method="POST"
        )
        with raises(urllib.error.HTTPError, 403):
            urllib.request.urlopen(foreign, timeout=20)
    assert count(made_runs, "help-desk") == before
    page.watch.allowed = ["403", "401"]  # type: ignore[attr-defined]


def test_a_file_stays_as_it_is_even_with_the_edit_token(page: Page, serve: Serve, made_runs: Path) -> None:
    url = serve(RunSource(made_runs / "help-desk"), edit_token="the-edit-token")
    rollout = ids(made_runs, "help-desk")[0]
    page.goto(f"{url}/runs/help-desk/rollouts/{rollout}?span=x&token=the-edit-token")
    assert page.url == f"{url}/runs/help-desk/rollouts/{rollout}?span=x"  # the token has left the address
    expect(page.locator(".why-not")).to_have_text("read-only file")
    assert page.get_by_role("button", name=re.compile("Cancel|Retry")).count() == 0
    cookies = page.context.cookies()
    assert [(each["httpOnly"], each["sameSite"]) for each in cookies] == [(True, "Strict")]
    assert "the-edit-token" not in str(cookies) + page.content()


def test_another_site_can_neither_frame_nor_read_nor_post(page: Page, serve: Serve, made_runs: Path) -> None:
    url = serve(RunSource(made_runs / "help-desk"), edit_token="the-edit-token")
    page.goto(f"{url}/?token=the-edit-token")
    page.watch.allowed = ["frame", "401", "403", "blocked", "failed", "localhost", "Failed", "X-Frame"]  # type: ignore[attr-defined]
    foreign = url.replace("127.0.0.1", "localhost")  # another origin and another site
    page.route(f"{foreign}/foreign", lambda route: route.fulfill(content_type="text/html", body="<p>foreign</p>"))
    page.goto(f"{foreign}/foreign")
    read = page.evaluate(
        "(url) => fetch(url, {credentials: 'include'}).then(() => 'read', () => 'refused')", f"{url}/runs/help-desk"
    )
    assert read == "refused"
    with page.expect_response("**/actions/retry") as answered:
        page.evaluate(
            """(url) => {
            const form = Object.assign(document.createElement("form"), { method: "post", action: url });
            form.innerHTML = '<input name="id" value="x"><input name="key" value="k">';
            document.body.append(form);
            form.submit(); }""",
            f"{url}/runs/help-desk/actions/retry",
        )
    assert answered.value.status == 403
    expect(page.locator("h1")).to_contain_text("Forbidden")
    page.goto(f"{foreign}/foreign")
    page.evaluate(
        "(url) => { const frame = document.createElement('iframe'); frame.src = url; document.body.append(frame); }",
        f"{url}/",
    )
    page.wait_for_function("() => frames.length === 1")
    assert all("Sharpen" not in frame.content() for frame in page.frames[1:])
