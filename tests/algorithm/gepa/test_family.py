"""Candidates of gepa and of the book."""

import os
import subprocess
import sys
import textwrap

import pytest

from sharpen import PromptTemplate
from sharpen.errors import ConfigError
from tests.algorithm.internals import Candidate, CandidateBook, Cost, Family, StableName


def family_of(book: CandidateBook | None = None) -> tuple[Family, CandidateBook]:
    if book is None:
        book = CandidateBook()
        book.add(Candidate("v0", {"a": PromptTemplate("A {x}"), "b": PromptTemplate("B {{ x }}", "jinja")}))
    return Family(book, book.add, has_stable_names=True), book


def test_texts_become_prompts_of_the_engine_of_the_seed() -> None:
    family, book = family_of()
    assert list(family.seed_texts.items()) == [("a", "A {x}"), ("b", "B {{ x }}")]
    family.begin(1)
    family.enter("v1", {**family.seed_texts, family.name("b"): "C {{ x }}"}, parents=["v0"], critique="why")
    family.settle("v1")
    made = book.get("v1")
    assert made.prompts == {"a": PromptTemplate("A {x}"), "b": PromptTemplate("C {{ x }}", "jinja")}
    assert (made.parents, made.round, made.critique) == (["v0"], 1, "why")
    assert family.version_of({"b": "C {{ x }}", "a": "A {x}"}) == "v1"


def test_a_candidate_bears_what_it_took_to_make_it() -> None:
    family, book = family_of()
    family.spend(Cost(rollouts=3))
    family.enter("v1", {"a": "1", "b": "2"}, parents=["v0"], critique=None, cost=Cost(calls=1))
    family.spend(Cost(rollouts=2), "v1")
    assert "v1" not in book
    family.settle("v1")
    family.spend(Cost(rollouts=7), "v1")
    assert book.get("v1").cost == Cost(rollouts=5, calls=1)
    assert family.open_cost == Cost(rollouts=7)


def test_a_rejected_candidate_has_no_claim_to_its_texts() -> None:
    family, book = family_of()
    family.enter("v1-unfit", {"a": "1", "b": "2"}, parents=["v0"], critique=None, why_rejected="it is odd")
    assert (book.get("v1-unfit").status, book.get("v1-unfit").reason) == ("rejected", "it is odd")
    assert family.version_of({"a": "1", "b": "2"}) is None


def test_a_candidate_that_the_book_knows_by_other_texts_is_an_error() -> None:
    family, book = family_of()
    family.enter("v1", {"a": "1", "b": "2"}, parents=["v0"], critique=None)
    family.settle("v1")
    again, _ = family_of(book)
    again.enter("v1", {"a": "1", "b": "3"}, parents=["v0"], critique=None)
    with pytest.raises(ConfigError):
        again.settle("v1")


def test_a_stable_name_is_the_text_that_it_is_made_of() -> None:
    names = {StableName("plan"): 1}
    assert StableName("plan") == "plan"
    assert names[StableName("plan")] == 1
    assert type(str(StableName("plan"))) is str


PROGRAM = """
    import random
    from gepa.proposer.merge import sample_and_attempt_merge_programs_by_common_predictors as merge
    from sharpen.algorithm.gepa.gepa_search import StableName

    names = [StableName(f"part {n}") for n in range(12)]
    made = [{name: str(candidate) for name in names} for candidate in range(3)]
    made[1][names[0]] = "0"
    found = merge([0.1, 0.5, 0.5], random.Random(0), [1, 2], ([], []), made, [[None], [0], [0]])
    print("".join(found[0].values()))
"""


def test_merges_come_out_the_same_whatever_the_hashes_of_the_process() -> None:
    def merged(seed: str) -> str:
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    first, second = merged("1"), merged("2")
    assert first == second
    assert {"1", "2"} <= set(first)
