"""Units of systemd, read as far as ours need it: sections, repeated keys, specifiers, variables in commands."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Unit:
    """One file. `folders` says what the specifiers stand for here."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.sections: dict[str, dict[str, list[str]]] = {}
        section: dict[str, list[str]] = {}
        for line in path.read_text().splitlines():
            if line.startswith("["):
                section = self.sections.setdefault(line.strip("[]"), {})
            elif line.strip() and not line.startswith(("#", ";")):
                key, _, value = line.partition("=")
                section.setdefault(key, []).append(value)

    def all(self, key: str) -> list[str]:
        """Every value of a key of the service."""
        return self.sections["Service"].get(key, [])

    def one(self, key: str) -> str:
        (value,) = self.all(key)
        return value

    @property
    def variables(self) -> set[str]:
        """Those that the command needs."""
        return set(_VARIABLE.findall(self.one("ExecStart")))

    def environment(self, files: Mapping[str, str], state: str) -> dict[str, str]:
        """What the process sees; `files` are the texts of environment files by their paths."""
        found: dict[str, str] = {}
        for each in self.all("Environment"):
            name, _, value = each.partition("=")
            found[name] = value.replace("%S", state)
        for path in self.all("EnvironmentFile"):  # which count more, wherever they stand
            if not path.startswith("-") or path[1:] in files:
                found |= variables_of(files[path.removeprefix("-")])
        return found

    def command(self, environment: Mapping[str, str]) -> list[str]:
        """The words of the command: `${NAME}` is one word, whatever is in it."""
        words = shlex.split(self.one("ExecStart"))
        return [_VARIABLE.sub(lambda found: environment[found[1]], word) for word in words]


def variables_of(text: str) -> dict[str, str]:
    """The variables of an environment file."""
    lines = [line.partition("=") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in lines}
