"""The list of rollouts."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import ASGIApp as App

from sharpen.store import InMemoryLightningStore, LightningStore
from sharpen.types import RolloutPage
from tests.dashboard.internals import StoreSource, make_app

from .asgi_client import ask
from .made_rollouts import EVIL, add_group, add_hostile, add_rollout

LIST = "/runs/lab/rollouts"


@pytest.fixture
async def store() -> AsyncIterator[LightningStore]:
    made = InMemoryLightningStore()
    await add_group(made)
    yield made
    await made.close()


@pytest.fixture
def pages(store: LightningStore) -> App:
    return make_app(StoreSource(store, "lab"), view_token=None, edit_token=None)


async def test_the_list_shows_the_newest_rollouts_with_status_task_and_reward(pages: App) -> None:
    answer = await ask(pages, LIST)
    assert answer.status == 200
    assert answer.text.index("member-2") < answer.text.index("member-0")
    assert "question: What is 2 + 2?" in answer.text
    assert "1.000" in answer.text
    assert "3 rollouts" in answer.text


async def test_filters_in_the_address_choose_the_rollouts(pages: App) -> None:
    answer = await ask(pages, f"{LIST}?status=succeeded&mode=train&reward_min=0.5&q=member")
    assert "member-2" in answer.text
    assert "member-1" not in answer.text
    assert 'value="0.5"' in answer.text  # the form says what is asked for
    assert "rollouts.jsonl?status=succeeded&amp;mode=train&amp;reward_min=0.5&amp;q=member" in answer.text


async def test_a_search_that_finds_nothing_says_so(pages: App) -> None:
    assert "No rollouts match" in (await ask(pages, f"{LIST}?q=nowhere")).text


@pytest.mark.parametrize("query", ["reward_min=much", "status=done", "order=best", "mode=x", "cursor=%00nonsense"])
async def test_a_wrong_value_is_named_and_the_form_keeps_it(pages: App, query: str) -> None:
    answer = await ask(pages, f"{LIST}?{query}")
    assert answer.status == 400
    assert 'role="alert"' in answer.text


async def test_pages_lead_on_and_back_again(store: LightningStore, pages: App) -> None:
    for number in range(120):
        await add_rollout(store, f"more-{number:03}", number)
    first = await ask(pages, LIST)
    second = await ask(pages, _href(first.text, 'rel="next"'))
    third = await ask(pages, _href(second.text, 'rel="next"'))
    assert "more-119" in first.text
    assert "more-119" not in second.text
    assert "member-0" in third.text
    back = await ask(pages, _href(third.text, 'rel="prev"'))
    assert _ids(back.text) == _ids(second.text)
    assert _ids((await ask(pages, _href(back.text, 'rel="prev"'))).text) == _ids(first.text)


async def test_htmx_gets_the_list_alone(pages: App) -> None:
    answer = await ask(pages, LIST, headers={"hx-request": "true", "hx-target": "rollout-list"})
    assert answer.text.lstrip().startswith("<section")
    assert "<html" not in answer.text


async def test_rows_of_an_open_page_are_given_anew(pages: App) -> None:
    answer = await ask(pages, "/runs/lab/rollout-rows?id=member-1&id=gone")
    assert 'data-id="member-1"' in answer.text
    assert "member-2" not in answer.text


async def test_what_agents_write_is_only_text(store: LightningStore, pages: App) -> None:
    await add_hostile(store)
    answer = await ask(pages, LIST)
    assert "&lt;script&gt;document" in answer.text
    assert "<script>document" not in answer.text
    assert "\x1b" not in answer.text
    assert "\u202e" not in answer.text
    assert EVIL not in answer.text


async def test_links_stay_under_the_root_path(pages: App) -> None:
    answer = await ask(pages, LIST, root_path="/dash")
    assert answer.text.count('href="/runs') == 0
    assert 'href="/dash/runs/lab/rollouts/member-0"' in answer.text


async def test_a_read_only_page_has_no_boxes_to_tick(pages: App) -> None:
    assert 'name="id"' not in (await ask(pages, LIST)).text


class _Bounded(InMemoryLightningStore):
    """A store so large that a search ends at its bound."""

    async def search_rollouts(self, **asked: Any) -> RolloutPage:
        return RolloutPage([], next_cursor="further", examined=120_000, is_complete=False)


async def test_a_search_that_reached_its_bound_says_so_and_goes_on() -> None:
    pages = make_app(StoreSource(_Bounded(), "lab"), view_token=None, edit_token=None)
    text = (await ask(pages, f"{LIST}?q=needle")).text
    assert "120,000 rollouts" in text
    assert "q=needle&amp;cursor=further" in text


async def test_an_id_is_found_at_once_in_a_store_of_any_size() -> None:
    store = _Bounded()
    await add_rollout(store, "ro-far", "a task")
    pages = make_app(StoreSource(store, "lab"), view_token=None, edit_token=None)
    assert 'data-id="ro-far"' in (await ask(pages, f"{LIST}?q=ro-far")).text
    assert 'data-id="ro-far"' not in (await ask(pages, f"{LIST}?q=ro-far&status=failed")).text


def _href(page: str, mark: str) -> str:
    import html

    link = page[page.index(mark) :]
    return html.unescape(link[link.index('href="') + 6 :].partition('"')[0])


def _ids(page: str) -> list[str]:
    return [part.partition('"')[0] for part in page.split('data-id="')[1:]]
