"""Searches that are killed, interrupted, and started again: nothing is paid for twice, counted at the upstream."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.algorithm.internals import CandidateBook
from tests.algorithm.verl.training_programs import eventually

from .programs.search_programs import Names, SearchProgram, SearchPrograms
from .programs.upstream import Upstream, answer_to

RUNNER = "execution.runners"
SLOTS = 3  # of each of the two runners
BRANCHES = 4  # of a round
Point = Callable[[SearchProgram, random.Random], None]
"""Waits until it is time to kill a program."""
SMALL = {"beam_width": 1, "branch_factor": 1, "beam_rounds": 1}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as found:
        yield found


@pytest.fixture(scope="module")
def programs(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchPrograms]:
    found = SearchPrograms(tmp_path_factory.mktemp("searches"), upstream)
    yield found
    found.close()


@pytest.fixture(scope="module")
def whole(programs: SearchPrograms) -> SearchProgram:
    """A search that nothing happened to."""
    return finish(programs, "whole")


def finish(programs: SearchPrograms, name: str, **options: Any) -> SearchProgram:
    with programs.life(name, **options) as program:
        assert program.wait() == 0, program.output
    return program


class Payments:
    """What the lives of one run have paid for. Each life asks for a thing once, and for nothing that is kept."""

    def __init__(self) -> None:
        self.kept: Names = set()
        self.num_lost = 0
        """Calls that were under way when their life ended."""

    def take(self, program: SearchProgram) -> None:
        """A life that is over."""
        calls = Counter(program.calls())
        assert [name for name, count in calls.items() if count > 1] == []
        assert set(calls) & self.kept == set()
        kept = program.paid()
        assert self.kept <= kept
        assert {("critic", mark) for model, mark in calls if model == "editor"} <= kept  # what was used is kept
        assert kept <= self.kept | set(calls)
        self.num_lost += len(set(calls) - kept)
        self.kept = kept


def assert_orderly(program: SearchProgram) -> None:
    """Nothing is left to do, nothing was completed twice, and the book knows what was paid."""
    stored, book = program.stored(), program.book
    assert stored.queue_length == 0
    assert {each.status for each in stored.rollouts} == {"succeeded"}
    for attempts in stored.attempts.values():
        assert [each.status for each in attempts].count("succeeded") == 1
    assert book.cost.rollouts == len(stored.rollouts)
    assert stored.latest is not None
    assert stored.latest.resources["prompt"] == book.best.template


# -- killed ------------------------------------------------------------------------------------------


def after_a_time(program: SearchProgram, chance: random.Random) -> None:
    time.sleep(chance.uniform(0, 4))


def after_calls(program: SearchProgram, chance: random.Random) -> None:
    count = chance.randint(1, 40)
    eventually(lambda: len(program.calls()) >= count, "some calls")


def within(model: str) -> Point:
    """In the middle of a call, which is answered to nobody."""

    def wait(program: SearchProgram, chance: random.Random) -> None:
        program.upstream.hold(lambda request: request["model"] == model)
        eventually(program.upstream.is_holding.is_set, f"a call of the {model}")

    return wait


def live_on(programs: SearchPrograms, name: str, points: Sequence[Point], **options: Any) -> SearchProgram:
    """A run that is killed at each of these points, and then comes to its end; with what it may pay."""
    payments, chance = Payments(), random.Random(1)
    for wait in points:
        with programs.life(name, **options) as program:
            wait(program, chance)
        payments.take(program)
    program = finish(programs, name, **options)
    payments.take(program)
    assert payments.num_lost > 0
    assert_orderly(program)
    return program


@pytest.mark.slow
def test_a_search_that_is_killed_in_the_middle_of_a_critique_pays_for_nothing_twice(programs: SearchPrograms) -> None:
    program = live_on(programs, "once", [within("critic")], settings=SMALL)
    assert Counter(model for model, _ in program.calls()).keys() == {"main", "critic", "editor"}


@pytest.mark.slow
def test_a_search_that_is_killed_again_and_again_comes_to_the_same_and_pays_once(
    programs: SearchPrograms, whole: SearchProgram
) -> None:
    points = (after_a_time, after_calls, within("critic"), within("editor"), after_a_time)
    program = live_on(programs, "killed", points)
    assert program.outcome == whole.outcome
    assert finish(programs, "killed").calls() == []  # a run that is done has nothing to pay for
    assert program.outcome == whole.outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "points"), [("GEPA", (after_calls, within("reflector"))), ("FewShot", (after_calls, after_calls))]
)
def test_other_searches_that_are_killed_come_to_the_same_and_pay_once(
    programs: SearchPrograms, algorithm: str, points: Sequence[Point]
) -> None:
    whole = finish(programs, f"whole {algorithm}", algorithm=algorithm)
    program = live_on(programs, f"killed {algorithm}", points, algorithm=algorithm)
    assert program.outcome == whole.outcome
    assert len(whole.book) > 2


@pytest.mark.slow
def test_a_kill_while_the_state_is_written_costs_no_more_than_the_answer_that_was_to_be_kept(
    programs: SearchPrograms, whole: SearchProgram
) -> None:
    payments = Payments()
    points = (
        (r"open .*/\.algorithm\.json\..*", 2),  # an answer is there, and nothing of its checkpoint
        (r"os.rename .*/algorithm\.json", 3),
        (r"os.rename .*/candidates\.txt", 2),
        (r"os.rename .*/loop-.*\.state", 2),
    )
    for point in points:
        with programs.life("points", die_at=point) as program:
            eventually(lambda: program.pid not in program.family(), "the kill")
        assert program.wait() == -signal.SIGKILL, program.output
        payments.take(program)
    program = finish(programs, "points")
    payments.take(program)
    assert program.outcome == whole.outcome
    assert_orderly(program)
    assert [path.name for path in program.run.rglob(".*.tmp")] == []


# -- a part of it is killed --------------------------------------------------------------------------


def scores(book: CandidateBook) -> list[Any]:
    """What a search has found, whatever it took."""
    return [
        (each.version, each.parents, each.template, each.critique, each.score, each.status, each.reason)
        for each in book
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "most_repeated"),
    [(RUNNER, 2 * SLOTS), ("llm_proxy", BRANCHES + 2 * 2 * SLOTS), (" store", 0)],
    ids=["a runner", "the gateway", "the store"],
)
def test_whichever_process_of_a_search_is_killed_the_scores_are_honest(
    programs: SearchPrograms, whole: SearchProgram, words: str, most_repeated: int
) -> None:
    with programs.life(f"without {words}") as program:
        for answer in ("It lacks", "right"):
            program.upstream.hold(lambda request: answer_to(request).startswith(answer))  # noqa: B023 - used at once
            eventually(program.upstream.is_holding.is_set, f"a call whose answer is {answer}")
            runner = program.upstream.held.get("metadata", {}).get("pid") if words == RUNNER else None
            os.kill(int(runner or program.child(words)), signal.SIGKILL)
            program.upstream.let_go()
        assert program.wait() == 0, program.output
    assert scores(program.book) == scores(whole.book)
    calls = Counter(program.calls())
    assert calls.total() - len(calls) <= most_repeated  # what was under way
    assert program.stored().queue_length == 0


# -- interrupted -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_ends_a_search_in_order_with_the_best_published_and_it_can_be_resumed(
    programs: SearchPrograms, upstream: Upstream, whole: SearchProgram
) -> None:
    payments = Payments()
    with programs.life("interrupted") as program:
        eventually(lambda: "round 2" in program.output, "the second round")
        program.send(signal.SIGINT)
        assert program.wait() in (-signal.SIGINT, 1, 130), program.output
        assert program.result["status"] == "interrupted"
    payments.take(program)
    stored = program.stored()
    assert stored.latest is not None
    assert stored.latest.resources["prompt"] == program.book.best.template != whole.book.seed.template
    program = finish(programs, "interrupted")
    payments.take(program)
    assert program.outcome == whole.outcome
    assert_orderly(program)
