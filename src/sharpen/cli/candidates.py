"""Completion candidates at the cursor of a command line, from the parser.

A value is completed by its choices, otherwise by its metavar, the kind of value: RUN, STORE, CONFIG, FILE, FOLDER, ...
A line is a word, a tab and a description; `:files` and `:folders` leave the rest to the shell.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

FILES, FOLDERS = ":files", ":folders"
_FILE_KINDS = {"FILE", "CONFIG", "STORE", "MODEL"}
_FOLDER_KINDS = {"FOLDER"}
_RUN_KINDS = {"RUN", "STORE"}
_MAX_RUNS = 200
_MARKS = ("config.json", "metrics.jsonl", "store.db")
_EASY = re.compile(r"[\w.+-]+")  # a name that needs no quotes in any shell


def candidates(parser: argparse.ArgumentParser, words: Sequence[str], *, is_split: bool = False) -> list[str]:
    """Return the lines for the last of `words`, which may be empty. `is_split`: the shell splits `--a=b` into three."""
    words = _joined(words) if is_split else list(words)
    cursor = _Cursor(parser)
    for word in words[:-1]:
        cursor.read(word)
    last = words[-1] if words else ""
    option, has_value, value = last.partition("=")
    if has_value and (action := cursor.option(option)) is not None:
        prefix = "" if is_split else f"{option}="
        return [line if line.startswith(":") else f"{prefix}{line}" for line in _begin(_values(action), value)]
    return list(_begin(cursor.possible(last), last))


def _joined(words: Sequence[str]) -> list[str]:
    """Join `--a`, `=`, `b` into one word again."""
    found: list[str] = []
    for word in words:
        follows = len(found) > 0 and (found[-1].endswith("=") or word == "=") and found[-1].startswith("--")
        if follows and found[-1].count("=") <= 1:
            found[-1] += word
        else:
            found.append(word)
    return found


def _begin(lines: Iterator[str], start: str) -> list[str]:
    return [line for line in lines if line.startswith((start, ":"))]


class _Cursor:
    """Reads words as the parser would, up to the cursor."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._enter(parser)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._used: set[argparse.Action] = set()
        self._waiting: argparse.Action | None = None  # an option whose value comes next
        self._is_open = False  # it takes any number of values
        self._places = _positionals(parser)
        self._has_only_values = False  # after `--`

    def option(self, word: str) -> argparse.Action | None:
        return self._parser._option_string_actions.get(word)

    def read(self, word: str) -> None:
        """Go past a word."""
        if word == "--" and not self._has_only_values:
            self._has_only_values, self._waiting = True, None
        elif word.startswith("-") and len(word) > 1 and not self._has_only_values:
            self._read_option(word)
        elif self._waiting is not None:
            self._waiting = self._waiting if self._is_open else None
        else:
            self._read_value(word)

    def _read_option(self, word: str) -> None:
        name, has_value, _ = word.partition("=")
        action = self.option(name)
        if action is None:
            return
        self._used.add(action)
        self._waiting = None if has_value or action.nargs == 0 else action
        self._is_open = action.nargs in ("*", "+") or isinstance(action.nargs, int)

    def _read_value(self, word: str) -> None:
        if not self._places:
            return
        action = self._places[0]
        if isinstance(action, argparse._SubParsersAction):
            inner = action.choices.get(word)
            if inner is None:
                self._places = []
            else:
                self._enter(inner)
            return
        if action.nargs not in ("*", "+", argparse.REMAINDER):
            self._places = self._places[1:]

    def possible(self, last: str) -> Iterator[str]:
        """Yield what can be typed here: a value, a command, or an option if the word begins like one."""
        if self._waiting is not None and (not self._is_open or not last.startswith("-")):
            yield from _values(self._waiting)
        elif last.startswith("-") and not self._has_only_values:
            yield from self._options()
        elif self._places:
            yield from _values(self._places[0])

    def _options(self) -> Iterator[str]:
        for action in self._parser._actions:
            is_done = action in self._used and not isinstance(action, argparse._AppendAction)
            if action.help == argparse.SUPPRESS or is_done:
                continue
            for name in action.option_strings:
                if name.startswith("--"):
                    yield _line(name, action.help)


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _line(word: str, meaning: str | None) -> str:
    return f"{word}\t{' '.join((meaning or '').split())}".rstrip("\t")


# -- values ------------------------------------------------------------------------------------------


def _values(action: argparse.Action) -> Iterator[str]:
    if isinstance(action, argparse._SubParsersAction):
        yield from (_line(each.dest, each.help) for each in action._get_subactions())
    elif action.choices is not None:
        yield from (str(each) for each in action.choices)
    else:
        kind = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        yield from _of_kind(kind)


def _of_kind(kind: str) -> Iterator[str]:
    if kind in _RUN_KINDS:
        yield _line("last", "the newest run")
        yield from run_names()
    if kind in _FILE_KINDS:
        yield FILES
    if kind in _FOLDER_KINDS:
        yield FOLDERS


def run_names(root: Path | None = None) -> list[str]:
    """Return names of runs, newest first; a limited number of them, and none if the folder cannot be read."""
    from ..runs import runs_root

    try:
        folders = [each for each in (root or runs_root()).iterdir() if _EASY.fullmatch(each.name)]
    except OSError:
        return []
    newest = sorted(folders, key=lambda each: each.name, reverse=True)
    found = (each.name for each in newest if any((each / mark).exists() for mark in _MARKS))
    return [name for name, _ in zip(found, range(_MAX_RUNS), strict=False)]
