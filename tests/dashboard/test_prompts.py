"""The candidates of a search over prompts."""

from pathlib import Path

import pytest
from starlette.types import ASGIApp as App

from sharpen.types import PromptTemplate
from tests.algorithm.internals import Candidate, CandidateBook, Cost, Score, write_records
from tests.dashboard.internals import RunsSource, make_app

from .asgi_client import ask
from .made_rollouts import EVIL, make_folder


def book() -> CandidateBook:
    made = CandidateBook()
    made.add(Candidate("v0", {"prompt": PromptTemplate("Which date?\n{text}")}, score=Score.of([0.0, 1.0])))
    better = {"prompt": PromptTemplate("Which exact date?\n{text}")}
    made.add(Candidate("v1", better, ["v0"], 1, critique=EVIL, score=Score.of([1.0, 1.0]), cost=Cost(rollouts=4)))
    made.add(Candidate("v2", {"prompt": PromptTemplate(EVIL)}, ["v1"], 2, status="rejected", reason=EVIL))
    made.best_version = "v1"
    return made


@pytest.fixture
def pages(tmp_path: Path) -> App:
    make_folder(tmp_path)
    write_records(tmp_path / "lab" / "1-apo" / "prompts", book())
    write_records(tmp_path / "lab" / "2-gepa" / "prompts", book())
    return make_app(RunsSource(tmp_path), view_token=None, edit_token=None)


async def test_the_tree_and_the_best_candidate_are_shown(pages: App) -> None:
    text = (await ask(pages, "/runs/lab/prompts")).text
    assert "★ v1 1.00" in text
    assert text.count('class="node ') == 3
    assert 'class="edge path"' in text
    assert "<ins> exact</ins>" in text
    assert "4 rollouts" in text
    assert "<style" not in text
    assert "<script>document" not in text
    assert "1-apo" in text
    assert "2-gepa" in text


async def test_another_candidate_and_another_stage_have_an_address(pages: App) -> None:
    answer = await ask(pages, "/runs/lab/prompts?stage=2-gepa&version=v2")
    assert "Changes from its parent" in answer.text
    assert "Changes from the seed" in answer.text
    assert "<img" not in answer.text
    piece = await ask(pages, "/runs/lab/prompts?version=v0", headers={"hx-request": "true", "hx-target": "candidate"})
    assert "<html" not in piece.text
    assert "Which date?" in piece.text


async def test_a_candidate_or_a_stage_that_is_not_there_is_named(pages: App) -> None:
    for query in ("version=v9", "stage=..%2F..", "stage=3-none"):
        assert (await ask(pages, f"/runs/lab/prompts?{query}")).status == 404
