"""Subcommands of a command, one of which is the default."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any


def add_inner_commands(
    parser: argparse.ArgumentParser, *, dest: str, metavar: str, implied: str, is_argument: Callable[[str], bool]
) -> "InnerCommands":
    """Add subcommands; the `implied` one may be left out before words for which `is_argument` holds."""
    found = parser.add_subparsers(action=InnerCommands, dest=dest, metavar=metavar, parser_class=type(parser))
    assert isinstance(found, InnerCommands)
    found.implied, found.is_argument = implied, is_argument
    return found


class InnerCommands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Made by `add_inner_commands`."""

    implied: str
    is_argument: Callable[[str], bool]

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = [str(each) for each in values or ()]
        is_implied = words[0] not in self._name_parser_map
        super().__call__(parser, namespace, [self.implied, *words] if is_implied else words, option_string)


def leave_to_outer(inner: argparse.ArgumentParser, outer: argparse.ArgumentParser) -> None:
    """Allow options before the subcommand too: defaults of the subcommand must not overwrite them."""
    known = {action.dest for action in outer._actions if action.option_strings}
    for action in inner._actions:
        if action.dest in known and action.dest != "help":
            action.default = argparse.SUPPRESS
