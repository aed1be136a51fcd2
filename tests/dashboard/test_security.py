"""Who may look and change, and what a browser is told to refuse."""

import logging
import re

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp as App

from tests.dashboard.internals import CSP, Guard, RunsSource, make_app

from .asgi_client import HOST, Answer, ask, ask_htmx
from .made_runs import HOSTILE

VIEW, EDIT = "view-token-of-this-test", "edit-token-of-this-test"
HOSTILE_QUOTED = "%3Cscript%3Ealert%281%29%3C"
PAGES = ["/", "/runs/first", "/runs/first/workers", "/runs/first/log", "/compare?run=first&run=second"]


@pytest.fixture
def locked(source: RunsSource) -> App:
    return make_app(source, view_token=VIEW, edit_token=EDIT, hosts=frozenset({"127.0.0.1"}))


@pytest.fixture
def rights(source: RunsSource) -> App:
    """Says what the sender of a request may do, behind the same guard."""

    async def tell(request: Request) -> Response:
        if request.query_params.get("fail"):
            raise RuntimeError("a secret of the inside")
        return PlainTextResponse("edit" if request.state.can_edit else "view")

    inner = Starlette(routes=[Route("/", tell, methods=["GET", "POST"])])
    inner.state.source = source
    return Guard(inner, view_token=VIEW, edit_token=EDIT, hosts=frozenset({"127.0.0.1"}))


def assert_guarded(answer: Answer) -> None:
    assert answer.header("content-security-policy") == CSP
    assert answer.header("x-content-type-options") == "nosniff"
    assert answer.header("referrer-policy") in ("same-origin", "no-referrer")
    assert answer.header("cache-control") in ("no-store", "no-cache")


@pytest.mark.parametrize(
    "path", [*PAGES, "/nothing", "/runs/nothing", "/static/app.css", "/static/nothing", "/compare"]
)
async def test_every_answer_tells_the_browser_what_to_refuse(app: App, path: str) -> None:
    assert_guarded(await ask(app, path))


async def test_refusals_carry_the_policy_too(locked: App) -> None:
    for headers in ({}, {"host": "evil.example"}, {"origin": "http://evil.example"}):
        answer = await ask(locked, "/", headers=headers)
        assert answer.status in (401, 403)
        assert_guarded(answer)


@pytest.mark.parametrize("path", [*PAGES, "/nothing"])
async def test_pages_hold_no_inline_script_style_or_handler(app: App, path: str) -> None:
    text = (await ask(app, path)).text
    assert not re.findall(r"<script(?![^>]* src=)", text)
    assert not re.findall(r"<style|<[^>]* style=|<[^>]* on[a-z]+=|javascript:", text)
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", text)


@pytest.mark.parametrize("path", ["/", f"/runs/{HOSTILE_QUOTED}", f"/runs/{HOSTILE_QUOTED}/log",
                                  f"/runs/{HOSTILE_QUOTED}/workers",
                                  f"/compare/table?run={HOSTILE_QUOTED}&run=first", "/%3Cscript%3E",
                                  f"/?q={HOSTILE_QUOTED}"])  # fmt: skip
async def test_what_runs_are_called_and_agents_print_is_escaped(app: App, path: str) -> None:
    answer = await ask(app, path)
    assert "<script>" not in answer.text
    assert "&lt;script&gt;" in answer.text


async def test_a_hostile_metric_travels_as_json(app: App) -> None:
    assert "<script>" not in (await ask(app, f"/compare?run={HOSTILE_QUOTED}&run=first")).text
    answer = await ask(app, f"/runs/{HOSTILE_QUOTED}/curves.json")
    assert answer.header("content-type") == "application/json"
    assert HOSTILE in answer.json["names"]


async def test_without_a_token_nothing_is_shown_but_the_style(locked: App) -> None:
    for path in [*PAGES, "/events", "/runs/first/curves.json", "/nothing"]:
        answer = await ask(locked, path)
        assert answer.status == 401
        assert all(name not in answer.text for name in ("broken", "calculator", "reward"))
    assert (await ask(locked, "/static/app.css")).status == 200


