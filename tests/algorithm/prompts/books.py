"""Books of candidates for the tests."""

from sharpen.types import PromptTemplate
from tests.algorithm.internals import Candidate, CandidateBook, Cost, Score

SEED = "Answer the question.\n\nQuestion: {question}\n"
HOSTILE = "</text></title><script>alert(1)</script>&amp;\x1b[31m\x00\x08\u202e\u2028\r\n日本語 {question}"


def prompts(text: str) -> dict[str, PromptTemplate]:
    return {"prompt_template": PromptTemplate(text)}


def small_book() -> CandidateBook:
    """A seed, a better child, a rejected one, a dropped one and a merge that is the best."""
    book = CandidateBook()
    book.add(Candidate("v0", prompts(SEED), score=Score.of([0, 1, 0, 0]), cost=Cost(rollouts=4), status="kept"))
    better = "Think first.\n" + SEED
    book.add(
        Candidate("v1", prompts(better), ["v0"], 1, "It does not think.", Score.of([1, 1, 0, 0]), Cost(4, 2, 90, 30))
    )
    book.add(
        Candidate("v2", prompts("Answer."), ["v0"], 1, "Too long.", status="rejected", reason="it lost {question}")
    )
    book.add(Candidate("v3", prompts("Bah. " + SEED), ["v1"], 2, status="dropped", reason="clearly worse than v1"))
    merged = "Think first, and check.\n" + SEED
    book.add(Candidate("v4", prompts(merged), ["v1", "v3"], 2, score=Score.of([1, 1, 1, 0]), cost=Cost(4)))
    book.best_version = "v4"
    return book


def chain(length: int) -> CandidateBook:
    """Each candidate made from the one before it, in a round of its own."""
    book = CandidateBook()
    for number in range(length):
        parents = [f"v{number - 1}"] if number else []
        book.add(Candidate(f"v{number}", prompts(f"{number} {SEED}"), parents, number, score=Score.of([number])))
    book.best_version = f"v{length - 1}"
    return book


def hostile_book() -> CandidateBook:
    """Text that tries to leave its place, wherever a text can stand."""
    book = CandidateBook()
    book.add(Candidate("v0", {HOSTILE: PromptTemplate(HOSTILE)}, critique=HOSTILE))
    book.add(Candidate(HOSTILE, {HOSTILE: PromptTemplate("x" + HOSTILE)}, ["v0"], 1, HOSTILE, Score.of([1.0, 0.5])))
    book.add(
        Candidate("v2", {HOSTILE: PromptTemplate("y")}, ["v0", HOSTILE], 1, status="rejected", reason=HOSTILE),
    )
    book.best_version = HOSTILE
    return book
