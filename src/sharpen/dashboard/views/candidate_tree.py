"""The candidates of a prompt search as a drawing whose nodes are links, and one candidate with its diffs.

It contains no styles, which the content security policy refuses: the style sheet of the page colours it.
"""

import math
from collections.abc import Mapping

import msgspec

from ...algorithm.prompts.candidates import Candidate, CandidateBook, short_number
from ...algorithm.prompts.tree import lay_out, line_of_best
from ...types import PromptTemplate
from .shown_text import one_line, visible
from .word_diff import TextDiff, text_diff

NUM_SHADES = 7
_WIDTH, _HEIGHT, _COLUMN, _ROW, _LEFT, _TOP = 92, 26, 140, 36, 12, 30


class Node(msgspec.Struct, frozen=True):
    """One candidate in the drawing. `shade` is 0 (the worst) to 6, None without a score."""

    version: str
    label: str
    score: str
    status: str
    shade: int | None
    x: float
    y: float
    title: str


class Edge(msgspec.Struct, frozen=True):
    """A line from a parent to a child; `kind` is path (to the best), merge or plain."""

    path: str
    kind: str


class CandidateTree(msgspec.Struct, frozen=True):
    nodes: list[Node]
    edges: list[Edge]
    columns: list[tuple[float, str]]
    width: int
    height: int


class PromptDiff(msgspec.Struct, frozen=True):
    """The text of one prompt of a candidate, and what changed since its parent and since the seed."""

    name: str
    text: str
    engine: str
    from_parent: TextDiff | None
    from_seed: TextDiff | None


def candidate_tree(book: CandidateBook) -> CandidateTree:
    """Return the drawing. Columns are rounds."""
    layout, line = lay_out(book), line_of_best(book)
    places = {
        each.version: (
            _LEFT + layout.columns[each.version] * _COLUMN,
            _TOP + layout.rows[each.version] * _ROW + _ROW / 2,
        )
        for each in book
    }
    means = [each.score.mean for each in book if each.score]
    edges = [_edge(places, parent, each, number, line) for each in book for number, parent in enumerate(each.parents)]
    return CandidateTree(
        [_node(each, places[each.version], means, is_best=each.version == book.best_version) for each in book],
        sorted(edges, key=lambda edge: edge.kind == "path"),
        [(_LEFT + number * _COLUMN + _WIDTH / 2, heading) for number, heading in enumerate(layout.headings)],
        2 * _LEFT + (len(layout.headings) - 1) * _COLUMN + _WIDTH,
        math.ceil(_TOP + layout.num_rows * _ROW + 8),
    )


def prompt_diffs(book: CandidateBook, candidate: Candidate) -> list[PromptDiff]:
    parent = book.get(candidate.parent).prompts if candidate.parent is not None else None
    seed = book.seed.prompts if candidate.version != book.seed.version else None
    # A child of the seed has one diff, not the same one twice.
    seed = None if candidate.parent == book.seed.version else seed
    return [
        PromptDiff(
            visible(name),
            visible(prompt.template),
            prompt.engine,
            _diff(parent, name, prompt),
            _diff(seed, name, prompt),
        )
        for name, prompt in candidate.prompts.items()
    ]


def _diff(old: Mapping[str, PromptTemplate] | None, name: str, prompt: PromptTemplate) -> TextDiff | None:
    if old is None:
        return None
    return text_diff(old[name].template if name in old else "", prompt.template)


def _node(candidate: Candidate, place: tuple[float, float], means: list[float], *, is_best: bool) -> Node:
    score = candidate.score
    return Node(
        candidate.version,
        one_line(candidate.version, 9),
        "" if score is None else short_number(score.mean),
        "best" if is_best else candidate.status,
        None if score is None else _shade(score.mean, means),
        place[0],
        place[1] - _HEIGHT / 2,
        _title(candidate, is_best=is_best),
    )


def _title(candidate: Candidate, *, is_best: bool) -> str:
    parts = [candidate.version, "best" if is_best else candidate.status]
    parts += [candidate.score.text()] if candidate.score else []
    return visible(", ".join(parts))


def _shade(mean: float, means: list[float]) -> int:
    low, high = min(means), max(means)
    # Halved first: the difference of two floats may be too large for a float.
    share = 1.0 if high <= low else (mean / 2 - low / 2) / (high / 2 - low / 2)
    return min(int(share * NUM_SHADES), NUM_SHADES - 1)


def _edge(
    places: Mapping[str, tuple[float, float]], parent: str, child: Candidate, number: int, line: set[str]
) -> Edge:
    (x0, y0), (x1, y1) = places[parent], places[child.version]
    x0 += _WIDTH
    turned = x0 + _COLUMN - _WIDTH
    half = (x0 + turned) / 2
    kind = "merge" if number else "path" if child.version in line else "plain"
    return Edge(f"M{x0:g} {y0:g}C{half:g} {y0:g} {half:g} {y1:g} {turned:g} {y1:g}H{x1:g}", kind)
