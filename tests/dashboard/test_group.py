"""A group of rollouts side by side."""

import pytest

from sharpen.store import InMemoryLightningStore
from tests.dashboard.internals import StoreSource, make_app

from .asgi_client import ask
from .made_rollouts import add_group, add_hostile


async def test_a_group_shows_answers_and_advantages_against_the_mean() -> None:
    store = InMemoryLightningStore()
    await add_group(store)
    await add_hostile(store)
    pages = make_app(StoreSource(store, "lab"), view_token=None, edit_token=None)
    text = (await ask(pages, "/runs/lab/rollouts/member-1/group")).text
    assert text.count('class="member') == 3 + text.count('class="member-')
    assert "+0.667" in text
    assert text.count("-0.333") >= 2
    assert "0.333" in text
    assert all(f"answer {number}" in text for number in range(3))
    assert "hostile" not in text
    alone = await ask(pages, "/runs/lab/rollouts/hostile/group")
    assert alone.status == 200
    assert "<script>document" not in alone.text
    assert (await ask(pages, "/runs/lab/rollouts/nobody/group")).status == 404
    await store.close()


@pytest.mark.parametrize("reward", [None, 1e308])
async def test_a_group_without_rewards_or_with_huge_ones_is_shown(reward: float | None) -> None:
    from .made_rollouts import add_rollout

    store = InMemoryLightningStore()
    for number in range(3):
        await add_rollout(store, f"r{number}", "same", reward=reward)
    pages = make_app(StoreSource(store, "lab"), view_token=None, edit_token=None)
    assert "3 rollouts of one task" in (await ask(pages, "/runs/lab/rollouts/r1/group")).text
    await store.close()
