"""Demonstrations: read from rollouts that succeeded, and written into a template.

The values of a demonstration are read from the recorded prompt, since only that is certain to be what the model saw;
where the prompt cannot be recognised there, they come from the task. A template with values shows filled copies of its
part about the task, each followed by its answer; one without shows inputs and outputs. Nothing in a demonstration is
taken for a part of the template.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

import msgspec

from ...adapter.messages import OpenAIMessages
from ...errors import InvalidInputError
from ...types import PromptTemplate
from ...types.prompt_template import POML_TEXT, Field, escape_fields, parse_fields, with_text_fields
from ..prompts.templates import optional_names, placeholders, value_fields

MOST_CHARACTERS = 20_000
"""Of one demonstration: a longer one would crowd out the task."""


class Demonstration(msgspec.Struct, frozen=True):
    """One example for a prompt. `input` is what a user said last, for prompts without values."""

    rollout_id: str
    values: dict[str, str]
    input: str
    answer: str
    reward: float

    @property
    def content(self) -> tuple[Any, ...]:
        """What it shows; two rollouts may show the same."""
        return (tuple(sorted(self.values.items())), self.input, self.answer)


class UnfitRolloutError(InvalidInputError):
    """A rollout that cannot be shown; the message says why."""


def read_demonstration(
    rollout_id: str,
    reward: float,
    prompt: PromptTemplate,
    task: Any,
    conversations: Sequence[OpenAIMessages],
    *,
    names: Sequence[str] | None = None,
) -> Demonstration:
    """The demonstration that a rollout of this prompt makes, or an error that says why it makes none.

    `names` are the values of the task; a prompt that shows demonstrations may hold what looks like others.
    """
    names = value_names(prompt) if names is None else names
    conversation, values = _find(prompt, names, task, conversations)
    answer = _text(conversation["messages"][-1])
    if not answer:
        raise UnfitRolloutError("the model's last answer has no text")
    said = "" if names else _input(conversation, prompt, task)
    size = len(said) + len(answer) + sum(map(len, values.values()))
    if size > MOST_CHARACTERS:
        raise UnfitRolloutError(f"it is too long for a demonstration: {size:,} characters")
    return Demonstration(rollout_id, values, said, answer, reward)


def _find(
    prompt: PromptTemplate, names: Sequence[str], task: Any, conversations: Sequence[OpenAIMessages]
) -> tuple[OpenAIMessages, dict[str, str]]:
    """The last conversation in which the prompt stands, and the values there."""
    spoken = [each for each in conversations if each["messages"] and each["messages"][-1].get("role") == "assistant"]
    if not spoken:
        raise UnfitRolloutError("no model call was recorded with its messages")
    from_task = _values_of_task(names, task)
    for conversation in reversed(spoken):
        for text in _prompts(conversation):
            values = values_in(text, prompt, likely=from_task)
            if values is not None:
                return conversation, {name: values[name] for name in names if name in values}
    return spoken[-1], _all_in_one(prompt, names, spoken[-1]) if from_task is None else from_task


def _all_in_one(prompt: PromptTemplate, names: Sequence[str], conversation: OpenAIMessages) -> dict[str, str]:
    """Where there is one value alone, what the user said last stands for it, unless there is more in it."""
    said = _last_said(conversation)
    if not names:
        return {}
    if len(names) > 1 or not said or ((words := longest_words(prompt)) and words in said):
        shown = ", ".join(map(repr, names))
        raise UnfitRolloutError(f"the prompt was not found in any model call, and the task does not contain {shown}")
    return dict.fromkeys(names, said)


def _values_of_task(names: Sequence[str], task: Any) -> dict[str, str] | None:
    if not isinstance(task, Mapping) or not all(name in task for name in names):
        return None
    return {name: str(task[name]) for name in names}


def _prompts(conversation: OpenAIMessages) -> Iterator[str]:
    """What the model was given, the last message first."""
    for message in reversed(conversation["messages"][:-1]):
        text = _raw_text(message)
        if text:
            yield text


def _last_said(conversation: OpenAIMessages) -> str | None:
    users = [each for each in conversation["messages"][:-1] if each.get("role") == "user"]
    return next(filter(None, map(_text, reversed(users))), None)


def _input(conversation: OpenAIMessages, prompt: PromptTemplate, task: Any) -> str:
    """What the user said last beside the prompt; the task, where that is nothing."""
    said = (_last_said(conversation) or "").replace(prompt.template.strip(), "", 1).strip()
    return said or (task.strip() if isinstance(task, str) else msgspec.json.encode(task, enc_hook=repr).decode())


def _text(message: Mapping[str, Any]) -> str:
    return _raw_text(message).strip()


def _raw_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)


# -- a template taken apart ------------------------------------------------------------------------


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


# -- demonstrations written into a template --------------------------------------------------------


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
