"""What changed between two prompts, as a unified diff: plain, or coloured on the screen."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...runs.screen import show
from ...types import PromptTemplate
from .candidates import CandidateBook
from .plain_text import escaped

if TYPE_CHECKING:
    from rich.text import Text

NAMES = ("seed", "best")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
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
    return prompts_diff(book.seed.prompts, book.best.prompts, names=_versions(book))


def prompts_diff(
    old: Mapping[str, PromptTemplate], new: Mapping[str, PromptTemplate], *, names: tuple[str, str] = NAMES
) -> str:
    """The diffs of several prompts, each under its name."""
    pairs = _pairs(old, new, names)
    return "".join(prompt_diff(before, after, names=labels) for before, after, labels in pairs)


def show_diff(old: PromptTemplate, new: PromptTemplate, *, names: tuple[str, str] = NAMES) -> None:
    """The diff on the screen in colours; in lines that were rewritten, the words that changed stand out."""
    show(coloured_diff(old, new, names=names))


def show_best_diff(book: CandidateBook) -> None:
    """On the screen: what the best candidate changed in the seed."""
    for before, after, labels in _pairs(book.seed.prompts, book.best.prompts, _versions(book)):
        show_diff(before, after, names=labels)


def coloured_diff(old: PromptTemplate, new: PromptTemplate, *, names: tuple[str, str] = NAMES) -> "Text":
    """The diff as a text of rich."""
    from rich.text import Text

    lines = list(_diff_lines(old.template, new.template, names))
    if not lines:
        return Text(f"no difference: {names[1]} is the same as {names[0]}", style="dim")
    return Text("\n").join([*_heads(lines[:2]), *_coloured(lines[2:])])


# -- the lines of a diff -----------------------------------------------------------------------------


def _diff_lines(old: str, new: str, names: tuple[str, str]) -> Iterator[str]:
    before, after = _LINE.findall(old), _LINE.findall(new)
    for line in difflib.unified_diff(before, after, escaped(names[0]), escaped(names[1])):
        # Escaped only now, since two texts that look the same may still differ.
        yield escaped(line.removesuffix("\n"), keep="\t")
        if not line.endswith("\n"):
            yield _NO_END


def _pairs(
    old: Mapping[str, PromptTemplate], new: Mapping[str, PromptTemplate], names: tuple[str, str]
) -> Iterator[tuple[PromptTemplate, PromptTemplate, tuple[str, str]]]:
    nothing = PromptTemplate("")
    keys = list(dict.fromkeys([*old, *new]))
    for name in keys:
        labels = names if len(keys) == 1 else (f"{names[0]}: {name}", f"{names[1]}: {name}")
        yield old.get(name, nothing), new.get(name, nothing), labels


def _versions(book: CandidateBook) -> tuple[str, str]:
    return f"{NAMES[0]} ({book.seed.version})", f"{NAMES[1]} ({book.best.version})"


# -- colours -----------------------------------------------------------------------------------------


def _heads(lines: Sequence[str]) -> "Iterator[Text]":
    from rich.text import Text

    return (Text(line, style="bold") for line in lines)


def _coloured(lines: Sequence[str]) -> "Iterator[Text]":
    """The lines in order; a block of removed lines is compared with the block of added lines that follows it."""
    from rich.text import Text

    for block in _blocks(lines):
        removed = [line for line in block if line[0] == "-"]
        added = [line for line in block if line[0] == "+"]
        pairs = [_marked(*pair) for pair in zip(removed, added, strict=True)] if len(removed) == len(added) else []
        marked = {"-": [old for old, _ in pairs], "+": [new for _, new in pairs]}
        for line in block:
            ready = marked.get(line[0])
            yield ready.pop(0) if ready else Text(line, style=_COLOURS.get(line[0], ""))


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        if block and _ends_block(block[-1], line):
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _ends_block(before: str, line: str) -> bool:
    """Whether a new block of changes begins: at a line that stayed, and where lines are removed again."""
    return line[0] in " @" or before[0] in " @" or (line[0] == "-" and before[0] == "+")


def _marked(old: str, new: str) -> "tuple[Text, Text]":
    """Both lines, with the words that differ marked."""
    from rich.text import Text

    before, after = Text(old, style=_COLOURS["-"]), Text(new, style=_COLOURS["+"])
    old_words, new_words = list(_WORD.finditer(old, 1)), list(_WORD.finditer(new, 1))
    if len(old_words) + len(new_words) > _MOST_WORDS:
        return before, after
    matcher = difflib.SequenceMatcher(None, _texts(old_words), _texts(new_words), autojunk=False)
    if matcher.ratio() < _LEAST_ALIKE:
        return before, after
    for kind, i0, i1, j0, j1 in matcher.get_opcodes():
        if kind != "equal":
            _mark(before, old_words[i0:i1])
            _mark(after, new_words[j0:j1])
    return before, after


def _mark(line: "Text", words: Sequence[re.Match[str]]) -> None:
    if words:
        line.stylize(_CHANGED[line.plain[0]], words[0].start(), words[-1].end())


def _texts(words: Sequence[re.Match[str]]) -> list[str]:
    return [word[0] for word in words]
