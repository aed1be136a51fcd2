"""The fields of an f-string template: what is filled, what is text, and what is an error.

The rules are those of `PromptTemplate`. Prompts hold LaTeX and JSON, so a brace alone says little: a field is what
`str.format` would take for a named one, and it may stand for itself where LaTeX or JSON explain its braces.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..errors import InvalidInputError, MissingValueError

# A name, and what str.format allows behind it: attributes and items, a conversion, a format.
_FIELD = re.compile(
    r"(?<!\{)(?P<open>\{+)(?P<name>[^\W\d]\w*)"
    r"(?P<more>(?:\.\w+|\[[^\[\]{}\n]*\])*(?:![A-Za-z])?(?::[^{}\n]*)?)(?P<close>\}+)"
)
_BRACE = re.compile(r"[{}]")
# \n, \t and \r are escapes that were not resolved, not commands.
_COMMAND = re.compile(r"\\(?![ntr](?![A-Za-z]))[A-Za-z]+\*?(?:\[[^\[\]{}\n]*\])?")


@dataclass(frozen=True, slots=True)
class Field:
    """A place for a value. `start` and `end` enclose its text, with one pair of braces."""

    name: str
    text: str
    start: int
    end: int
    is_plain: bool
    """Whether it is `{name}` alone, which can be filled."""
    is_argument: bool
    """Whether it is an argument of a LaTeX command."""
    is_optional: bool
    """Whether it stands for itself where there is no value: an argument of a LaTeX command, or in other braces."""


def fill_fields(template: str, values: Mapping[str, Any]) -> str:
    """The text of an f-string template with these values."""
    return "".join(piece if isinstance(piece, str) else _filled(piece, values) for piece in parse_fields(template))


def _filled(field: Field, values: Mapping[str, Any]) -> str:
    if field.name not in values and field.is_optional:
        return field.text
    if not field.is_plain:
        raise InvalidInputError(
            f"the template has {field.text}, but only plain fields such as {{{field.name}}} are filled: pass the value "
            f"as it should read, under its own name; to have it as text, write {{{field.text}}}"
        )
    if field.name not in values:
        raise MissingValueError(f"the template has {field.text}, {why_missing(field.name, values)}{{{field.text}}}")
    return str(values[field.name])


def why_missing(name: str, values: Mapping[str, Any]) -> str:
    """The middle of a message about a field without a value, which ends with how to write it as text."""
    near = get_close_matches(name, values, n=1, cutoff=0)
    given = f"the nearest name that it got is {near[0]!r}" if near else "it got no values"
    return f"but format() got no value for {name!r} ({given}). To have it as text, write "


def parse_fields(template: str) -> list[str | Field]:
    """The template as texts, as they are shown, and fields. No text is empty."""
    pieces: list[str | Field] = []
    position, context = 0, None
    for match in _FIELD.finditer(template):
        context = context or _Context(template)
        depth = min(len(match["open"]), len(match["close"]))
        start, end = match.start("name") - 1, match.start("close") + 1
        pieces.append(template[position : start + 1 - depth] + "{" * (depth // 2))
        if depth % 2:
            pieces.append(_field(match, start, end, context if depth == 1 else None))
        else:
            pieces.append(template[start + 1 : end - 1])
        pieces.append("}" * (depth // 2))
        position = end - 1 + depth
    pieces.append(template[position:])
    return list(_joined(pieces))


def _field(match: re.Match[str], start: int, end: int, context: "_Context | None") -> Field:
    """Without a context its braces are explained: it stands within a doubled pair."""
    is_argument = context is not None and context.is_argument(start)
    is_optional = context is not None and (is_argument or context.is_enclosed(start))
    return Field(match["name"], match.string[start:end], start, end, not match["more"], is_argument, is_optional)


def _joined(pieces: list[str | Field]) -> Iterator[str | Field]:
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text:
            yield text
        yield piece
        text = ""
    if text:
        yield text


def escape_fields(text: str) -> str:
    """The text as it has to be written in a template that shows it as it is."""

    def doubled(match: re.Match[str]) -> str:
        depth = min(len(match["open"]), len(match["close"]))
        return f"{'{' * depth}{match[0]}{'}' * depth}"

    return _FIELD.sub(doubled, text)


class _Context:
    """Which braces belong together, and which of them enclose arguments of LaTeX commands."""

    def __init__(self, text: str) -> None:
        self._arguments: set[int] = set()
        self._edges: list[int] = []
        self._depths: list[int] = []
        command_ends = {match.end() for match in _COMMAND.finditer(text)}
        ends = _matching_braces(text)
        depth, argument_ends = 0, set[int]()
        for place in sorted([*ends, *ends.values()]):
            is_open = place in ends
            depth += 1 if is_open else -1
            self._edges.append(place)
            self._depths.append(depth)
            if is_open and (place in command_ends or place - 1 in argument_ends):
                self._arguments.add(place)
                argument_ends.add(ends[place])

    def is_argument(self, place: int) -> bool:
        """Whether the brace that opens here follows a command, or another argument of one, directly."""
        return place in self._arguments

    def is_enclosed(self, place: int) -> bool:
        """Whether the brace that opens here stands between two others that belong together."""
        return self._depths[bisect_right(self._edges, place) - 1] > 1


def _matching_braces(text: str) -> dict[int, int]:
    """Where each brace that is closed opens and closes; one without the other does not count."""
    opened: list[int] = []
    pairs: dict[int, int] = {}
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            pairs[opened.pop()] = match.start()
    return pairs
