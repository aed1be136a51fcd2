"""What can be taken away."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from starlette.types import ASGIApp as App

from sharpen.store import InMemoryLightningStore
from tests.dashboard.internals import RunsSource, StoreSource, make_app, metrics_csv

from .asgi_client import ask
from .made_rollouts import add_group, add_hostile


@pytest.fixture
async def pages() -> AsyncIterator[App]:
    store = InMemoryLightningStore()
    await add_group(store)
    await add_hostile(store)
    yield make_app(StoreSource(store, "lab"), view_token=None, edit_token=None)
    await store.close()


async def test_a_list_is_exported_as_lines_of_json_by_its_filter(pages: App) -> None:
    answer = await ask(pages, "/runs/lab/rollouts.jsonl?reward_min=0.9")
    rows = [msgspec.json.decode(line) for line in answer.body.splitlines()]
    assert [row["rollout_id"] for row in rows] == ["member-2"]
    assert "spans" not in rows[0]
    assert "attachment" in (answer.header("content-disposition") or "")
    with_spans = await ask(pages, "/runs/lab/rollouts.jsonl?spans=1")
    assert sum(len(msgspec.json.decode(line)["spans"]) for line in with_spans.body.splitlines()) == 9
    assert (await ask(pages, "/runs/lab/rollouts.jsonl?status=odd")).status == 400
    assert (await ask(pages, f"/runs/lab/rollouts.jsonl?worker={'w' * 2000}")).status == 400
    assert (await ask(pages, "/runs/lab/rollouts.jsonl?reward_min=99")).body == b""


async def test_a_rollout_is_exported_as_json_and_as_markdown(pages: App) -> None:
    answer = await ask(pages, "/runs/lab/rollouts/member-2.json")
    assert answer.json["reward"] == 1.0
    assert len(answer.json["spans"]) == 2
    assert len(answer.json["attempts"]) == 1
    text = (await ask(pages, "/runs/lab/rollouts/member-2.md")).text
    assert "# Rollout member-2" in text
    assert "answer 2" in text
    assert "calculator" in text
    for name in ("nobody.json", "nobody.md"):
        assert (await ask(pages, f"/runs/lab/rollouts/{name}")).status == 404


async def test_a_rollout_whose_spans_were_dropped_is_exported_without_them() -> None:
    store = InMemoryLightningStore(max_span_bytes=0)
    await add_group(store)
    pages = make_app(StoreSource(store, "lab"), view_token=None, edit_token=None)
    answer = await ask(pages, "/runs/lab/rollouts/member-2.json")
    assert (answer.status, answer.json["reward"], answer.json["spans"]) == (200, 1.0, [])
    await store.close()


async def test_hostile_text_cannot_leave_its_fence_and_is_no_page(pages: App) -> None:
    answer = await ask(pages, "/runs/lab/rollouts/hostile.md")
    assert (answer.header("content-type") or "").startswith("text/plain")
    assert "\x1b" not in answer.text
    outside = answer.text.split("```")[::2]
    assert all("<script>" not in part for part in outside)


async def test_metrics_are_exported_as_csv(runs_folder: Path) -> None:
    source = RunsSource(runs_folder)
    answer = await ask(make_app(source, view_token=None, edit_token=None), "/runs/first/metrics.csv")
    lines = answer.text.splitlines()
    assert lines[0].startswith("step,time,val/reward_mean")
    assert len(lines) == 7
    await source.close()


def test_a_cell_is_never_a_formula_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": "=HYPERLINK(1)", "b": -1.5}\n{broken\n{"c": [1], "a": "@x"}\n')
    assert "".join(metrics_csv(path)) == "a,b,c\n'=HYPERLINK(1),-1.5,\n'@x,,[1]\n"
