"""A template taken apart: the fields in it, the part that is about the task, and the values in a filled copy."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...errors import InvalidInputError
from ...types import PromptTemplate
from ...types.prompt_template import parse_fields, with_text_fields
from ..prompts.templates import optional_names, placeholders, value_fields

DEMOS = ("demos", "demonstrations", "examples")
"""A place of this name is where demonstrations go."""

_DOUBLE_FIELD = re.compile(r"\{\{-?\s*(?P<name>[A-Za-z_]\w*)\s*-?\}\}")
_TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_LINE = re.compile(r"\n")


def field_spans(template: PromptTemplate, names: tuple[str, ...] | None = None) -> list[tuple[int, int, str]]:
    """Where plain fields stand in the text, with their names; only those of `names` where it is given."""
    if template.engine == "f-string":
        found = [(field.start, field.end, field.name) for field in value_fields(template.template)]
    else:
        found = [(*match.span(), match["name"]) for match in _DOUBLE_FIELD.finditer(template.template)]
    return [each for each in found if names is None or each[2] in names]


def value_names(template: PromptTemplate) -> list[str]:
    """The values that the agent gives; demonstrations are given by the search."""
    return [name for name in _names(template) if name not in DEMOS]


def _names(template: PromptTemplate) -> list[str]:
    """The search writes what is known to be text as text, so that every field left may get a value."""
    return placeholders(template, optional_names(template))


def as_frame(template: PromptTemplate) -> PromptTemplate:
    """Return the template with LaTeX such as `\\section{examples}` as text: it is not a place for demonstrations."""
    if template.engine != "f-string":
        return template
    text = with_text_fields(template.template, lambda field: field.is_argument and field.name in DEMOS)
    return PromptTemplate(text)


def with_text(template: PromptTemplate, names: Collection[str]) -> PromptTemplate:
    """Return the template with its optional fields of these names as text."""
    if template.engine != "f-string":
        return template
    return PromptTemplate(with_text_fields(template.template, lambda field: field.name in names))


# -- the part about the task -------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """A template in three: what comes before the demonstrations, what between them and the task, and the task."""

    head: str
    middle: str
    task: str


def place_of_demos(template: PromptTemplate) -> str | None:
    """The name of the place that the template has for demonstrations."""
    return next((name for name in _names(template) if name in DEMOS), None)


def parts_of(template: PromptTemplate) -> Parts:
    """Where the template says nothing, demonstrations go before the part about the task."""
    text = template.template
    places = field_spans(template, DEMOS)
    start = task_start(template)
    if not places:
        return Parts(text[:start], "", text[start:])
    begin, end, _ = places[0]
    if start >= end:
        return Parts(text[:begin], text[end:start], text[start:])
    return Parts(text[:begin], text[end:], "")


def task_start(template: PromptTemplate) -> int:
    """Where the part about the task begins: the paragraph with the first value, or its line where that is all."""
    values, demos = _mentions(template), field_spans(template, DEMOS)
    if demos:  # values before the demonstrations are part of what comes before them
        values = [place for place in values if place >= demos[0][1]]
    if not values:
        return len(template.template)
    return _begin(_BLANK_LINE, template.template, values[0]) or _begin(_LINE, template.template, values[0])


def _mentions(template: PromptTemplate) -> list[int]:
    """Where values of the task are spoken of; in Jinja also within conditions and filters."""
    if template.engine != "jinja":
        return [begin for begin, _, name in field_spans(template) if name not in DEMOS]
    names = set(value_names(template))
    tags = _TAG.finditer(template.template)
    return [match.start() for match in tags if names & set(re.findall(r"[A-Za-z_]\w*", match[0]))]


def _begin(separator: re.Pattern[str], text: str, place: int) -> int:
    """The end of the last separator before this place; 0 without one."""
    return max((match.end() for match in separator.finditer(text, 0, place)), default=0)


def without_demos(template: PromptTemplate) -> PromptTemplate:
    """The template with nothing at the place for demonstrations, and no gap there either."""
    text = template.template
    if template.engine == "jinja":  # an empty value is right wherever the template uses it
        place = place_of_demos(template)
        return template if place is None else PromptTemplate(f'{{% set {place} = "" %}}{text}', "jinja")
    for begin, end, _ in reversed(field_spans(template, DEMOS)):
        text = _closed(text[:begin], text[end:])
    return PromptTemplate(text, template.engine)


def _closed(before: str, after: str) -> str:
    """Two texts without the line that stood between them; within a line, nothing changes around the gap."""
    is_line = (not before or before.endswith("\n")) and (not after or after.startswith("\n"))
    if not is_line:
        return before + after
    if not after:
        return before.rstrip("\n")
    return before + (after.lstrip("\n") if not before or before.endswith("\n\n") else after[1:])


# -- values ------------------------------------------------------------------------------------------


def values_in(text: str, template: PromptTemplate, *, likely: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """The values with which the template gives this text, `likely` ones first; None where there are none."""
    if template.engine == "poml":
        return None  # it does not stand in the prompt as it is written
    guesses = [likely, _read(text, template)]
    return next((dict(each) for each in guesses if each is not None and _gives(template, each, text)), None)


def _gives(template: PromptTemplate, values: Mapping[str, str], text: str) -> bool:
    try:
        return template.format(**values).strip() == text.strip()
    except InvalidInputError:
        return False


def _read(text: str, template: PromptTemplate) -> dict[str, str] | None:
    """Each value ends where the words after it begin. `_gives` then says whether that was right."""
    values: dict[str, str] = {}
    rest, literal, name = text.strip(), "", ""
    pieces = _pieces(template)
    for number, (words, next_name) in enumerate(pieces):
        literal = words
        is_last = number == len(pieces) - 1
        place = len(rest) - len(literal) if is_last and name else rest.find(literal)
        if place < 0 or (name and not literal and not is_last):
            return None
        if name:
            values.setdefault(name, rest[:place])
        rest, name = rest[place + len(literal) :], next_name
    return values


def _pieces(template: PromptTemplate) -> list[tuple[str, str]]:
    """Words as they are shown, and the name of the field that follows them; the last has none."""
    text = template.template.strip()
    if template.engine == "f-string":
        return _pieces_of_fields(text)
    pieces, position = [], 0
    for begin, end, name in field_spans(PromptTemplate(text, template.engine)):
        pieces.append((text[position:begin], name))
        position = end
    return [*pieces, (text[position:], "")]


def _pieces_of_fields(text: str) -> list[tuple[str, str]]:
    pieces, words = [], ""
    for piece in parse_fields(text):
        if isinstance(piece, str):
            words += piece
        elif not piece.is_plain:
            words += piece.text
        else:
            pieces.append((f"{words}{{" if piece.is_argument else words, piece.name))
            words = "}" if piece.is_argument else ""
    return [*pieces, (words, "")]


def longest_words(template: PromptTemplate) -> str:
    """The longest piece of text between fields: where it stands, the prompt probably does."""
    return max((words.strip() for words, _ in _pieces(template)), key=len)