async def test_a_token_in_the_address_becomes_a_cookie(locked: App) -> None:
    by_hand = {"sec-fetch-site": "none"}
    answer = await ask(locked, f"/runs/first/log?level=error&token={VIEW}&q=a+b", headers=by_hand)
    assert (answer.status, answer.header("location")) == (303, "/runs/first/log?level=error&q=a+b")
    assert answer.header("referrer-policy") == "no-referrer"
    flags = (answer.header("set-cookie") or "").split("; ")[1:]
    assert flags == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert VIEW not in str(answer.headers)  # cookies travel to every port of a host
    assert (await ask(locked, "/", headers={"cookie": answer.cookie})).status == 200


@pytest.mark.parametrize("headers", [{}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}])
async def test_a_link_of_another_site_is_led_on_by_a_page_of_our_own(locked: App, headers: dict[str, str]) -> None:
    answer = await ask(locked, f"/runs/first/log?level=error&token={VIEW}&q=%22a", headers=headers)
    assert (answer.status, answer.header("location")) == (200, None)
    assert '<meta http-equiv="refresh" content="0; url=/runs/first/log?level=error&amp;q=%22a">' in answer.text
    assert VIEW not in answer.text
    assert (answer.header("referrer-policy"), answer.header("cache-control")) == ("no-referrer", "no-store")
    assert (await ask(locked, "/", headers={"cookie": answer.cookie})).status == 200


@pytest.mark.parametrize("neighbour", ['prefs={"a":1}', "x", "a[0]=1", "=", "\u00e9=1", 'q="a;b'])
async def test_cookies_of_other_programs_do_not_hide_ours(locked: App, neighbour: str) -> None:
    cookie = (await ask(locked, f"/?token={VIEW}")).cookie
    for sent in (f"{neighbour}; {cookie}", f"{cookie}; {neighbour}"):
        assert (await ask(locked, "/", headers={"cookie": sent})).status == 200


async def test_a_cookie_is_worth_what_its_token_was(rights: App) -> None:
    for token, may in ((VIEW, "view"), (EDIT, "edit")):
        cookie = (await ask(rights, f"/?token={token}")).cookie
        assert (await ask(rights, "/", headers={"cookie": cookie})).text == may
        assert (await ask(rights, "/", headers={"authorization": f"Bearer {token}"})).text == may


async def test_a_wrong_token_opens_nothing(rights: App) -> None:
    for headers in (
        {"authorization": "Bearer wrong"}, {"authorization": f"Basic {VIEW}"}, {"cookie": "broken\"; =x"},
        {"cookie": f"sharpen-0={VIEW}"}, {"authorization": "Bearer \u00e9"},
    ):  # fmt: skip
        assert (await ask(rights, "/", headers=headers)).status == 401
    answer = await ask(rights, "/?token=wrong")
    assert (answer.status, answer.header("set-cookie")) == (401, None)


async def test_a_cookie_of_one_dashboard_opens_no_other(rights: App) -> None:
    cookie = (await ask(rights, f"/?token={EDIT}")).cookie
    answer = await ask(rights, "/", headers={"cookie": cookie, "host": "127.0.0.1:8888"})
    assert answer.status == 401


async def test_the_form_takes_a_token_and_leads_back(locked: App) -> None:
    form = {"origin": f"http://{HOST}", "content-type": "application/x-www-form-urlencoded"}
    form["sec-fetch-site"] = "same-origin"
    wrong = await ask(locked, "/token", method="POST", headers=form, body=b"token=wrong&next=/runs/first")
    assert 'name="next" value="/runs/first"' in wrong.text
    answer = await ask(locked, "/token", method="POST", headers=form, body=f"token={VIEW}&next=/runs/first".encode())
    assert (answer.status, answer.header("location")) == (303, "/runs/first")
    assert (await ask(locked, "/", headers={"cookie": answer.cookie})).status == 200


@pytest.mark.parametrize("place", ["//evil.example", "https://evil.example", "/\\evil.example", "",
                                   "javascript:x", "/%09/evil.example", "/%0d%0ax:y", "/%00", "/\u2028"])  # fmt: skip
