"""How a `PromptTemplate` is rendered: the three engines, and the grammar of f-string templates.

A template is data, not code, since candidates are written by models: whatever fails in one is an `InvalidInputError`.

An f-string field is what `str.format` would take for a named one. Prompts also hold LaTeX and JSON, whose braces look
the same, so some fields are optional: they are filled if a value of that name is given, and are text otherwise.
Optional are

- an argument of a LaTeX command (`\\boxed{answer}`, `\\frac{a}{b}`), which keeps its braces when it is filled, since
  LaTeX would otherwise read only its first character,
- a subscript or superscript (`x_{i}`, `2^{n}`), filled without braces, since `report_{name}.csv` looks the same,
- a field inside other braces (`{"answer": {number}}`).

Syntax alone does not say whether an optional field takes a value: only the values that are given do.

POML's expressions are JavaScript. They run in a process that may not read files or start programs, and whose
environment holds no secrets; the `poml` package brings its own Node.js. Without `allows_code`, `{{name}}` is filled
here, and the process can neither turn text into code (a switch of V8, so it holds for every way in which POML
evaluates) nor open a connection. With it, expressions run, and may use the network.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..checks import nearest_names, needs_extra
from ..errors import InvalidInputError, MissingExtraError, MissingValueError

# -- f-string ----------------------------------------------------------------------------------------

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
    """Return the text of an f-string template with these values."""
    return "".join(piece if isinstance(piece, str) else _fill(piece, values) for piece in parse_fields(template))


def _fill(field: Field, values: Mapping[str, Any]) -> str:
    if field.name not in values and field.is_optional:
        return field.text
    if not field.is_plain:
        raise InvalidInputError(
            f"the template has {field.text}, but only plain fields such as {{{field.name}}} are filled: pass the value "
            f"as it should read, under its own name; to write it as text, use {{{field.text}}}"
        )
    if field.name not in values:
        why = _missing_value(field.name, values, as_text=f"{{{field.text}}}")
        raise MissingValueError(f"the template has {field.text}, {why}")
    value = str(values[field.name])
    return f"{{{value}}}" if field.is_argument else value


def parse_fields(template: str) -> list[str | Field]:
    """Split a template into fields and the texts between them, as they are shown. No text is empty."""
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
    return list(_join_texts(pieces))


def _field(match: re.Match[str], start: int, end: int, context: "_Context | None") -> Field:
    """Read a field from its match; without a context it stands within doubled braces, and is required."""
    is_argument = context is not None and context.is_argument(start)
    is_optional = context is not None and context.is_optional(start)
    return Field(match["name"], match.string[start:end], start, end, not match["more"], is_argument, is_optional)


def _join_texts(pieces: list[str | Field]) -> Iterator[str | Field]:
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
    """Return the text as it is written in a template that shows it unchanged."""

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
    """Map the place of each opening brace to that of the brace that closes it; unpaired braces are left out."""
    opened: list[int] = []
    pairs: dict[int, int] = {}
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            pairs[opened.pop()] = match.start()
    return pairs


# -- jinja -------------------------------------------------------------------------------------------

_JINJA_NAME = re.compile(r"'(\w+)' is undefined")


def render_jinja(template: str, values: Mapping[str, Any]) -> str:
    """Return the text of a Jinja template with these values, rendered in an immutable sandbox."""
    with needs_extra("jinja2", extra="prompts", feature='PromptTemplate with engine="jinja"'):
        from jinja2 import StrictUndefined, UndefinedError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Missing(StrictUndefined):
        """A value that was not given: a condition may test it, anything else is an error."""

        def __bool__(self) -> bool:  # type: ignore[override]
            return False

    try:
        return ImmutableSandboxedEnvironment(undefined=Missing).from_string(template).render(values)
    except UndefinedError as error:
        found = _JINJA_NAME.fullmatch(error.message or "")
        if found is None:  # an attribute or an item
            raise InvalidInputError(f"the Jinja template cannot be rendered: {error}") from error
        as_text = f"{{% raw %}}{{{{{found[1]}}}}}{{% endraw %}}"
        raise MissingValueError(
            f"the Jinja template uses {found[1]}, {_missing_value(found[1], values, as_text)}"
        ) from error
    except Exception as error:  # a template is data: whatever fails in it is a wrong value
        raise InvalidInputError(f"the Jinja template cannot be rendered: {error}") from error


# -- poml --------------------------------------------------------------------------------------------

RENDER_TIMEOUT_SECONDS = 60
POML_TEXT = str.maketrans(
    {
        "#": "#hash;",
        "<": "#lt;",
        ">": "#gt;",
        "&": "#amp;",
        '"': "#quot;",
        "'": "#apos;",
        "{": "#lbrace;",
        "}": "#rbrace;",
    }
)
"""Translates any text into POML that shows it unchanged, also within an attribute."""

# Node.js prints the failing line of source first, then the error at the start of another line.
_ERROR_LINE = re.compile(r"\[?\w*(Error|Exception): ")
_EXPRESSION = re.compile(r"\{\{\s*(.+?)\s*\}\}(?!\})")  # as POML reads it
_NAME = re.compile(r"[^\W\d]\w*")
_CODE = re.compile(
    r"<[^<>]*?\s(?P<attribute>for|if)\s*=|<(?P<element>let|output-?schema|tool(?:-?def(?:inition)?)?)\b", re.IGNORECASE
)
_NO_EVAL = "Code generation from strings disallowed"
_NO_NETWORK = """
require("net").Socket.prototype.connect = () => { throw new Error("a template may not use the network"); };
"""


def render_poml(template: str, values: Mapping[str, Any], *, allows_code: bool = False) -> str:
    """Return the text of a POML template with these values."""
    package = find_spec("poml")
    if package is None or package.origin is None:
        raise MissingExtraError.of("poml", extra="prompts", feature='PromptTemplate with engine="poml"')
    try:
        if allows_code:
            return _run(template, json.dumps(values), Path(package.origin).resolve().parent)
        return _run(_fill_poml(template, values), None, Path(package.origin).resolve().parent)
    except TypeError as error:
        raise InvalidInputError(f"a value cannot be passed to a POML template, which takes JSON: {error}") from error


def code_in(template: str) -> str | None:
    """Return the first thing in a POML template that needs `allows_code`, as it is written, or None."""
    for match in _EXPRESSION.finditer(template):
        if not _NAME.fullmatch(match[1]):
            return match[0]
    found = _CODE.search(template)
    return None if found is None else f"{found['attribute']}=" if found["attribute"] else f"<{found['element']}>"


def _fill_poml(template: str, values: Mapping[str, Any]) -> str:
    code = code_in(template)
    if code is not None:
        raise InvalidInputError(_needs_code(f"has {code}"))

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            as_text = match[0].translate(POML_TEXT)
            raise MissingValueError(f"the POML template has {match[0]}, {_missing_value(name, values, as_text)}")
        value = values[name]
        return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).translate(POML_TEXT)

    return _EXPRESSION.sub(fill, template)


def _needs_code(what: str) -> str:
    return (
        f"the POML template {what}, which runs as JavaScript: write plain {{{{name}}}} and pass the value, or, if you "
        "wrote the template yourself, PromptTemplate(..., allows_code=True)"
    )


def _run(template: str, context: str | None, root: Path) -> str:
    """Render in a separate process; without a context, nothing in the template may run."""
    with tempfile.TemporaryDirectory(prefix="sharpen-poml-") as folder:
        work = Path(folder).resolve()
        (work / "template.poml").write_text(template, encoding="utf-8")
        (work / "no_network.cjs").write_text(_NO_NETWORK, encoding="utf-8")
        options = f"--permission --allow-addons --allow-fs-read={root}/ --allow-fs-read={work}/"
        command = [sys.executable, "-m", "poml", "-f", "template.poml", "--chat", "false"]
        if context is None:
            options += f" --disallow-code-generation-from-strings --require={work}/no_network.cjs"
        else:
            (work / "values.json").write_text(context, encoding="utf-8")
            command += ["--context-file", "values.json"]
        environment = {"PATH": os.environ.get("PATH", ""), "NODE_OPTIONS": options, "NODE_NO_WARNINGS": "1"}
        code, output, errors = _run_within(RENDER_TIMEOUT_SECONDS, command, cwd=work, env=environment)
    if code != 0:
        reason = next(filter(_ERROR_LINE.match, errors.splitlines()), "no reason given")
        if _NO_EVAL in reason:
            raise InvalidInputError(_needs_code("holds an expression"))
        raise InvalidInputError(f"the POML template cannot be rendered (it may not read files): {reason}")
    text = json.loads(output)["messages"]
    return text if isinstance(text, str) else json.dumps(text)


def _run_within(seconds: float, command: list[str], **options: Any) -> tuple[int, str, str]:
    """Run a program and return its exit code, output and errors. On a time-out or an interrupt, the processes that it
    started end with it: the `poml` command starts Node.js as a separate process."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
        **options,
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise InvalidInputError(f"the POML template took more than {seconds:g} s to render") from error
            raise
    return process.returncode, output, errors


# -- all engines -------------------------------------------------------------------------------------


def _missing_value(name: str, values: Mapping[str, Any], as_text: str) -> str:
    """Return the part of a message that says what was given instead, and how to write the field as text."""
    near = nearest_names(name, values, limit=1, cutoff=0)
    given = f"the closest name given is {near[0]!r}" if near else "no values were given"
    return f"but format() got no value for {name!r} ({given}). To write it as text, use {as_text}"
