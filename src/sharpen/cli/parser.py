"""`CommandParser`: an argument parser that suggests the nearest name for a misspelt one.

Options may stand before, between and after the positional arguments. An epilog keeps its lines, so it can
hold examples: `epilog=examples("sharpen runs list", "sharpen runs show last")`.
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from ..logging import plain
from .exit_codes import USAGE
from .inner_commands import InnerCommands


class WrongUsage(SystemExit):
    """Wrong arguments; the message is on standard error already."""

    def __init__(self, message: str) -> None:
        super().__init__(USAGE)
        self.message = message


class _Format(argparse.RawDescriptionHelpFormatter):
    """Wraps text of one line; text of several lines, such as examples, is kept."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns - 2, 110)
        super().__init__(prog, max_help_position=30, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return super()._fill_text(text if "\n" in text else textwrap.fill(text, width), width, indent)


class CommandParser(argparse.ArgumentParser):
    """The parser of `sharpen` and of each of its commands."""

    def __init__(self, *given: Any, **options: Any) -> None:
        options.setdefault("formatter_class", _Format)
        options.setdefault("allow_abbrev", False)  # an option added later must not change the meaning of a script
        super().__init__(*given, **options)
        self._is_mixing = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse unknown arguments in the parser that knows similar names."""
        if self._is_mixing:
            return super().parse_known_args(args, namespace)
        if self.has_commands:
            self._refuse_unknown_options(sys.argv[1:] if args is None else args)
            found, unknown = super().parse_known_args(args, namespace)
        else:
            self._is_mixing = True
            try:
                found, unknown = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._is_mixing = False
        if unknown:
            self.error(f"unknown argument: {' '.join(unknown)}{self._nearest_option(unknown)}")
        return found, []

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Check options before a subcommand: the value of a misspelt one would be read as the subcommand."""
        rest = iter(words)
        for word in rest:
            if not word.startswith("-") or word in ("-", "--"):
                return
            name, has_value, _ = word.partition("=")
            action = self._option_string_actions.get(name)
            if isinstance(action, argparse._HelpAction):
                return
            if action is None:
                self.error(f"unknown argument: {word}{self._nearest_option([word])}")
            if action.nargs is None and not has_value:
                next(rest, None)

    @property
    def has_commands(self) -> bool:
        return self._subparsers is not None

    def error(self, message: str) -> NoReturn:
        """Print the message and how to get help to standard error."""
        sys.stderr.write(f"{self.prog}: {plain(message)}\n{self.format_usage()}Try: {self.prog} --help\n")
        raise WrongUsage(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, InnerCommands) and action.is_argument(str(value)):
            return
        choices = [str(each) for each in action.choices]
        hint = nearest(str(value), choices) or f"; use one of: {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def _nearest_option(self, unknown: Iterable[str]) -> str:
        names = [each[2:] for action in self._actions for each in action.option_strings if each.startswith("--")]
        misspelt = [each.partition("=")[0].lstrip("-") for each in unknown if each.startswith("-")]
        near = (match for each in misspelt for match in get_close_matches(each, names, n=1))
        return next((f"; did you mean '--{match}'?" for match in near), "")


def nearest(value: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if a known name is similar."""
    near = get_close_matches(value, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def examples(*lines: str) -> str:
    """Return an epilog with examples."""
    return "\n".join([f"example{'s' * (len(lines) > 1)}:", *(f"  {line}" for line in lines)])
