"""Scores in the book, races on the same tasks, and who becomes the best."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sharpen import PromptTemplate
from tests.algorithm.internals import (
    Candidate,
    CandidateBook,
    Cost,
    Evaluations,
    Item,
    Promotion,
    Scoreboard,
    cost_metrics,
    side_by_side,
)
from tests.algorithm.prompts.world import LOST, Play, World

ITEMS = [Item("val", number, number) for number in range(20)]


def by_share(prompt: str, task: int) -> float:
    """The prompt is the number of tasks, of twenty, that it is good for."""
    return float(task < int(prompt))


def candidate(version: str, text: str, **fields: Any) -> Candidate:
    return Candidate(version, {"prompt": PromptTemplate(text)}, **fields)


@contextlib.asynccontextmanager
async def board_of(
    *texts: str, play: Play = by_share, promotion: Promotion = "mean", world: World | None = None, saved: Any = None
) -> AsyncIterator[tuple[Scoreboard, World]]:
    """A board whose candidates v0, v1, … have these prompts; the first is the best so far."""
    world = world or World(play)
    evaluations = Evaluations(world.store, "k")
    board = Scoreboard(CandidateBook(), evaluations, ITEMS, promotion=promotion, saved=saved)
    for number, text in enumerate(texts):
        board.add(candidate(f"v{number}", text, cost=Cost(calls=2)))
    board.book.best_version = "v0"
    async with world.working(), evaluations.following():
        yield board, world


# -- evaluating --------------------------------------------------------------------------------------


async def test_score_and_cost_in_the_book_follow_what_was_evaluated() -> None:
    async with board_of("10") as (board, world):
        await board.evaluate("v0", ITEMS[:5])
        assert board.book.get("v0").score is not None
        assert board.book.get("v0").score.mean == 1.0  # type: ignore[union-attr]
        await board.evaluate("v0", ITEMS)
        found = board.book.get("v0")
    assert found.score is not None
    assert (found.score.mean, found.score.count) == (0.5, 20)
    assert found.cost == Cost(rollouts=20, calls=2)
    assert world.count() == 20
    assert board.metrics()["reward_mean"] == 0.5
    assert board.metrics()["rollouts"] == 20


async def test_what_is_lost_is_left_out_of_the_score_and_counted() -> None:
    async with board_of("10", play=lambda prompt, task: LOST if task == 19 else by_share(prompt, task)) as (board, _):
        await board.evaluate("v0", ITEMS)
    score = board.book.get("v0").score
    assert score is not None
    assert (score.mean, score.count) == (10 / 19, 19)
    assert (board.metrics()["lost"], board.metrics()["rollouts"]) == (1, 20)


async def test_without_any_reward_there_is_no_score_and_no_metric() -> None:
    async with board_of("10", play=lambda prompt, task: LOST) as (board, _):
        assert board.metrics() == {}
        await board.evaluate("v0", ITEMS[:2])
    assert board.book.get("v0").score is None
    assert board.score_text("v0") == "not scored"


async def test_a_board_that_goes_on_knows_what_was_paid_for() -> None:
    async with board_of("10", "15") as (board, world):
        await board.evaluate("v0", ITEMS)
        await board.evaluate("v1", ITEMS[:10])
        saved = json.loads(json.dumps(board.state()))
        costs = [each.cost for each in board.book]
    async with board_of("10", "15", world=world, saved=saved) as (again, _):
        await again.evaluate("v1", ITEMS[10:])
        assert await again.challenge("v1")
        assert world.count() == 40
    assert again.book.get("v0").cost == costs[0]
    assert again.book.get("v1").cost == costs[1] + Cost(rollouts=10)


async def test_what_was_paid_for_before_is_never_missing_while_it_is_recalled() -> None:
    """Two who ask at the same time: the quicker must not write down a score of its own tasks alone."""
    async with board_of("10") as (board, world):
        await board.evaluate("v0", ITEMS)
        saved = json.loads(json.dumps(board.state()))
    async with board_of("10", world=world, saved=saved) as (again, _):
        slow = asyncio.ensure_future(again.evaluate("v0", ITEMS))
        await asyncio.sleep(0)
        await again.evaluate("v0", ITEMS[:1])
        assert again.state()["met"] == saved["met"]
        score = again.book.get("v0").score
        assert score is not None
        assert (score.mean, score.count) == (0.5, 20)
        await slow


# -- races -------------------------------------------------------------------------------------------


async def test_a_race_keeps_the_best_and_marks_all() -> None:
    async with board_of("10", "2", "16", "4") as (board, world):
        kept = await board.race(["v0", "v1", "v2", "v3"], ITEMS, keep=2)
    assert kept == ["v2", "v0"]
    assert [board.book.get(f"v{number}").status for number in range(4)] == ["best", "dropped", "kept", "dropped"]
    assert all(board.book.get(each).reason for each in ("v1", "v3"))
    assert board.book.get("v2").reason is None
    assert world.count() <= 4 * 20


async def test_a_place_in_the_beam_without_rivals_is_still_ranked() -> None:
    """With as many places as candidates nobody leaves, but somebody leads."""
    async with board_of("4", "16") as (board, _):
        assert await board.race(["v0", "v1"], ITEMS, keep=3) == ["v1", "v0"]


async def test_one_alone_pays_nothing() -> None:
    async with board_of("4") as (board, world):
        assert await board.race(["v0"], ITEMS, keep=1) == ["v0"]
    assert world.count() == 0


async def test_a_race_with_tasks_that_are_lost_compares_on_the_others() -> None:
    def half_lost(prompt: str, task: int) -> Any:
        return LOST if prompt == "16" and task % 2 else by_share(prompt, task)

    async with board_of("8", "16", play=half_lost) as (board, _):
        assert (await board.race(["v0", "v1"], ITEMS, keep=1)) == ["v1"]


async def test_who_has_lost_everything_leads_nobody() -> None:
    async with board_of("0", "20", play=lambda prompt, task: LOST if prompt == "20" else 0.0) as (board, _):
        assert (await board.race(["v0", "v1"], ITEMS, keep=2))[0] == "v0"
        assert not await board.challenge("v1")
    assert board.book.best.version == "v0"


# -- the best ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("promotion", "text", "is_promoted"), [
    ("mean", "11", True),
    ("interval", "11", False),
    ("interval", "18", True),
    ("mean", "10 ", False),
    ("interval", "9", False),
])  # fmt: skip
async def test_the_best_is_replaced_on_the_evidence_that_is_asked_for(
    promotion: Promotion, text: str, is_promoted: bool
) -> None:
    async with board_of("10", text, promotion=promotion) as (board, world):
        await board.evaluate("v0", ITEMS)
        assert await board.challenge("v1") is is_promoted
        assert world.count() == 40  # all of the validation set
    assert board.book.best.version == ("v1" if is_promoted else "v0")
    assert board.book.get("v0").status == ("kept" if is_promoted else "best")


async def test_the_best_does_not_challenge_itself() -> None:
    async with board_of("10") as (board, world):
        assert not await board.challenge("v0")
    assert world.count() == 0


async def test_a_best_that_met_a_part_is_compared_on_that_part() -> None:
    async with board_of("0", "4", promotion="interval") as (board, _):
        await board.evaluate("v0", ITEMS[:4])
        assert await board.challenge("v1")  # better on each of the four


async def test_a_lost_pair_is_no_evidence() -> None:
    def lost_for_the_seed(prompt: str, task: int) -> Any:
        return LOST if prompt == "0" and task < 19 else by_share(prompt, task)

    async with board_of("0", "20", play=lost_for_the_seed, promotion="interval") as (board, _):
        await board.evaluate("v0", ITEMS)
        assert not await board.challenge("v1")  # one task in common says nothing


# -- beside it ---------------------------------------------------------------------------------------


def test_costs_are_metrics_and_dollars_only_where_known() -> None:
    assert cost_metrics(Cost(3, 2, 10, 5)) == {"rollouts_total": 3, "calls_total": 2, "tokens_total": 15}
    assert cost_metrics(Cost(dollars=0.5))["dollars_total"] == 0.5


async def test_after_an_error_the_others_are_broken_off_before_it_is_raised() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError):
        await side_by_side(slow(), failing())
    assert ended == ["slow"]


async def test_a_prompt_is_perfect_when_it_has_the_stated_reward_on_every_validation_task() -> None:
    async with board_of("20", "7") as (board, _):
        await board.evaluate("v0", ITEMS[:10])
        assert await board.perfect_version(1.0) is None  # it has not met all tasks
        await board.evaluate("v0", ITEMS)
        assert await board.perfect_version(1.0) == "v0"
        assert await board.perfect_version(1.5) is None
    async with board_of("7") as (board, _):
        await board.evaluate("v0", ITEMS)
        assert await board.perfect_version(1.0) is None


async def test_a_perfect_prompt_need_not_be_the_best() -> None:
    async with board_of("19", "20", promotion="interval") as (board, _):
        await board.evaluate("v0", ITEMS)
        assert not await board.challenge("v1")  # one task more is not evidence
        assert await board.perfect_version(1.0) == "v1"


async def test_a_perfect_reward_may_have_a_rounding_error() -> None:
    async with board_of("any", play=lambda prompt, task: sum([0.1] * 10)) as (board, _):
        await board.evaluate("v0", ITEMS)
        assert await board.perfect_version(1.0) == "v0"
        assert await board.perfect_version(1.001) is None


async def test_only_failures_are_told_by_the_first_of_them() -> None:
    def failing(prompt: str, task: int) -> float:
        if prompt == "good":
            return 0.0
        raise ArithmeticError("no such tool")

    async with board_of("bad", "good", play=failing) as (board, _):
        assert board.only_failures() is None
        await board.evaluate("v0", ITEMS[:2])
        assert board.only_failures() == "ArithmeticError: no such tool"
        await board.evaluate("v1", ITEMS[:2])
        assert board.only_failures() is None
