"""Versions of resources."""

from collections.abc import AsyncIterator

import pytest
from starlette.types import ASGIApp as App

from sharpen.store import InMemoryLightningStore
from sharpen.types import LLM, PromptTemplate
from tests.dashboard.internals import StoreSource, make_app

from .asgi_client import ask
from .made_rollouts import EVIL, KEY, add_group


@pytest.fixture
async def pages() -> AsyncIterator[App]:
    store = InMemoryLightningStore()
    await add_group(store)
    await store.add_resources({"evil": PromptTemplate(EVIL), "llm": LLM("http://[::1]:80/v1", "m", KEY)}, "other")
    yield make_app(StoreSource(store, "lab"), view_token=None, edit_token=None)
    await store.close()


async def test_the_list_says_what_each_version_changed(pages: App) -> None:
    text = (await ask(pages, "/runs/lab/resources")).text
    assert "3 versions" in text
    assert "~ prompt" in text
    assert "+ prompt" in text
    assert "− prompt" in text  # noqa: RUF001 - what the other set does not have
    assert "against=kit%401" in text


async def test_a_version_is_compared_with_another_word_by_word(pages: App) -> None:
    text = (await ask(pages, "/runs/lab/resources/kit/2?against=1")).text
    assert "<ins> very</ins>" in text
    assert ">unchanged<" in text
    other = (await ask(pages, "/runs/lab/resources/kit/2?against=other@1")).text
    assert "removed" in other
    assert "<script>document" not in other


@pytest.mark.parametrize("path", ["", "/kit/1", "/kit/2?against=1", "/other/1", "/other/1?against=kit@1"])
async def test_no_key_is_ever_shown(pages: App, path: str) -> None:
    answer = await ask(pages, f"/runs/lab/resources{path}")
    assert answer.status == 200
    assert KEY not in answer.text
    assert "env:KEY" not in answer.text


async def test_what_is_not_there_is_named(pages: App) -> None:
    for path, status in (("kit/9", 404), ("none/1", 404), ("kit/x", 400), ("kit/1?against=x", 400)):
        assert (await ask(pages, f"/runs/lab/resources/{path}")).status == status
