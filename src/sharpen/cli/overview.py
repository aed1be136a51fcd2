"""`Overview`: the parser of `sharpen` itself, whose help shows the commands in groups with examples."""

import shutil
import textwrap
from typing import Any

from .parser import CommandParser, examples

_EXAMPLES = examples(
    "sharpen init my-agent                  # a small project that runs",
    "sharpen train my-agent/config.yaml --dry-run",
    "sharpen train my-agent/config.yaml algorithm.seed=2",
    "sharpen runs list                      # what ran, newest first",
    "sharpen rollouts show ID               # one rollout as a transcript; of the last run",
    "sharpen dashboard                      # all of it in the browser",
)
_CODES = (
    "exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 not found, 130 Ctrl-C, 141 output not read, "
    "143 SIGTERM"
)
VARIABLES = {
    "SHARPEN_RUNS": "the folder of runs (default: runs)",
    "SHARPEN_TOKEN": "the token of a store that is served, or for the one served here",
    "SHARPEN_GATEWAY_TOKEN": "the token of a gateway that is served, or for the one served here",
    "SHARPEN_DATABASE_URL": "the database that `sharpen store` serves where none is named: postgresql://… or redis://…",
    "SHARPEN_LOG": "what is logged, such as debug or info,store=debug",
    "SHARPEN_DEBUG": "1 shows the traceback of an error",
    "NO_COLOR": "no colours; FORCE_COLOR: colours also in a pipe",
}


class Overview(CommandParser):
    """Groups are filled by whoever adds the commands: title -> names."""

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
        parts += ["options:", "  -h, --help    this page; COMMAND --help tells of one command"]
        parts += ["  --version     Sharpen's version", "", _EXAMPLES, ""]
        parts += ["variables:", *(_entry(name, meaning, width, longest) for name, meaning in VARIABLES.items()), ""]
        parts += [_wrapped(_CODES, width)]
        return "\n".join(parts) + "\n"

    def _line(self, name: str, width: int) -> str:
        return _entry(name, self.summaries[name], width)

    @property
    def summaries(self) -> dict[str, str]:
        """What each command does, in a line."""
        assert self._subparsers is not None
        listed = self._subparsers._group_actions[0]._get_subactions()  # type: ignore[attr-defined]
        return {each.dest: each.help or "" for each in listed}


def _entry(name: str, meaning: str, width: int, name_width: int = 13) -> str:
    indent = " " * (name_width + 3)
    return textwrap.fill(f"{name:<{name_width}} {meaning}", width, initial_indent="  ", subsequent_indent=indent)


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, subsequent_indent="  ")
