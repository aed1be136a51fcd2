"""The episodes of a simulator."""

import json
from pathlib import Path

import pytest
from starlette.types import ASGIApp as App

from tests.dashboard.internals import RunsSource, make_app, read_episodes

from .asgi_client import ask
from .made_rollouts import make_folder


@pytest.fixture
def pages(tmp_path: Path) -> App:
    folder = make_folder(tmp_path)
    lines = [
        {"iteration": number // 10, "stage": ("train", "val")[number % 2], "episode": number, "reward": float(number)}
        | {"length": 10 * number, "metrics": {"<b>": number / 2}, "angle": 0.25}
        for number in range(240)
    ]
    odd = '{"iteration": "x", "reward": "NaN", "metrics": 3}\n{broken\n[1]\n{"iteration": 1'
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + odd)
    return make_app(RunsSource(tmp_path), view_token=None, edit_token=None)


async def test_the_table_and_the_spread_are_shown_and_damage_is_counted(pages: App) -> None:
    text = (await ask(pages, "/runs/lab/episodes")).text
    assert "241 episodes" in text
    assert "2 damaged lines" in text
    assert text.count('<g class="box">') == 24
    assert "&lt;b&gt;" in text
    assert ">angle<" in text
    assert "<b>" not in text.replace("&lt;b&gt;", "")


async def test_filters_and_order_choose_the_episodes(pages: App) -> None:
    text = (await ask(pages, "/runs/lab/episodes?stage=val&from=3&to=4&order=reward_high")).text
    assert "10 episodes" in text
    assert text.index(">49.000<") < text.index(">31.000<")
    assert ">train<" in text
    second = (await ask(pages, "/runs/lab/episodes?offset=200")).text
    assert second.count("<tr data-row") == 41
    for query in ("from=x", "order=best", "offset=-1"):
        assert (await ask(pages, f"/runs/lab/episodes?{query}")).status == 400


async def test_a_run_without_episodes_has_no_tab_of_them(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "train_result.csv").write_text("iter,loss\n1,0.5\n")
    pages = make_app(RunsSource(tmp_path), view_token=None, edit_token=None)
    assert "/runs/lab/episodes" not in (await ask(pages, "/runs/lab")).text


def test_of_a_big_file_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(f'{{"iteration": {number}, "reward": 1.0}}\n' for number in range(1000)))
    read = read_episodes(path, most_bytes=1000)
    assert read.episodes[-1].iteration == 999
    assert len(read.episodes) < 40
    assert not read.num_damaged
    assert read.skipped_bytes > 30_000
