"""A search in PostgreSQL keeps its bound of effort and still finds everything."""

import time

import pytest

from sharpen import PostgresStore
from sharpen.types import EnqueueRolloutRequest
from tests.store.internals import search, sql_search

from ..servers import PostgresServer
from ..worlds import Clock, Ground

pytestmark = pytest.mark.servers


async def test_a_window_that_takes_too_long_is_taken_in_smaller_parts(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    store = ground.database("postgres").open(clock=Clock())
    texts = [f"{'x' * 70_000} {'needle' if number % 7 == 0 else ''}" for number in range(100)]
    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(text, rollout_id=f"ro-{number}") for number, text in enumerate(texts)]
    )
    monkeypatch.setattr(sql_search, "WINDOW_SECONDS", 0.001)
    found, cursor, pages = [], None, 0
    while cursor is not None or pages == 0:
        page = await store.search_rollouts(text="needle", order="oldest", limit=4, cursor=cursor)
        found += [rollout.rollout_id for rollout in page.items]
        cursor, pages = page.next_cursor, pages + 1
    assert found == [f"ro-{number}" for number in range(0, 100, 7)]
    await store.close()


async def test_a_search_that_finds_nothing_ends_in_time_and_goes_on_where_it_ended(postgres: PostgresServer):
    schema = postgres.new_schema()
    store = PostgresStore(postgres.url(schema))
    # As months of work leave them: made by the database itself.
    columns = "rollout_id, status, phase, finish, start_time, reward, changes, input"
    postgres.execute(
        f"INSERT INTO {schema}.rollouts ({columns}) "
        "SELECT 'ro-' || n, 'succeeded', 'succeeded', n, n, n % 3, '', '\"' || repeat(md5(n::text), 8) || '\"' "
        "FROM generate_series(1, 60000) AS n"
    )
    began, pages, cursor = time.monotonic(), 0, None
    while pages == 0 or cursor is not None:
        page = await store.search_rollouts(text="no such text", order="reward_high", cursor=cursor)
        assert page.items == []
        assert page.is_complete == (page.next_cursor is None)
        pages, cursor = pages + 1, page.next_cursor
    seconds = (time.monotonic() - began) / pages
    assert seconds < 20 * search.SEARCH_SECONDS, "a page takes far longer than it may, even on a busy machine"
    page = await store.search_rollouts()
    assert (len(page.items), page.next_cursor is not None) == (50, True)
    await store.close()
