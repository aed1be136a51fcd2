"""The fields of an f-string template: what is filled, what is text, and what is an error.

The rules are those of `PromptTemplate`. A field is what `str.format` would take for a named one. Prompts also hold
LaTeX and JSON, whose braces look the same, so some fields are optional: they are filled if a value of that name is
given, and are text otherwise. Optional are

- an argument of a LaTeX command (`\\boxed{answer}`, `\\frac{a}{b}`), which keeps its braces when it is filled, since
  LaTeX would otherwise read only its first character,
- a subscript or superscript (`x_{i}`, `2^{n}`), filled without braces, since `report_{name}.csv` looks the same,
- a field inside other braces (`{"answer": {number}}`).

Syntax alone does not say whether an optional field takes a value: only the values that are given do.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..checks import nearest_names
from ..errors import InvalidInputError, MissingValueError

# A name, and what str.format allows behind it: attributes and items, a conversion, a format.
_FIELD = re.compile(
    r"(?<!\{)(?P<open>\{+)(?P<name>[^\W\d]\w*)"
    r"(?P<more>(?:\.\w+|\[[^\[\]{}\n]*\])*(?:![A-Za-z])?(?::(?:[^{}\n]*|(?P<nested>[^{}\s]*(?:\{\w*\}[^{}\s]*)+)))?)"
    r"(?P<close>\}+)"
)
_BRACE = re.compile(r"[{}]")
# \n, \t and \r are escapes that were not resolved, not commands.
_COMMAND = re.compile(r"\\(?![ntr](?![A-Za-z]))[A-Za-z]+\*?(?:\[[^\[\]{}\n]*\])?")
# With something that can bear a subscript or superscript before it, unlike _{name}_ and __{name}__, which are Markdown.
_SCRIPT = re.compile(r"(?<=[^\W_]|[)\]}|'!])[_^](?=\{)")


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
    """Whether it is text if no value is given: see the rules of this module."""


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
    value = str(values[field.name])
    return f"{{{value}}}" if field.is_argument else value


def why_missing(name: str, values: Mapping[str, Any]) -> str:
    """The middle of a message about a field without a value, which ends with how to write it as text."""
    near = nearest_names(name, values, limit=1, cutoff=0)
    given = f"the closest name given is {near[0]!r}" if near else "no values were given"
    return f"but format() got no value for {name!r} ({given}). To have it as text, write "


def parse_fields(template: str) -> list[str | Field]:
    """The template as texts, as they are shown, and fields. No text is empty."""
    pieces: list[str | Field] = []
    position, context = 0, None
    match = _FIELD.search(template)
    while match is not None:
        context = context or _Context(template)
        depth = min(len(match["open"]), len(match["close"]))
        start, end = match.start("name") - 1, match.start("close") + 1
        if match["nested"] is not None and depth == 1 and context.is_optional(start):
            # As in \label{eq:{name}}: the outer braces are text, the inner ones may be filled.
            match = _FIELD.search(template, match.end("name"))
            continue
        pieces.append(template[position : start + 1 - depth] + "{" * (depth // 2))
        if depth % 2:
            pieces.append(_field(match, start, end, context if depth == 1 else None))
        else:
            pieces.append(template[start + 1 : end - 1])
        pieces.append("}" * (depth // 2))
        position = end - 1 + depth
        match = _FIELD.search(template, match.end())
    pieces.append(template[position:])
    return list(_joined(pieces))


def _field(match: re.Match[str], start: int, end: int, context: "_Context | None") -> Field:
    """Without a context it is required: it stands within a doubled pair."""
    is_argument = context is not None and context.is_argument(start)
    is_optional = context is not None and context.is_optional(start)
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


def with_text_fields(template: str, is_text: Callable[[Field], bool]) -> str:
    """Return the template with the braces of these optional fields doubled, so that they are text whatever is given."""
    pieces, position = [], 0
    for field in parse_fields(template):
        if isinstance(field, Field) and field.is_optional and is_text(field):
            pieces.append(f"{template[position : field.start]}{{{field.text}}}")
            position = field.end
    return "".join([*pieces, template[position:]])


class _Context:
    """Which braces belong together, and which of them are LaTeX's."""

    def __init__(self, text: str) -> None:
        self._arguments: set[int] = set()
        self._scripts: set[int] = set()
        self._edges: list[int] = []
        self._depths: list[int] = []
        command_ends = {match.end() for match in _COMMAND.finditer(text)}
        script_ends = {match.end() for match in _SCRIPT.finditer(text)}
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
            elif is_open and place in script_ends:
                self._scripts.add(place)

    def is_argument(self, place: int) -> bool:
        """Whether the brace that opens here follows a command, or another argument of one, directly."""
        return place in self._arguments

    def is_optional(self, place: int) -> bool:
        """Whether the brace that opens here is LaTeX's, or stands between two others that belong together."""
        return place in self._arguments or place in self._scripts or self._is_enclosed(place)

    def _is_enclosed(self, place: int) -> bool:
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
