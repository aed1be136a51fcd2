"""The tree of candidates as text."""

import unicodedata

import pytest
from rich.cells import cell_len

from tests.algorithm.internals import Candidate, CandidateBook, Cost, Score, draw_tree

from .books import SEED, chain, hostile_book, prompts, small_book


def test_a_tree_shows_descent_status_score_cost_and_words() -> None:
    assert draw_tree(small_book()).split("\n") == [
        "v0 ✓ kept  0.25 (0.05 to 0.70, n=4)  4 rollouts".replace("0.05", "0.046"),
        "├─ v1 · new  0.50 (0.15 to 0.85, n=4)  4 rollouts, 120 tokens  “It does not think.”",
        "│  ├─ v3 ↓ dropped  clearly worse than v1",
        "│  └─ v4 ★ best  merged with v3  0.75 (0.30 to 0.95, n=4)  4 rollouts",
        "└─ v2 ✗ rejected  it lost {question}",
        "",
        "5 candidates (1 rejected); best v4: 0.75 (0.30 to 0.95, n=4)",
        "cost: 12 rollouts, 2 calls, 90 + 30 tokens",
    ]


def test_what_made_no_candidate_is_in_the_whole_cost_and_named() -> None:
    book = small_book()
    book.other_cost = Cost(10, 3, 400, 60)
    told = "cost: 22 rollouts, 5 calls, 490 + 90 tokens; 10 rollouts of it produced no candidate"
    assert draw_tree(book).split("\n")[-1] == told


def test_the_price_is_shown_where_it_is_known() -> None:
    book = CandidateBook()
    book.add(Candidate("v0", prompts(SEED), cost=Cost(2, 1, 50_000, 1_000, 0.0125)))
    book.add(Candidate("v1", prompts("x"), ["v0"], cost=Cost(0, 1, 50_000, 1_000)))
    first, second, *_ = draw_tree(book).split("\n")
    assert first == "v0 · new  2 rollouts, $0.0125"
    assert second == "└─ v1 · new  51k tokens"


def test_an_empty_book_and_a_lone_seed_can_be_drawn() -> None:
    assert draw_tree(CandidateBook()) == "no candidates yet"
    book = CandidateBook()
    book.add(Candidate("v0", prompts(SEED)))
    assert draw_tree(book) == "v0 · new\n\n1 candidate; best v0, not scored\ncost: nothing"


@pytest.mark.parametrize("width", [100, 40])
def test_a_deep_chain_stays_within_the_width_and_names_its_parents(width: int) -> None:
    lines = draw_tree(chain(500), width=width).split("\n")
    assert len(lines) == 503
    assert max(map(cell_len, lines)) <= width
    assert lines[499].strip().startswith("⋯ v499 ★ best")
    if width == 100:
        assert "from v498" in lines[499]
        assert "from" not in lines[5]


def test_every_one_of_500_candidates_has_its_line() -> None:
    book = CandidateBook()
    for number in range(500):
        parents = [f"v{(number - 1) // 8}"] if number else []
        book.add(Candidate(f"v{number}", prompts(str(number)), parents, critique="long " * 100, score=Score.of([0, 1])))
    lines = draw_tree(book).split("\n")
    assert sorted(line.split("v", 1)[1].split()[0] for line in lines[:500]) == sorted(map(str, range(500)))
    assert max(map(cell_len, lines)) == 100


def test_children_stand_below_their_parent_in_the_order_of_making() -> None:
    book = CandidateBook()
    for version, parents in [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b"]), ("e", ["c"]), ("f", [])]:
        book.add(Candidate(version, prompts(version), parents))
    drawn = [line.removesuffix(" · new") for line in draw_tree(book).split("\n")[:6]]
    assert drawn == ["a", "├─ b", "│  └─ d", "└─ c", "   └─ e", "f"]


def test_nothing_in_a_text_reaches_the_terminal_but_text() -> None:
    drawn = draw_tree(hostile_book())
    assert drawn.count("\n") == 5
    assert not [char for char in drawn.replace("\n", "") if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")]
    assert "</text></title><script>" in drawn


def test_wide_characters_count_as_two_columns() -> None:
    book = CandidateBook()
    book.add(Candidate("v0", prompts(SEED), critique="日本語" * 50))
    line = draw_tree(book).split("\n")[0]
    assert 99 <= cell_len(line) <= 100
    assert line.endswith("…")
