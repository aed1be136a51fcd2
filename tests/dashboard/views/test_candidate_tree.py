"""The drawing of a search: where its candidates stand, and how they are coloured."""

import itertools
import time

import pytest

from sharpen.types import PromptTemplate
from tests.algorithm.internals import Candidate, CandidateBook, Score
from tests.algorithm.prompts.books import SEED, chain, hostile_book, prompts, small_book
from tests.dashboard.internals import Node, candidate_tree


def place(node: Node) -> tuple[float, float]:
    return node.x, node.y


def test_nodes_are_coloured_by_score_and_marked_by_status() -> None:
    nodes = candidate_tree(small_book()).nodes
    assert [(each.label, each.score, each.shade) for each in nodes] == [
        ("v0", "0.25", 0),
        ("v1", "0.50", 3),
        ("v2", "", None),
        ("v3", "", None),
        ("v4", "0.75", 6),
    ]
    assert [each.status for each in nodes] == ["kept", "new", "rejected", "dropped", "best"]
    assert nodes[4].title == "v4, best, 0.75 (0.30 to 0.95, n=4)"


def test_the_line_to_the_best_is_drawn_last_and_other_parents_are_marked() -> None:
    kinds = [each.kind for each in candidate_tree(small_book()).edges]
    assert sorted(kinds) == ["merge", "path", "path", "plain", "plain"]
    assert kinds[-2:] == ["path", "path"]


def test_rounds_are_columns_from_left_to_right() -> None:
    tree = candidate_tree(small_book())
    columns = [each.x for each in tree.nodes]
    assert columns[0] < columns[1] == columns[2] < columns[3]
    assert [heading for _, heading in tree.columns][:3] == ["seed", "round 1", "round 2"]


def test_a_child_stands_right_of_all_its_parents_also_within_a_round() -> None:
    book = small_book()
    places = {each.version: place(each) for each in candidate_tree(book).nodes}
    assert all(places[parent] < places[each.version] for each in book for parent in each.parents)


def wide_book(count: int = 500) -> CandidateBook:
    book = CandidateBook()
    for number in range(count):
        parents = [f"v{(number - 1) // 12}"] if number else []
        book.add(Candidate(f"v{number}", prompts(SEED), parents, number // 50, score=Score.of([number, 0.5])))
    book.best_version = f"v{count - 1}"
    return book


@pytest.mark.parametrize("book", [wide_book(), chain(500)], ids=["wide", "deep"])
def test_500_candidates_do_not_cover_each_other_and_are_drawn_quickly(book: CandidateBook) -> None:
    start = time.process_time()
    tree = candidate_tree(book)
    assert time.process_time() - start < 5
    by_column: dict[float, list[float]] = {}
    for node in tree.nodes:
        by_column.setdefault(node.x, []).append(node.y)
    gaps = [below - above for column in map(sorted, by_column.values()) for above, below in itertools.pairwise(column)]
    assert len(tree.nodes) == 500
    assert all(gap >= 36 for gap in gaps)
    assert all(0 < each.x < tree.width - 92 and 0 < each.y < tree.height - 26 for each in tree.nodes)


def test_nothing_in_a_label_is_hidden() -> None:
    assert all(each.label.isprintable() for each in candidate_tree(hostile_book()).nodes)
    assert "\x1b" not in "".join(each.title for each in candidate_tree(hostile_book()).nodes)


def test_scores_that_are_equal_or_huge_or_missing_have_a_colour() -> None:
    book = CandidateBook()
    book.add(Candidate("v0", {"p": PromptTemplate("x")}))
    book.add(Candidate("v1", {"p": PromptTemplate("x")}, score=Score.of([0.5])))
    assert [each.shade for each in candidate_tree(book).nodes] == [None, 6]
    book.add(Candidate("v2", {"p": PromptTemplate("x")}, score=Score.of([1.7e308])))
    book.add(Candidate("v3", {"p": PromptTemplate("x")}, score=Score.of([-1.7e308])))
    assert [each.shade for each in candidate_tree(book).nodes][1:] == [3, 6, 0]
