"""Searches that are killed, interrupted, and started again: nothing is paid for twice, counted at the upstream."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sharpen.algorithm.prompts.candidates import CandidateBook, Cost
from tests.algorithm.verl.training_programs import eventually

from .programs.search_programs import Names, SearchProgram, SearchPrograms
from .programs.upstream import Upstream, answer_to

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
    since_the_last_candidate = program.state["search"].get("open_cost", {}).get("rollouts", 0)
    paid = sum((each.cost for each in book), Cost()).rollouts + since_the_last_candidate
    assert paid == len(stored.rollouts)
    assert stored.latest is not None
    assert stored.latest.resources["prompt"] == book.best.template


# -- killed ------------------------------------------------------------------------------------------


def test_a_search_that_is_killed_in_the_middle_of_a_critique_pays_for_nothing_twice(
    programs: SearchPrograms, upstream: Upstream
) -> None:
    payments = Payments()
    with programs.life("once", settings=SMALL) as program:
        upstream.hold(lambda request: request["model"] == "critic")
        eventually(upstream.is_holding.is_set, "a critique")
    payments.take(program)
    assert payments.num_lost >= 1
    program = finish(programs, "once", settings=SMALL)
    payments.take(program)
    assert Counter(model for model, _ in program.calls())["critic"] == 1
    assert_orderly(program)


def _kills(upstream: Upstream, chance: random.Random) -> list[Callable[[SearchProgram], None]]:
    """Waits for the points at which lives end."""

    def after_calls(program: SearchProgram) -> None:
        count = chance.randint(1, 40)
        eventually(lambda: len(program.calls()) >= count, "some calls")

    def within(model: str) -> Callable[[SearchProgram], None]:
        def wait(program: SearchProgram) -> None:
            upstream.hold(lambda request: request["model"] == model)
            eventually(upstream.is_holding.is_set, f"a call of the {model}")

        return wait

    def after_a_time(program: SearchProgram) -> None:
        time.sleep(chance.uniform(0, 4))

    return [after_a_time, after_calls, within("critic"), within("editor"), after_a_time]


@pytest.mark.slow
@pytest.mark.parametrize("number", [1])
def test_a_search_that_is_killed_again_and_again_comes_to_the_same_and_pays_once(
    programs: SearchPrograms, upstream: Upstream, whole: SearchProgram, number: int
) -> None:
    chance, payments, name = random.Random(number), Payments(), f"killed-{number}"
    for wait in _kills(upstream, chance):
        with programs.life(name) as program:
            wait(program)
        payments.take(program)
    program = finish(programs, name)
    payments.take(program)
    assert payments.num_lost > 0
    assert program.outcome == whole.outcome
    assert_orderly(program)


@pytest.mark.slow
def test_a_kill_while_the_state_is_written_costs_no_more_than_the_answer_that_was_to_be_kept(
    programs: SearchPrograms, whole: SearchProgram
) -> None:
    payments = Payments()
    points = (
        (r"open .*/\.algorithm\.json\..*", 2),  # an answer is there, and nothing of its checkpoint
        (r"os.rename .*/algorithm\.json", 3),
        (r"os.rename .*/candidates\.json", 1),
        (r"os.rename .*/candidates\.svg", 2),
        (r"os.rename .*/loop-.*\.state", 2),
    )
    for point in points:
        with programs.life("points", die_at=point) as program:
            assert program.wait() == -signal.SIGKILL, program.output
        payments.take(program)
    program = finish(programs, "points")
    payments.take(program)
    assert program.outcome == whole.outcome
    assert_orderly(program)
    assert [path.name for path in program.run.rglob(".*.tmp")] == []


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["GEPA", "FewShot"])
def test_other_searches_that_are_killed_come_to_the_same_and_pay_once(
    programs: SearchPrograms, upstream: Upstream, algorithm: str
) -> None:
    whole, payments, chance = finish(programs, f"whole {algorithm}", algorithm=algorithm), Payments(), random.Random(1)
    num_calls = len(whole.calls())
    for _ in range(2):
        with programs.life(f"killed {algorithm}", algorithm=algorithm) as program:
            count = chance.randrange(num_calls // 3)
            eventually(lambda: len(program.calls()) > count, "some calls")  # noqa: B023 - used at once
        payments.take(program)
    program = finish(programs, f"killed {algorithm}", algorithm=algorithm)
    payments.take(program)
    assert program.outcome == whole.outcome
    assert_orderly(program)


# -- a part of it is killed --------------------------------------------------------------------------


def scores(book: CandidateBook) -> list[Any]:
    """What a search has found, whatever it took."""
    return [
        (each.version, each.parents, each.template, each.critique, each.score, each.status, each.reason)
        for each in book
    ]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["execution.child", "llm_proxy", " store"])
def test_whichever_process_of_a_search_is_killed_the_scores_are_honest(
    programs: SearchPrograms, upstream: Upstream, whole: SearchProgram, words: str
) -> None:
    with programs.life(f"only {words}") as program:
        for answer in ("wrong", "It lacks", "right"):
            upstream.hold(lambda request: answer_to(request).startswith(answer))  # noqa: B023 - used at once
            eventually(upstream.is_holding.is_set, f"a call whose answer is {answer}")
            os.kill(program.child(words), signal.SIGKILL)
            upstream.let_go()
        assert program.wait() == 0, program.output
    assert scores(program.book) == scores(whole.book)
    print(program.output)


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
