"""`Overview`: the parser of `sharpen` itself, whose help shows the commands in groups with examples."""

import shutil
import textwrap
from typing import Any

from .parser import CommandParser, examples

_EXAMPLES = examples(
    "sharpen init my-agent                  # create a small example project",
    "sharpen train my-agent/config.yaml --dry-run",
    "sharpen train my-agent/config.yaml algorithm.seed=2",
    "sharpen runs list                      # list runs, newest first",
    "sharpen rollouts show ID               # show a rollout of the last run as a transcript",
    "sharpen dashboard                      # view everything in the browser",
)
_CODES = (
    "exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 3 not found, 130 Ctrl-C, 141 output pipe "
    "closed, 143 SIGTERM"
)
VARIABLES = {
    "SHARPEN_RUNS": "folder for runs (default: runs)",
    "SHARPEN_TOKEN": "token of the store server, for clients and for the server itself",
    "SHARPEN_GATEWAY_TOKEN": "token of the gateway, for clients and for the gateway itself",
    "SHARPEN_DATABASE_URL": "default database of `sharpen store serve`: postgresql://… or redis://…",
    "SHARPEN_LOG": "log levels, such as debug or info,store=debug",
    "SHARPEN_DEBUG": "set to 1 to print tracebacks of errors",
    "NO_COLOR": "disable colours; FORCE_COLOR enables them in pipes too",
}


class Overview(CommandParser):
    """`groups` maps titles to command names; the caller fills it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.groups: dict[str, list[str]] = {}

    def add_subparsers(self, **options: Any) -> Any:
        return super().add_subparsers(parser_class=CommandParser, **options)

    def format_help(self) -> str:
        width = min(shutil.get_terminal_size().columns, 100)
        longest = max(map(len, VARIABLES))
        parts = [f"usage: {self.prog} COMMAND ...", "", self.description or "", ""]
        for title, names in self.groups.items():
            parts += [f"{title}:", *(self._line(name, width) for name in names), ""]
        parts += ["options:", "  -h, --help    show this help; use COMMAND --help for one command"]
        parts += ["  --version     print the version", "", _EXAMPLES, ""]
        parts += ["variables:", *(_entry(name, meaning, width, longest) for name, meaning in VARIABLES.items()), ""]
        parts += [_wrapped(_CODES, width)]
        return "\n".join(parts) + "\n"

    def _line(self, name: str, width: int) -> str:
        return _entry(name, self.summaries[name], width)

    @property
    def summaries(self) -> dict[str, str]:
        """The one-line summary of each command."""
        assert self._subparsers is not None
        listed = self._subparsers._group_actions[0]._get_subactions()  # type: ignore[attr-defined]
        return {each.dest: each.help or "" for each in listed}


def _entry(name: str, meaning: str, width: int, name_width: int = 13) -> str:
    indent = " " * (name_width + 3)
    return textwrap.fill(f"{name:<{name_width}} {meaning}", width, initial_indent="  ", subsequent_indent=indent)


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, subsequent_indent="  ")
