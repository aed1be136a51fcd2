"""The candidates of a search as a picture: one SVG file that needs nothing else and runs no script.

Every text in it was written by a model or a user, so every text is escaped, and what XML forbids is replaced.
"""

import re
from collections.abc import Iterator
from html import escape

from .candidates import Candidate, CandidateBook, Score, short_number
from .plain_text import clipped, one_line
from .tree import MARKS, summary
from .tree_layout import Layout, lay_out, line_of_best
from .tree_style import NUM_SHADES, style_sheet

_NODE_WIDTH, _NODE_HEIGHT, _ROW, _MARGIN = 104, 26, 36, 28
_GAP, _NARROW_GAP, _MANY_COLUMNS = 60, 24, 40
_HEAD, _FOOT, _LEGEND_WIDTH = 124, 64, 880
_MOST_CHARACTERS = 20_000
# What XML 1.0 cannot hold, even as an entity.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STAR = "0,-9 2.6,-3.1 9,-2.6 4.1,1.6 5.6,7.8 0,4.4 -5.6,7.8 -4.1,1.6 -9,-2.6 -2.6,-3.1"


def tree_svg(book: CandidateBook, *, dark: bool = False) -> str:
    """The picture. It follows the viewer's light or dark setting; with `dark` it is always dark."""
    layout = lay_out(book)
    picture = _Picture(book, layout)
    width, height = picture.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sharpen-candidates{" dark" if dark else ""}" role="img" '
        f'aria-label="Candidates of a prompt search" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        "<title>Candidates of a prompt search</title>",
        f"<desc>{_xml(_description(book))}</desc>",
        f"<style>{style_sheet(dark=dark)}</style>",
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
        *picture.heading(),
        *picture.edges(),
        *picture.nodes(),
        *picture.legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Picture:
    """The parts of one picture, with the places that the layout gives them."""

    def __init__(self, book: CandidateBook, layout: Layout) -> None:
        self._book = book
        self._layout = layout
        self._line = line_of_best(book)
        self._means = [each.score.mean for each in book if each.score]
        gap = _GAP if len(layout.headings) <= _MANY_COLUMNS else _NARROW_GAP
        self._pitch = _NODE_WIDTH + gap

    @property
    def size(self) -> tuple[int, int]:
        columns = max(len(self._layout.headings), 1)
        width = 2 * _MARGIN + (columns - 1) * self._pitch + _NODE_WIDTH
        return max(width, _LEGEND_WIDTH + 2 * _MARGIN), _HEAD + self._layout.num_rows * _ROW + _FOOT

    # -- the parts -----------------------------------------------------------------------------------

    def heading(self) -> Iterator[str]:
        yield f'<text class="title" x="{_MARGIN}" y="38">Prompt candidates</text>'
        for number, line in enumerate(summary(self._book)):
            yield f'<text class="note" x="{_MARGIN}" y="{60 + 19 * number}">{_xml(line)}</text>'
        for column, heading in enumerate(self._layout.headings):
            x = _MARGIN + column * self._pitch + _NODE_WIDTH / 2
            yield f'<text class="column" x="{x:g}" y="{_HEAD - 14}">{_xml(heading)}</text>'

    def edges(self) -> Iterator[str]:
        """The line to the best is drawn last, above the others."""
        ends = [(child, parent, place) for child in self._book for place, parent in enumerate(child.parents)]
        drawn = [(self._edge_class(child, place), parent, child.version) for child, parent, place in ends]
        for kind, parent, child in sorted(drawn, key=lambda edge: edge[0] == "edge path"):
            yield f'<path class="{kind}" d="{self._curve(parent, child)}"/>'

    def nodes(self) -> Iterator[str]:
        for candidate in self._book:
            yield from self._node(candidate)

    def legend(self) -> Iterator[str]:
        y = self.size[1] - 28
        if self._means:
            low, high = min(self._means), max(self._means)
            yield f'<text class="note" x="{_MARGIN}" y="{y + 4}">{short_number(low)}</text>'
            for shade in range(NUM_SHADES):
                yield f'<rect class="s{shade}" x="{_MARGIN + 48 + shade * 18}" y="{y - 7}" width="18" height="14"/>'
            x = _MARGIN + 56 + NUM_SHADES * 18
            yield f'<text class="note" x="{x}" y="{y + 4}">{short_number(high)} mean reward</text>'
        yield from _signs(_MARGIN + 330, y)

    # -- nodes and edges -----------------------------------------------------------------------------

    def _place(self, version: str) -> tuple[float, float]:
        """The left end of a node, at half its height."""
        x = _MARGIN + self._layout.columns[version] * self._pitch
        return x, _HEAD + self._layout.rows[version] * _ROW + _ROW / 2

    def _edge_class(self, child: Candidate, place: int) -> str:
        if place:
            return "edge merge"
        return "edge path" if child.version in self._line else "edge"

    def _curve(self, parent: str, child: str) -> str:
        (x0, y0), (x1, y1) = self._place(parent), self._place(child)
        x0 += _NODE_WIDTH
        # It turns before the next column and then goes straight, since the child's row is free up to the child.
        turned = x0 + self._pitch - _NODE_WIDTH
        half = (x0 + turned) / 2
        return f"M{x0:g} {y0:g} C{half:g} {y0:g} {half:g} {y1:g} {turned:g} {y1:g} H{x1:g}"

    def _node(self, candidate: Candidate) -> Iterator[str]:
        x, y = self._place(candidate.version)
        is_best = candidate.version == self._book.best_version
        kinds = ["node", self._shade(candidate.score), "best" if is_best else candidate.status]
        yield f'<g class="{" ".join(kinds)}" transform="translate({x:g} {y:g})">'
        yield f"<title>{_xml(_tooltip(candidate))}</title>"
        yield f'<rect y="{-_NODE_HEIGHT / 2:g}" width="{_NODE_WIDTH}" height="{_NODE_HEIGHT}" rx="7"/>'
        yield f'<text x="{_NODE_WIDTH / 2:g}" y="4.5">{_xml(_label(candidate))}</text>'
        if is_best:
            yield f'<polygon class="star" points="{_STAR}" transform="translate({_NODE_WIDTH} {-_NODE_HEIGHT / 2:g})"/>'
        yield "</g>"

    def _shade(self, score: Score | None) -> str:
        if score is None:
            return "unscored"
        low, high = min(self._means), max(self._means)
        # Halved first: the difference of two floats may be too large for a float.
        share = 1.0 if high <= low else (score.mean / 2 - low / 2) / (high / 2 - low / 2)
        return f"s{min(int(share * NUM_SHADES), NUM_SHADES - 1)}"


