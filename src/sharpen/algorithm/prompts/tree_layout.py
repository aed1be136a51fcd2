"""Where each candidate stands in the drawing of a search: rounds are columns, and lines of descent do not cross.

A child always stands in a column after all its parents. Rows belong to leaves; a parent stands in the middle of its
children.
"""

from dataclasses import dataclass

from .candidates import Candidate, CandidateBook
from .tree import children_of

# The round, and how many steps of descent within the round.
_Step = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """Column and row of each version, the headings of the columns, and the number of rows."""

    columns: dict[str, int]
    rows: dict[str, float]
    headings: list[str]
    num_rows: int


def lay_out(book: CandidateBook) -> Layout:
    steps = _steps(book)
    order = {step: column for column, step in enumerate(sorted(set(steps.values())))}
    rows, num_rows = _rows(book)
    columns = {version: order[step] for version, step in steps.items()}
    return Layout(columns, rows, [_heading(step) for step in order], num_rows)


def line_of_best(book: CandidateBook) -> set[str]:
    """The versions from the seed to the best, along first parents."""
    found: set[str] = set()
    version = book.best.version if len(book) else None
    while version is not None:
        found.add(version)
        version = book.get(version).parent
    return found


def _steps(book: CandidateBook) -> dict[str, _Step]:
    steps: dict[str, _Step] = {}
    for candidate in book:  # parents stand before their children
        steps[candidate.version] = _step(candidate, [steps[parent] for parent in candidate.parents])
    return steps


def _step(candidate: Candidate, parents: list[_Step]) -> _Step:
    last = max(parents, default=(-1, 0))
    return (candidate.round, 0) if candidate.round > last[0] else (last[0], last[1] + 1)


def _heading(step: _Step) -> str:
    number, within = step
    if within:
        return ""
    return f"round {number}" if number else "seed"


def _rows(book: CandidateBook) -> tuple[dict[str, float], int]:
    """Rows by leaves, from the first leaf down; without recursion, since a chain may be long."""
    children = children_of(book)
    rows: dict[str, float] = {}
    num_rows = 0
    for candidate in _depth_first(children):
        if not children.get(candidate.version):
            rows[candidate.version] = float(num_rows)
            num_rows += 1
    for candidate in reversed(list(book)):  # children stand after their parents, so theirs are known
        below = [rows[child.version] for child in children.get(candidate.version, [])]
        if below:
            rows[candidate.version] = (below[0] + below[-1]) / 2
    return rows, num_rows


def _depth_first(children: dict[str | None, list[Candidate]]) -> list[Candidate]:
    found: list[Candidate] = []
    waiting = list(reversed(children.get(None, [])))
    while waiting:
        found.append(waiting.pop())
        waiting.extend(reversed(children.get(found[-1].version, [])))
    return found
