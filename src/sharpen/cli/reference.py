"""The command-line reference, generated from the parser: `python -m sharpen.cli.reference > docs/reference/cli.md`.

A test checks that the page is up to date.
"""

import argparse
import sys
from collections.abc import Iterator

from .exit_codes import MEANINGS
from .overview import VARIABLES, Overview
from .program import make_parser

_HEAD = """\
# The command line

`sharpen COMMAND --help` shows the same for one command. For a misspelt command or option, the nearest name is
suggested. With `--json` a command prints exactly one JSON value to standard output; an error is
`{"error": {"type": ..., "message": ...}}`. Notes, progress and error messages go to standard error.

RUN is a run: its name in the runs folder, a unique part of the name, a path, or `last`. STORE is a store: a file, a
run, or the address of a store server. CONFIG is a YAML configuration file, such as `sharpen init` writes.
"""


def reference_page() -> str:
    """Return the page in Markdown."""
    parser = make_parser()
    commands = _commands(parser)
    lines = [_HEAD, *_overview(parser)]
    for names in parser.groups.values():
        for name in names:
            lines += _section(commands[name], level=2)
    return "\n".join([*lines, *_codes(), *_variables()]).rstrip() + "\n"


def _overview(parser: Overview) -> Iterator[str]:
    yield from ("| command | description |", "| --- | --- |")
    for names in parser.groups.values():
        for name in names:
            yield f"| [`sharpen {name}`](#sharpen-{name}) | {_cell(parser.summaries[name])} |"
    yield ""


def _section(parser: argparse.ArgumentParser, *, level: int, summary: str = "") -> Iterator[str]:
    yield f"{'#' * level} {parser.prog}\n"
    yield from _description(parser.description or summary)
    yield f"```text\n{' '.join(parser.format_usage().split())}\n```\n"
    yield from _arguments(parser)
    if parser.epilog:
        _, _, shown = parser.epilog.partition("\n")
        yield f"```text\n{_without_indent(shown)}\n```\n"
    summaries = _summaries(parser)
    for name, inner in _commands(parser).items():
        yield from _section(inner, level=level + 1, summary=summaries[name])


def _description(text: str) -> Iterator[str]:
    """Yield a paragraph, and what follows it after an empty line as a code block."""
    first, _, rest = text.partition("\n\n")
    yield f"{_sentence(first)}\n"
    if rest:
        yield f"```text\n{rest}\n```\n"


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    shown = [each for each in parser._actions if each.help != argparse.SUPPRESS and not _is_common(each)]
    if not shown:
        return
    yield from ("| argument | description |", "| --- | --- |")
    formatter = parser._get_formatter()
    for action in shown:
        meaning = formatter._expand_help(action) if action.help else ""
        yield f"| {_name(action)} | {_cell(meaning)}{_choices(action, meaning)} |"
    yield ""


def _is_common(action: argparse.Action) -> bool:
    return isinstance(action, argparse._HelpAction | argparse._SubParsersAction)


def _name(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return f"`{metavar}`"
    value = "" if action.nargs == 0 else f" {metavar if action.choices is None or action.metavar else 'CHOICE'}"
    return ", ".join(f"`{each}{value}`" for each in action.option_strings)


def _choices(action: argparse.Action, meaning: str) -> str:
    missing = [str(each) for each in action.choices or () if str(each) not in meaning]
    return f" (one of {', '.join(f'`{each}`' for each in action.choices or ())})" if missing else ""


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return {name: inner for action in actions for name, inner in action.choices.items()}


def _summaries(parser: argparse.ArgumentParser) -> dict[str, str]:
    actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    # A help text is a format string, in which %% stands for %.
    return {each.dest: (each.help or "") % {} for action in actions for each in action._get_subactions()}


def _codes() -> Iterator[str]:
    yield from ("## Exit codes\n", "| code | meaning |", "| --- | --- |")
    yield from (f"| {code} | {meaning} |" for code, meaning in MEANINGS.items())
    yield ""


def _variables() -> Iterator[str]:
    yield from ("## Environment variables\n", "| variable | description |", "| --- | --- |")
    yield from (f"| `{name}` | {_cell(meaning)} |" for name, meaning in VARIABLES.items())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _sentence(text: str) -> str:
    return text if not text or text.endswith(".") else f"{text[0].upper()}{text[1:]}."


def _without_indent(text: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in text.split("\n"))


if __name__ == "__main__":
    sys.stdout.write(reference_page())
