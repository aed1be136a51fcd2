"""What people read of a search: its candidates as a tree, what the best one changed, and the files of both.

Prompts and critiques hold whatever a model wrote. What is shown of them is text, and only text: nothing in it moves a
cursor, colours a terminal or turns a line around. Each file of a search is there whole or not at all:

    candidates.json    every candidate; the file that is read again
    candidates.txt     the tree of candidates
    best_prompt.txt    the text of the best prompt (with several: best_prompt.<name>.txt)
    best_prompt.diff   what it changed in the seed
"""

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...files import read_json, replacing, write_json
from ...runs.screen import show
from ...types import PromptTemplate
from .candidates import Candidate, CandidateBook, Cost

if TYPE_CHECKING:
    from rich.text import Text


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


# -- where each candidate stands in the dashboard's drawing ----------------------------------------


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


# -- differences -----------------------------------------------------------------------------------


NAMES = ("seed", "best")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
# The signs of removed lines and of the added ones after them; a backslash says that a text has no last line end.
_REWRITTEN = re.compile(r"(?P<removed>-[-\\]*)(?P<added>\+[+\\]*)")
_NO_END = "\\ No newline at end of file"
_COLOURS = {"-": "red", "+": "green", "@": "cyan", "\\": "dim"}
_CHANGED = {"-": "black on red", "+": "black on green"}
# Comparing words takes time with the square of their number.
_MOST_WORDS = 2_000
# Below this the lines are different altogether, and marks would cover all of them.
_LEAST_ALIKE = 0.3


def prompt_diff(old: PromptTemplate, new: PromptTemplate, *, names: tuple[str, str] = NAMES) -> str:
    """The unified diff of two prompts; empty where they are the same. Hidden characters are spelt out (`\\x1b`)."""
    return "".join(f"{line}\n" for line in _diff_lines(old.template, new.template, names))


def best_diff(book: CandidateBook) -> str:
    """What the best candidate changed in the seed; with several prompts, one diff after the other."""
    return "".join(prompt_diff(old, new, names=names) for old, new, names in _pairs(book))


def show_best_diff(book: CandidateBook) -> None:
    """The same on the screen in colours; in lines that were rewritten, the words that changed stand out."""
    for old, new, names in _pairs(book):
        show(coloured_diff(old, new, names=names))


def coloured_diff(old: PromptTemplate, new: PromptTemplate, *, names: tuple[str, str] = NAMES) -> "Text":
    """The diff as a text of rich."""
    from rich.text import Text

    lines = list(_diff_lines(old.template, new.template, names))
    if not lines:
        return Text(f"no difference: {names[1]} is the same as {names[0]}", style="dim")
    heads = [Text(line, style="bold") for line in lines[:2]]
    return Text("\n").join([*heads, *_coloured(lines[2:])])


# -- the lines of a diff -----------------------------------------------------------------------------


def _diff_lines(old: str, new: str, names: tuple[str, str]) -> Iterator[str]:
    before, after = _LINE.findall(old), _LINE.findall(new)
    for line in difflib.unified_diff(before, after, escaped(names[0]), escaped(names[1])):
        # Escaped only now, since two texts that look the same may still differ.
        yield escaped(line.removesuffix("\n"), keep="\t")
        if not line.endswith("\n"):
            yield _NO_END


def _pairs(book: CandidateBook) -> Iterator[tuple[PromptTemplate, PromptTemplate, tuple[str, str]]]:
    old, new, nothing = book.seed.prompts, book.best.prompts, PromptTemplate("")
    names = list(dict.fromkeys([*old, *new]))
    for name in names:
        which = "" if len(names) == 1 else f": {name}"
        labels = f"{NAMES[0]} ({book.seed.version}){which}", f"{NAMES[1]} ({book.best.version}){which}"
        yield old.get(name, nothing), new.get(name, nothing), labels


# -- colours -----------------------------------------------------------------------------------------


