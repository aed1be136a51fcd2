"""The picture of a search: what stands in it, read by an XML parser."""

import re
import time
from xml.etree import ElementTree

import pytest

from sharpen.types import PromptTemplate
from tests.algorithm.internals import Candidate, CandidateBook, Score, tree_svg

from .books import SEED, chain, hostile_book, prompts, small_book

SVG = "{http://www.w3.org/2000/svg}"


def parsed(book: CandidateBook, *, dark: bool = False) -> ElementTree.Element:
    return ElementTree.fromstring(tree_svg(book, dark=dark))


def nodes(root: ElementTree.Element) -> list[ElementTree.Element]:
    found = root.findall(f"{SVG}g")
    return [each for each in found if each.find(f"{SVG}title") is not None]


def place(node: ElementTree.Element) -> tuple[float, float]:
    x, y = re.findall(r"[\d.]+", node.attrib["transform"])
    return float(x), float(y)


def tooltip(node: ElementTree.Element) -> str:
    return node.findtext(f"{SVG}title") or ""


def test_every_candidate_is_a_node_whose_tooltip_tells_everything() -> None:
    found = nodes(parsed(small_book()))
    assert [each.findtext(f"{SVG}text") for each in found] == ["v0  0.25", "v1  0.50", "v2", "v3", "v4  0.75"]
    about = tooltip(found[1])
    for part in ("v1: new, round 1, from v0", "0.50 (0.15 to 0.85, n=4)", "2 calls", "It does not think.", SEED):
        assert part in about
    assert "reason: it lost {question}" in tooltip(found[2])
    assert "from v1 and v3" in tooltip(found[4])


def test_nodes_are_coloured_by_score_and_marked_by_status() -> None:
    kinds = [each.attrib["class"] for each in nodes(parsed(small_book()))]
    assert kinds == ["node s0 kept", "node s3 new", "node unscored rejected", "node unscored dropped", "node s6 best"]


def test_the_best_has_a_star_and_the_line_to_it_is_drawn() -> None:
    root = parsed(small_book())
    assert [bool(each.findall(f"{SVG}polygon")) for each in nodes(root)] == [False, False, False, False, True]
    kinds = [each.attrib["class"] for each in root.findall(f"{SVG}path")]
    # The last two are the legend's.
    assert sorted(kinds[:-2]) == ["edge", "edge", "edge merge", "edge path", "edge path"]


def test_rounds_are_columns_from_left_to_right() -> None:
    root = parsed(small_book())
    columns = [place(each)[0] for each in nodes(root)]
    assert columns[0] < columns[1] == columns[2] < columns[3]
    headings = [each.text for each in root.findall(f"{SVG}text") if each.get("class") == "column"]
    assert headings[:3] == ["seed", "round 1", "round 2"]


def test_a_child_stands_right_of_all_its_parents_also_within_a_round() -> None:
    book = small_book()
    places = {each.version: place(node)[0] for each, node in zip(book, nodes(parsed(book)), strict=True)}
    assert all(places[parent] < places[each.version] for each in book for parent in each.parents)


def wide_book(count: int = 500) -> CandidateBook:
    book = CandidateBook()
    for number in range(count):
        parents = [f"v{(number - 1) // 12}"] if number else []
        candidate = Candidate(f"v{number}", prompts(SEED * 20), parents, number // 50, score=Score.of([number, 0.5]))
        book.add(candidate)
    book.best_version = f"v{count - 1}"
    return book


@pytest.mark.parametrize("book", [wide_book(), chain(500)], ids=["wide", "deep"])
def test_500_candidates_do_not_cover_each_other_and_are_drawn_quickly(book: CandidateBook) -> None:
    start = time.process_time()
    root = parsed(book)
    assert time.process_time() - start < 5
    places = [place(each) for each in nodes(root)]
    assert len(set(places)) == 500
    by_column: dict[float, list[float]] = {}
    for x, y in places:
        by_column.setdefault(x, []).append(y)
    gaps = [below - above for column in by_column.values() for above, below in zip(*_neighbours(column), strict=True)]
    assert all(gap >= 36 for gap in gaps)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 < x < width - 104 and 0 < y < height - 60 for x, y in places)


def _neighbours(column: list[float]) -> tuple[list[float], list[float]]:
    ordered = sorted(column)
    return ordered[:-1], ordered[1:]


def test_hostile_text_stays_text() -> None:
    root = parsed(hostile_book())
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == {
        *("svg", "title", "desc", "style", "rect", "text", "path", "g", "polygon")
    }
    drawn = tree_svg(hostile_book())
    assert "<script" not in drawn
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", drawn)
    assert "<script>alert(1)</script>" in tooltip(nodes(root)[1])
    assert not [name for each in root.iter() for name in each.attrib if name.startswith("on") or "href" in name]


@pytest.mark.parametrize("code", [0, 8, 0x1B, 0xFFFE, 0xFFFF, 0xD800])
def test_characters_that_xml_forbids_are_replaced(code: int) -> None:
    book = CandidateBook()
    book.add(Candidate("v" + chr(code), prompts("a" + chr(code) + "b")))
    assert re.search("a[\ufffd?]b", tooltip(nodes(parsed(book))[0]))


def test_a_very_long_prompt_says_how_much_is_left_out() -> None:
    book = CandidateBook()
    book.add(Candidate("v0", prompts("x" * 21_000)))
    assert tooltip(nodes(parsed(book))[0]).endswith("x\n… and 1,000 more characters")


def test_the_picture_is_accessible() -> None:
    root = parsed(small_book())
    assert root.attrib["role"] == "img"
    assert [each.tag for each in root][:2] == [f"{SVG}title", f"{SVG}desc"]
    description = root.findtext(f"{SVG}desc") or ""
    assert "best v4: 0.75" in description
    assert "From the seed to the best: v0, v1, v4." in description


def test_light_follows_the_viewer_and_dark_is_always_dark() -> None:
    light, dark = (parsed(small_book(), dark=each).findtext(f"{SVG}style") or "" for each in (False, True))
    assert "prefers-color-scheme: dark" in light
    assert "prefers-color-scheme" not in dark
    assert "#ffffff; }" not in dark.split(".s0")[0]


def test_scores_that_are_equal_or_huge_or_missing_have_a_colour() -> None:
    book = CandidateBook()
    assert nodes(parsed(book)) == []
    book.add(Candidate("v0", {"p": PromptTemplate("x")}))
    book.add(Candidate("v1", {"p": PromptTemplate("x")}, score=Score.of([0.5])))
    assert [each.attrib["class"] for each in nodes(parsed(book))] == ["node unscored new", "node s6 new"]
    book.add(Candidate("v2", {"p": PromptTemplate("x")}, score=Score.of([1.7e308])))
    book.add(Candidate("v3", {"p": PromptTemplate("x")}, score=Score.of([-1.7e308])))
    assert [each.attrib["class"] for each in nodes(parsed(book))[1:]] == ["node s3 new", "node s6 new", "node s0 new"]
