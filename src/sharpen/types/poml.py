"""Renders POML, whose expressions are JavaScript, in a process that may read no file and start no program.

A template is data: without `allows_code` its `{{name}}` are filled here, and the process can neither turn text into
code (a switch of V8, so it holds for every way in which POML evaluates) nor open a connection. With it, expressions
run, and may use the network. The `poml` package carries its own Node.js; the environment of the process holds no
secret.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InvalidInputError, MissingExtraError, MissingValueError
from .template_fields import why_missing

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
"""Turns any text into POML that shows it as it is, also within an attribute."""

# Node.js prints the failing line of source first, then the error at the start of a line of its own.
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
    """The text of the template with these values."""
    package = find_spec("poml")
    if package is None or package.origin is None:
        raise MissingExtraError.of("poml", extra="prompts", feature='PromptTemplate with engine="poml"')
    try:
        if allows_code:
            return _run(template, json.dumps(values), Path(package.origin).resolve().parent)
        return _run(_filled(template, values), None, Path(package.origin).resolve().parent)
    except TypeError as error:
        raise InvalidInputError(f"a value cannot be given to a POML template, which takes JSON: {error}") from error


def code_in(template: str) -> str | None:
    """The first thing in a POML template that needs `allows_code`, as it is written; None where nothing does."""
    for match in _EXPRESSION.finditer(template):
        if not _NAME.fullmatch(match[1]):
            return match[0]
    found = _CODE.search(template)
    return None if found is None else f"{found['attribute']}=" if found["attribute"] else f"<{found['element']}>"


def _filled(template: str, values: Mapping[str, Any]) -> str:
    code = code_in(template)
    if code is not None:
        raise InvalidInputError(_needs_code(f"has {code}"))

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            text = match[0].translate(POML_TEXT)
            raise MissingValueError(f"the POML template has {match[0]}, {why_missing(name, values)}{text}")
        value = values[name]
        return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).translate(POML_TEXT)

    return _EXPRESSION.sub(fill, template)


def _needs_code(what: str) -> str:
    return (
        f"the POML template {what}, which runs as JavaScript: write plain {{{{name}}}} and pass the value, or, if you "
        "wrote the template yourself, PromptTemplate(..., allows_code=True)"
    )


def _run(template: str, context: str | None, root: Path) -> str:
    """Without a context, nothing in the template may run."""
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