def _coloured(lines: Sequence[str]) -> "list[Text]":
    """A run of removed lines is compared with the run of added lines that follows it, where they are as many."""
    from rich.text import Text

    marked: dict[int, Text] = {}
    for run in _REWRITTEN.finditer("".join(line[0] for line in lines)):
        removed = [number for number in range(*run.span("removed")) if lines[number][0] == "-"]
        added = [number for number in range(*run.span("added")) if lines[number][0] == "+"]
        if len(removed) == len(added):
            for old, new in zip(removed, added, strict=True):
                marked[old], marked[new] = _marked(lines[old], lines[new])
    plain = (Text(line, style=_COLOURS.get(line[0], "")) for line in lines)
    return [marked.get(number, text) for number, text in enumerate(plain)]


def _marked(old: str, new: str) -> "tuple[Text, Text]":
    """Both lines, with the words that differ marked."""
    from rich.text import Text

    before, after = Text(old, style=_COLOURS["-"]), Text(new, style=_COLOURS["+"])
    old_words, new_words = list(_WORD.finditer(old, 1)), list(_WORD.finditer(new, 1))
    if len(old_words) + len(new_words) > _MOST_WORDS:
        return before, after
    old_texts, new_texts = [word[0] for word in old_words], [word[0] for word in new_words]
    matcher = difflib.SequenceMatcher(None, old_texts, new_texts, autojunk=False)
    if matcher.ratio() < _LEAST_ALIKE:
        return before, after
    for kind, i0, i1, j0, j1 in matcher.get_opcodes():
        for line, words in ((before, old_words[i0:i1]), (after, new_words[j0:j1])):
            if kind != "equal" and words:
                line.stylize(_CHANGED[line.plain[0]], words[0].start(), words[-1].end())
    return before, after


# -- files -----------------------------------------------------------------------------------------


FOLDER = "prompts"
_CANDIDATES = "candidates.json"


def write_records(folder: Path, book: CandidateBook) -> None:
    """Write all files; the folder is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _CANDIDATES, book.as_json())
    for name, text in _best_files(book.best).items():
        _write(folder / name, text)
    _write(folder / "best_prompt.diff", best_diff(book))
    _write(folder / "candidates.txt", draw_tree(book) + "\n")


def read_records(folder: Path) -> CandidateBook:
    """The book in a folder that `write_records` wrote, or in the folder of its run."""
    places = [folder / _CANDIDATES, folder / FOLDER / _CANDIDATES]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ConfigError(f"there are no candidates in {str(folder)!r}: use the folder of a run that optimised prompts")
    try:
        return CandidateBook.of(read_json(path))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"{str(path)!r} is damaged: it is nested too deeply") from error
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from error


def _best_files(best: Candidate) -> dict[str, str]:
    if len(best.prompts) == 1:
        return {"best_prompt.txt": best.template.template}
    names = _file_names(list(best.prompts))
    return {f"best_prompt.{names[name]}.txt": prompt.template for name, prompt in best.prompts.items()}


def _file_names(names: list[str]) -> dict[str, str]:
    """A file name for each prompt. Where two would share one, the later have a number."""
    taken: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w-]+", "_", name)[:100] or "_"
        # Compared without case, since some disks do the same.
        tries = [plain, *(f"{plain}-{number}" for number in range(2, len(names) + 2))]
        used = {each.casefold() for each in taken.values()}
        taken[name] = next(each for each in tries if each.casefold() not in used)
    return taken


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


# -- safe text -------------------------------------------------------------------------------------


# Controls and half characters, the ends of lines and paragraphs, and the marks that turn text around or have no shape.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def one_line(text: str) -> str:
    """The text on one line, with single spaces and without hidden characters."""
    if text.isprintable():  # the common case, without a look at each character
        return " ".join(text.split())
    shown = "".join("" if unicodedata.category(char) == "Cf" else _spaced(char) for char in text)
    return " ".join(shown.split())


def escaped(text: str, *, keep: str = "") -> str:
    """The text with hidden characters spelt out (`\\x1b`), but for those to keep."""
    if text.isprintable():
        return text
    return "".join(char if char in keep or not is_hidden(char) else _spelt(char) for char in text)


def is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN


def clipped(text: str, width: int) -> str:
    """What fits into `width` columns, where a Chinese character takes two; an ellipsis says that there is more."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def _spaced(char: str) -> str:
    return " " if is_hidden(char) else char


def _spelt(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
