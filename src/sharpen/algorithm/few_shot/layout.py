"""Demonstrations written into a template, so that nothing in them is taken for a part of it.

A template with values shows filled copies of its part about the task, each followed by its answer; one without shows
inputs and outputs.
"""

import re
from collections.abc import Iterable, Sequence
from xml.parsers import expat

from ...errors import InvalidInputError
from ...types import PromptTemplate
from ...types.prompt_template import POML_TEXT, Field, escape_fields, parse_fields
from ..prompts.templates import placeholders
from .demonstration import Demonstration
from .template_parts import (
    DEMOS,
    Parts,
    field_spans,
    parts_of,
    place_of_demos,
    value_names,
    without_demos,
)

LONGEST_COPY = 1000
"""Characters that a copy repeats beside its values; with more, inputs and outputs are shown."""
HEADING = "Examples:"
_END_OF_RAW = re.compile(r"\{%[-+]?\s*endraw")
_RUNS_ON = re.compile(r"[:=>]\Z")
_JINJA_MARKS = ("{{", "{%", "{#")


def with_demonstrations(template: PromptTemplate, shown: Sequence[Demonstration]) -> PromptTemplate:
    """The template with these demonstrations in it, in their order."""
    if not shown:
        return without_demos(template)
    if template.engine == "poml":
        return PromptTemplate(_poml(template, shown), "poml")
    parts, is_jinja = parts_of(template), template.engine == "jinja"
    if _is_shown_as_copies(template, parts):
        blocks = [_copy(PromptTemplate(parts.task, template.engine), each) for each in shown]
    else:
        blocks = [f"Input: {each_input(each)}\nOutput: {each.answer}" for each in shown]
        parts = _headed(template, parts)
    text = "\n\n".join(map(_raw if is_jinja else escape_fields, blocks))
    place = place_of_demos(template)
    if is_jinja and place is not None:  # a value of its own is right wherever the template uses it
        return PromptTemplate(f"{{% set {place} %}}{text}{{% endset %}}{template.template}", "jinja")
    return PromptTemplate(_joined(parts, text, has_place=place is not None), template.engine)


def why_unshowable(template: PromptTemplate, shown: Demonstration) -> str | None:
    """Why this cannot stand in the template, in words about "it"; None where it can."""
    texts = [shown.answer, shown.input, *shown.values.values()]
    if template.engine == "jinja" and any(_END_OF_RAW.search(text) for text in texts):
        return "it contains {% endraw %}, which ends a literal text in Jinja"
    return why_broken(template, [shown])


def why_broken(template: PromptTemplate, shown: Sequence[Demonstration]) -> str | None:
    """Whatever is written into a template: it must keep its fields, and get no new ones."""
    try:
        before, after = _fields(without_demos(template)), _fields(with_demonstrations(template, shown))
    except InvalidInputError as error:
        return str(error)
    return None if before == after else "it would change the fields of the template"


def _fields(template: PromptTemplate) -> list[str]:
    """As they are written. In Jinja and POML, their names alone."""
    if template.engine == "f-string":
        return [piece.text for piece in parse_fields(template.template) if isinstance(piece, Field)]
    return sorted(set(placeholders(template)) - set(DEMOS))


# -- text --------------------------------------------------------------------------------------------


def _is_shown_as_copies(template: PromptTemplate, parts: Parts) -> bool:
    if len(parts.task) > LONGEST_COPY or not _is_whole(template, parts):
        return False
    return bool(value_names(PromptTemplate(parts.task, template.engine)))


def _is_whole(template: PromptTemplate, parts: Parts) -> bool:
    """Whether the parts are templates of their own: a block of Jinja must not begin in one and end in another."""
    return template.engine != "jinja" or all(_parses(text) for text in (parts.head, parts.middle, parts.task))


def _parses(text: str) -> bool:
    try:
        placeholders(PromptTemplate(text, "jinja"))
    except InvalidInputError:
        return False
    return True


def _headed(template: PromptTemplate, parts: Parts) -> Parts:
    """With a heading; a place that the template has for demonstrations stands under words of its own."""
    if place_of_demos(template) is not None:
        return parts
    if not _is_whole(template, parts):  # within a block they might not be shown at all
        return Parts(f"{HEADING}\n\n", "", f"{parts.head}{parts.middle}{parts.task}")
    return Parts(f"{_with_gap(parts.head)}{HEADING}\n\n", parts.middle, parts.task)


def _with_gap(head: str) -> str:
    return f"{head.rstrip()}\n\n" if head.strip() else ""


def _joined(parts: Parts, blocks: str, *, has_place: bool) -> str:
    if has_place:
        return f"{parts.head}{blocks}{parts.middle}{parts.task}"
    gap = "\n\n" if parts.task else ""
    return f"{_gap_like(parts.head)}{blocks}{gap}{parts.task}"


def _gap_like(head: str) -> str:
    """Demonstrations are paragraphs, also where the task was a line of one."""
    return head if not head or head.endswith("\n\n") else f"{head.rstrip()}\n\n"


def _copy(part: PromptTemplate, shown: Demonstration) -> str:
    """The part about the task as it was filled, and the answer to it."""
    filled = part.format(**shown.values).rstrip("\n")
    if filled.endswith((" ", "\t")):
        return f"{filled}{shown.answer}"
    return f"{filled}{' ' if _RUNS_ON.search(filled) else chr(10)}{shown.answer}"


def each_input(shown: Demonstration) -> str:
    """The values by name, or what the user said where there are none."""
    if len(shown.values) == 1:
        return next(iter(shown.values.values()))
    return "\n".join(f"{name}: {value}" for name, value in shown.values.items()) or shown.input


def _raw(text: str) -> str:
    """As text for Jinja."""
    return f"{{% raw %}}{text}{{% endraw %}}" if any(mark in text for mark in _JINJA_MARKS) else text


# -- POML --------------------------------------------------------------------------------------------


def _poml(template: PromptTemplate, shown: Iterable[Demonstration]) -> str:
    blocks = [f"Input: {each_input(each)}\nOutput: {each.answer}".translate(POML_TEXT) for each in shown]
    text, places = "".join(f'<p whiteSpace="pre">{block}</p>\n' for block in blocks), field_spans(template, DEMOS)
    if places:  # which stands under words of its own
        begin, end, _ = places[0]
    else:
        text, begin = f"<p>{HEADING}</p>\n{text}", _poml_place(template.template)
        end = begin
    return f"{template.template[:begin]}{text}{template.template[end:]}"


def _poml_place(text: str) -> int:
    """Before the first element below the root that holds a value; else at the end of the root."""
    starts = _poml_children(text)
    fields = [begin for begin, *_ in field_spans(PromptTemplate(text, "poml"))]
    before = [start for start in starts if fields and start <= fields[0]]
    if before:
        return before[-1]
    end = text.rfind("</poml>")
    return end if end >= 0 else len(text)


def _poml_children(text: str) -> list[int]:
    """Where the elements directly below the root begin; none where it is no XML."""
    starts: list[int] = []
    depth, data, parser = 0, text.encode(), expat.ParserCreate()

    def begin(_name: str, _attributes: object) -> None:
        nonlocal depth
        depth += 1
        if depth == 2:
            starts.append(len(data[: parser.CurrentByteIndex].decode()))

    def end(_name: str) -> None:
        nonlocal depth
        depth -= 1

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    try:
        parser.Parse(data, True)
    except expat.ExpatError:
        return []
    return starts
