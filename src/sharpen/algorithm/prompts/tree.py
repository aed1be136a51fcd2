"""The candidates of a search as a tree of text: who was made from whom, how good each is, and what it cost."""

from collections import defaultdict
from collections.abc import Iterator

from .candidates import Candidate, CandidateBook, Cost
from .plain_text import clipped, one_line

WIDTH = 100
MARKS = {"new": "·", "rejected": "✗", "dropped": "↓", "kept": "✓", "best": "★"}
_STEP = 3
# As much of a text as a line can show.
_MOST_CHARACTERS = 500


def draw_tree(book: CandidateBook, *, width: int = WIDTH) -> str:
    """One line for each candidate, children below their (first) parent, and a summary."""
    lines = [clipped(branch + text, width) for branch, text in _lines(book, width // 2 // _STEP)]
    return "\n".join([*lines, *([""] if lines else []), *(clipped(line, width) for line in summary(book))])


def summary(book: CandidateBook) -> list[str]:
    """In two lines: how many candidates there are and which is the best, and what the search cost."""
    if not len(book):
        return ["no candidates yet"]
    rejected = sum(each.status == "rejected" for each in book)
    count = f"{len(book)} candidate{'' if len(book) == 1 else 's'}" + (f" ({rejected} rejected)" if rejected else "")
    score = f": {book.best.score.text()}" if book.best.score else ", not scored"
    return [
        f"{count}; best {one_line(book.best.version)}{score}",
        f"cost: {book.cost.text()}{_in_vain(book.other_cost)}",
    ]


def _in_vain(cost: Cost) -> str:
    """Of the whole, what the lines of the candidates do not add up to."""
    uses = Cost(rollouts=cost.rollouts) if cost.rollouts else Cost(calls=cost.calls)
    return "" if uses == Cost() else f"; {uses.text()} of it produced no candidate"


def children_of(book: CandidateBook) -> dict[str | None, list[Candidate]]:
    """The candidates by their first parent, in the order of making; those without a parent under None."""
    children: dict[str | None, list[Candidate]] = defaultdict(list)
    for candidate in book:
        children[candidate.parent].append(candidate)
    return children


def _lines(book: CandidateBook, deepest: int) -> Iterator[tuple[str, str]]:
    """Branches and labels. Below the deepest indent lines stand flush and name their parent.

    Without recursion, since a chain of candidates may be long.
    """
    children = children_of(book)
    waiting = [(root, "", "", 0) for root in reversed(children[None])]
    while waiting:
        candidate, branch, indent, depth = waiting.pop()
        yield branch, _label(candidate, is_flush=depth > deepest, is_best=candidate.version == book.best_version)
        below = list(reversed(children.get(candidate.version, [])))
        for number, child in enumerate(below):
            waiting.append((child, *_branches(indent, is_last=number == 0, is_flush=depth >= deepest), depth + 1))


def _branches(indent: str, *, is_last: bool, is_flush: bool) -> tuple[str, str]:
    if is_flush:
        return indent + "⋯ ", indent
    return indent + ("└─ " if is_last else "├─ "), indent + ("   " if is_last else "│  ")


def _label(candidate: Candidate, *, is_flush: bool, is_best: bool) -> str:
    status = "best" if is_best else candidate.status
    parts = [f"{one_line(candidate.version)} {MARKS[status]} {status}"]
    parts.append(f"from {one_line(candidate.parent)}" if is_flush and candidate.parent else "")
    parts.append(f"merged with {', '.join(map(one_line, candidate.parents[1:]))}" if candidate.parents[1:] else "")
    parts.append(candidate.score.text() if candidate.score else "")
    parts.append(_short_cost(candidate.cost))
    parts.append(_words(candidate))
    return "  ".join(filter(None, parts))


def _short_cost(cost: Cost) -> str:
    """The rollouts, and the price, or the tokens where the price is not known."""
    parts = [Cost(rollouts=cost.rollouts).text()] if cost.rollouts else []
    tokens = cost.input_tokens + cost.output_tokens
    if cost.dollars is not None:
        parts.append(f"${cost.dollars:.4g}")
    elif tokens:
        parts.append(f"{tokens:,} tokens" if tokens < 10_000 else f"{tokens / 1000:,.0f}k tokens")
    return ", ".join(parts)


def _words(candidate: Candidate) -> str:
    """Why it went, or else why it was made."""
    if candidate.reason and candidate.status in ("rejected", "dropped"):
        return one_line(candidate.reason[:_MOST_CHARACTERS])
    return f"“{one_line(candidate.critique[:_MOST_CHARACTERS])}”" if candidate.critique else ""