def _signs(x: float, y: float) -> Iterator[str]:
    """What the outlines and lines mean."""
    for kind, room in (("best", 76), ("dropped", 104), ("rejected", 104)):
        yield f'<g class="node unscored {kind}" transform="translate({x:g} {y:g})">'
        yield '<rect y="-7" width="22" height="14" rx="4"/></g>'
        yield f'<text class="note" x="{x + 29:g}" y="{y + 4:g}">{kind}</text>'
        x += room
    for kind, word in (("path", "path to the best"), ("merge", "other parent")):
        yield f'<path class="edge {kind}" d="M{x:g} {y:g} h24"/>'
        yield f'<text class="note" x="{x + 31:g}" y="{y + 4:g}">{word}</text>'
        x += 142


def _label(candidate: Candidate) -> str:
    version = clipped(one_line(candidate.version), 7 if candidate.score else 13)
    return f"{version}  {short_number(candidate.score.mean)}" if candidate.score else version


def _tooltip(candidate: Candidate) -> str:
    """All that is known of a candidate."""
    parents = f", from {' and '.join(candidate.parents)}" if candidate.parents else ""
    parts = [f"{MARKS[candidate.status]} {candidate.version}: {candidate.status}, round {candidate.round}{parents}"]
    parts.append(f"score: {candidate.score.text()}" if candidate.score else "not scored")
    parts.append(f"cost: {candidate.cost.text()}")
    parts.append(f"reason: {candidate.reason}" if candidate.reason else "")
    parts.append(f"\nwhy it was made:\n{_bounded(candidate.critique)}" if candidate.critique else "")
    parts.extend(f"\n{name}:\n{_bounded(prompt.template)}" for name, prompt in candidate.prompts.items())
    return "\n".join(filter(None, parts))


def _bounded(text: str) -> str:
    left_out = len(text) - _MOST_CHARACTERS
    return text if left_out <= 0 else f"{text[:_MOST_CHARACTERS]}\n… and {left_out:,} more characters"


def _description(book: CandidateBook) -> str:
    """For those who cannot see the picture."""
    words = f"A tree of prompts, from the seed on the left to the last round on the right: {'; '.join(summary(book))}."
    line = [each.version for each in book if each.version in line_of_best(book)]
    return one_line(f"{words} From the seed to the best: {', '.join(line)}." if line else words)


def _xml(text: str) -> str:
    return escape(_FORBIDDEN.sub("\ufffd", text))
