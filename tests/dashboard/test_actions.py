"""Cancel and retry."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from starlette.types import ASGIApp as App

from sharpen.store import InMemoryLightningStore, LightningStore
from tests.dashboard.internals import RunsSource, StoreSource, make_app

from .asgi_client import Answer, ask
from .made_rollouts import add_group, add_rollout

EDIT = {"authorization": "Bearer edit"}
LIST = "/runs/lab/rollouts"


@pytest.fixture
async def store() -> AsyncIterator[LightningStore]:
    made = InMemoryLightningStore()
    await add_group(made)
    await made.enqueue_rollout("waits", rollout_id="waits")
    yield made
    await made.close()


@pytest.fixture
def pages(store: LightningStore) -> App:
    return make_app(StoreSource(store, "lab"), view_token="look", edit_token="edit")


async def post(pages: App, action: str, fields: list[tuple[str, str]], **headers: str) -> Answer:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    body = urlencode(fields).encode()
    return await ask(pages, f"/runs/lab/actions/{action}", method="POST", headers=EDIT | kind | headers, body=body)


def key_in(answer: Answer) -> str:
    found = re.search(r'name="key" value="(\w+)"', answer.text)
    assert found is not None
    return found[1]


async def test_a_cancel_is_confirmed_then_done_then_told(store: LightningStore, pages: App) -> None:
    fields = [("id", "waits"), ("id", "member-0"), ("back", f"{LIST}?mode=train")]
    asked = await post(pages, "cancel", fields)
    assert "Cancel 1 rollout?" in asked.text
    assert " 1 of the selected rollouts" in asked.text
    assert (await _status(store, "waits")) == "queuing"
    done = await post(pages, "cancel", [*fields, ("key", key_in(asked))])
    assert done.status == 303
    assert done.header("location") == f"{LIST}?mode=train&did=cancel&done=1&left=1"
    assert (await _status(store, "waits")) == "cancelled"
    assert (await _status(store, "member-0")) == "succeeded"
    told = await ask(pages, done.header("location") or "", headers=EDIT)
    assert "1 rollout cancelled; 1 had already finished." in told.text


async def test_a_retry_enqueues_the_same_task_anew_and_only_once(store: LightningStore, pages: App) -> None:
    fields = [("id", "member-2"), ("back", f"{LIST}/member-2")]
    key = key_in(await post(pages, "retry", fields))
    for _ in range(2):  # a form that is sent twice
        assert (await post(pages, "retry", [*fields, ("key", key)])).status == 303
    made = [each for each in await store.query_rollouts() if (each.metadata or {}).get("retry_of") == "member-2"]
    assert len(made) == 1
    assert made[0].input == {"question": "What is 2 + 2?"}
    assert made[0].status == "queuing"
    assert made[0].mode == "train"
    assert made[0].resources_id == "kit"
    assert made[0].config.max_attempts == 2


async def test_the_way_back_never_leads_elsewhere(pages: App) -> None:
    for back in ("https://evil.example/", "//evil.example", "/runs/lab/rolloutsX", "javascript:alert(1)", ""):
        answer = await post(pages, "cancel", [("id", "member-0"), ("back", back), ("key", "k")])
        assert (answer.header("location") or "").startswith(f"{LIST}?did=cancel")


async def test_leaving_it_leads_back_to_where_the_viewer_was(pages: App) -> None:
    for back, left in (
        (f"{LIST}?mode=train&did=cancel", f"{LIST}?mode=train"),
        (f"{LIST}/member-0", f"{LIST}/member-0"),
        ("https://evil.example/?mode=train", LIST),
    ):
        answer = await post(pages, "retry", [("id", "member-0"), ("back", back)])
        assert f'href="{left}" data-back' in answer.text


async def test_nothing_changes_without_the_edit_token(store: LightningStore, pages: App) -> None:
    for headers in ({"authorization": "Bearer look"}, {"authorization": "Bearer wrong"}):
        answer = await post(pages, "cancel", [("id", "waits"), ("key", "k")], **headers)
        assert answer.status in (401, 403)
    foreign = await post(pages, "cancel", [("id", "waits"), ("key", "k")], origin="https://evil.example")
    assert foreign.status == 403
    assert (await ask(pages, "/runs/lab/actions/cancel?id=waits&key=k", headers=EDIT)).status == 405
    assert (await _status(store, "waits")) == "queuing"


async def test_a_wrong_form_is_named(pages: App) -> None:
    assert (await post(pages, "cancel", [])).status == 400
    assert (await post(pages, "cancel", [("id", "x"), ("key", "<b>")])).status == 400
    assert (await post(pages, "retry", [("id", f"r{number}") for number in range(501)])).status == 400
    assert (await post(pages, "retry", [("id", "x" * 300_000)])).status == 413
    wrong = await ask(pages, "/runs/lab/actions/retry", method="POST", headers=EDIT, body=b"{}")
    assert wrong.status == 400


async def test_a_report_in_an_address_holds_no_words_of_others(pages: App) -> None:
    answer = await ask(pages, f"{LIST}?did=cancel&done=%3Cb%3E9&left=pay+me", headers=EDIT)
    assert "pay me" not in answer.text
    assert 'class="report"' not in answer.text


async def test_a_file_says_why_it_cannot_be_changed(runs_folder: Path) -> None:
    source = RunsSource(runs_folder)
    pages = make_app(source, view_token=None, edit_token="edit")
    kind = {"content-type": "application/x-www-form-urlencoded"}
    answer = await ask(pages, "/runs/first/actions/cancel", method="POST", headers=EDIT | kind, body=b"id=x&key=k")
    assert answer.status == 403
    assert "address of the running store" in answer.text
    await source.close()


async def test_boxes_and_buttons_are_there_for_those_who_may_change(store: LightningStore, pages: App) -> None:
    await add_rollout(store, "one", "task")
    text = (await ask(pages, LIST, headers=EDIT)).text
    assert 'name="id" value="one"' in text
    assert "actions/retry" in text
    looked = (await ask(pages, LIST, headers={"authorization": "Bearer look"})).text
    assert "actions/retry" not in looked


async def _status(store: LightningStore, rollout_id: str) -> str:
    found = await store.get_rollout_by_id(rollout_id)
    assert found is not None
    return found.status


async def test_long_ids_that_begin_alike_are_retried_each(pages: App, store: LightningStore) -> None:
    ids = [f"{'x' * 190}{end}" for end in "ab"]
    for each in ids:
        await store.enqueue_rollout(each, rollout_id=each)
    before = (await store.statistics())["total_rollouts"]
    await post(pages, "retry", [*(("id", each) for each in ids), ("back", LIST), ("key", "k1")])
    assert (await store.statistics())["total_rollouts"] == before + 2