async def test_the_form_never_leads_elsewhere(locked: App, place: str) -> None:
    form = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
    answer = await ask(locked, "/token", method="POST", headers=form, body=f"token={VIEW}&next={place}".encode())
    assert answer.header("location") == "/"


async def test_an_address_with_two_slashes_leads_nowhere_else(locked: App) -> None:
    answer = await ask(locked, f"//evil.example?token={VIEW}", headers={"sec-fetch-site": "none"})
    assert answer.header("location") == "/"
    assert 'href="//' not in (await ask(locked, "//evil.example")).text


async def test_foreign_hosts_and_origins_are_refused(locked: App) -> None:
    key = {"authorization": f"Bearer {EDIT}"}
    for host in ("evil.example", "127.0.0.1:1.evil.example"):
        assert (await ask(locked, "/", headers=key | {"host": host})).status == 403
    assert (await ask(locked, "/", headers=key | {"origin": "http://evil.example"})).status == 403
    assert (await ask(locked, "/", headers=key | {"origin": "null"})).status == 403
    assert (await ask(locked, "/", headers=key | {"origin": f"http://{HOST}"})).status == 200


async def test_a_change_must_come_from_our_own_page(rights: App) -> None:
    cookie = {"cookie": (await ask(rights, f"/?token={EDIT}")).cookie}

    async def post(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await ask(rights, "/", method="POST", headers=named)).status

    assert await post(**cookie) == 403
    assert await post(**cookie, sec_fetch_site="cross-site") == 403
    assert await post(**cookie, sec_fetch_site="same-site") == 403
    assert await post(**cookie, sec_fetch_site="same-origin") == 200
    assert await post(**cookie, origin=f"http://{HOST}") == 200
    assert await post(authorization=f"Bearer {EDIT}") == 200
    assert await post(origin=f"http://{HOST}") == 401


async def test_without_any_token_everybody_may_look_and_nobody_change(source: RunsSource, app: App) -> None:
    assert "read-only" in (await ask(app, "/")).text


async def test_head_and_options_are_answered(app: App) -> None:
    for path in ("/", "/runs/first", "/events", "/runs/first/curves.json"):
        head = await ask(app, path, method="HEAD")
        assert head.status == 200
        assert_guarded(head)
        options = await ask(app, path, method="OPTIONS")
        assert (options.status, options.header("allow")) in ((405, "GET, HEAD"), (405, "HEAD, GET"))
        assert_guarded(options)


async def test_errors_come_in_the_form_that_is_wanted(app: App) -> None:
    page = await ask(app, "/runs/nothing")
    assert page.status == 404
    assert "the nearest are" in page.text
    assert page.text.startswith("<!doctype html>")
    piece = await ask_htmx(app, "/runs/nothing")
    assert (piece.status, piece.header("content-type")) == (404, "text/plain; charset=utf-8")
    data = await ask(app, "/runs/nothing/curves.json")
    assert data.json["error"]["status"] == 404


async def test_an_unexpected_error_is_logged_once_and_not_shown(
    source: RunsSource, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(source, "runs", fail)
    with caplog.at_level(logging.INFO):
        answer = await ask(make_app(source, view_token=None, edit_token=None), "/")
    assert answer.status == 500
    assert "secret" not in answer.text
    assert_guarded(answer)
    assert [record.message for record in caplog.records] == ["GET / failed"]


async def test_an_address_adds_no_lines_to_the_log(
    source: RunsSource, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError(name)

    monkeypatch.setattr(source, "entry", fail)
    assert (await ask(make_app(source, view_token=None, edit_token=None), "/runs/a%0aERROR b")).status == 500
    assert [record.message for record in caplog.records] == ["GET /runs/a%0AERROR%20b failed"]


async def test_tokens_are_not_logged(locked: App, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for path in (f"/?token={EDIT}", "/?token=wrong-but-secret", f"/nothing?token={VIEW}"):
            answer = await ask(locked, path)
            assert "wrong-but-secret" not in answer.text
    assert "token-of-this-test" not in caplog.text
    assert "wrong-but-secret" not in caplog.text
