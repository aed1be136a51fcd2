"""Console blocks of Markdown pages: which commands they hold, and what these shall print.

A block that stands right behind `<!-- run -->` is run, command by command, in one folder for the whole page; behind
`<!-- run: exit 1 -->` its last command ends with that code. Lines without `$ ` are what the command prints: `…` stands
for anything, also for lines. A command for which nothing is shown may print what it likes. A block of any language
behind `<!-- file: NAME -->` becomes that file at its place in the page.
"""

import re
import shlex
from dataclasses import dataclass

_MARK = r"(?:<!-- (run|file)(?:: ([^>]*?))? -->\n+)?"
_BLOCK = re.compile(_MARK + r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ENDS = ("|", ">", "2>", ">>", "&&", "&", ";", "2>&1")


@dataclass(frozen=True)
class Command:
    """One line of a block and what it shall print."""

    line: str
    shown: str
    exit_code: int = 0

    def fits(self, printed: str) -> bool:
        """Whether the output is what the page shows."""
        if not self.shown:
            return True
        pattern = ".*".join(re.escape(part.strip("\n")) for part in self.shown.split("…"))
        return re.fullmatch(rf"\s*{pattern}\s*", _even(printed), re.DOTALL) is not None


@dataclass(frozen=True)
class PageFile:
    """A file that the page shows."""

    name: str
    text: str


def _even(text: str) -> str:
    """Without the spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.splitlines())


def steps_of(page: str) -> list[Command | PageFile]:
    """What a reader of the page does, in order: files to write, and commands to run."""
    found: list[Command | PageFile] = []
    for block in _BLOCK.finditer(page):
        mark, detail, _, text = block.groups()
        if mark == "file":
            found.append(PageFile(detail, text))
        elif mark == "run":
            commands = _commands(text)
            last = commands.pop()
            code = int(detail.removeprefix("exit ")) if detail else 0
            found += [*commands, Command(last.line, last.shown, code)]
    return found


def is_run(page: str) -> bool:
    """Whether the page has commands that are to be run."""
    return any(isinstance(step, Command) for step in steps_of(page))


def _commands(block: str) -> list[Command]:
    whole = re.sub(r"\\\n\s*", "", block)
    parts = re.split(r"^\$ ", whole, flags=re.MULTILINE)[1:]
    return [Command(first, _even(rest)) for first, _, rest in (part.partition("\n") for part in parts)]


def sharpen_arguments(page: str) -> list[list[str]]:
    """What is given to `sharpen` in all console blocks of the page, run or not."""
    found = []
    for block in _BLOCK.finditer(page):
        for command in _commands(block[4]) if block[3] == "console" else []:
            words = shlex.split(command.line, comments=True)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words = words[1:]
            if words[:1] == ["sharpen"]:
                end = next((place for place, word in enumerate(words) if word in _ENDS), len(words))
                found.append(words[1:end])
    return found
