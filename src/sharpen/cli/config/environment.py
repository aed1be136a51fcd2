"""`${NAME}` and `${NAME:-default}` in the strings of a configuration. `$${` stands for `${`.

If the name of a variable or of its key looks like a secret, the reference is shown instead of the value.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...secrets import looks_secret
from .document import Document, read_scalar
from .literal_secrets import reference_for
from .sources import Path_, Source

# A name with a dot, or with `oc.` before it, is a reference of VERL's config, which follows it itself.
_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|(?P<others>\$\{[\w.]*\.[^}]*\})|\$\{[^}]*\}?"
)
# A secret stays a string, even one of digits, except for these words.
_WORDS = {"true": True, "false": False, "null": None}


class References:
    """The texts with references that a configuration had, by path, and the secrets among their values. `literals` are
    references in the place of secrets that stand in the configuration itself."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self.texts: dict[Path_, str] = {}
        self.secret_paths: set[Path_] = set()
        self.literals: dict[Path_, str] = {}
        self.secrets: dict[str, str] = {}
        """Their values, and the reference that replaces each."""

    def resolve(self, document: Document) -> Any:
        """Return the values of a document with every reference resolved, and update their sources."""
        return self._walk(document.value, (), document)

    def hide(self, text: str) -> str:
        """Return a text with secrets replaced by their references."""
        for value, reference in sorted(self.secrets.items(), key=lambda each: -len(each[0])):
            text = text.replace(value, reference)
        return text

    def _walk(self, value: Any, path: Path_, document: Document) -> Any:
        if isinstance(value, dict):
            return {key: self._walk(each, (*path, key), document) for key, each in value.items()}
        if isinstance(value, list):
            return [self._walk(each, (*path, number), document) for number, each in enumerate(value)]
        found = self._follow(value, path, document) if isinstance(value, str) and "${" in value else value
        if path not in self.secret_paths and (reference := reference_for(path, found)) is not None:
            self.literals[path] = self.texts.get(path, reference)
            self._remember(found, self.literals[path])
        return found

    def _follow(self, text: str, path: Path_, document: Document) -> Any:
        source = document.sources[path]
        names: list[str] = []
        found = _REFERENCE.sub(lambda match: self._value(match, names, source, path), text)
        if not names:
            return found
        self.texts[path] = text
        is_secret = any(map(looks_secret, [*names, *map(str, path)]))
        if is_secret:
            self.secret_paths.add(path)
            self._remember(found, text)
            for name in names:
                if looks_secret(name):
                    self._remember(self._environment.get(name) or "", f"${{{name}}}")
        document.sources[path] = Source("environment", f"{source} ({text})", source.line, source.column)
        is_whole = _REFERENCE.fullmatch(text) is not None and path in document.plain
        if not is_whole:
            return found
        return _WORDS.get(found, found) if is_secret else read_scalar(found, f"{source}, the value of ${names[0]}")

    def _remember(self, secret: str, reference: str) -> None:
        """Remember a secret. Values of up to three characters would match inside ordinary words."""
        if len(secret) > 3:
            self.secrets.setdefault(secret, reference)

    def _value(self, match: re.Match[str], names: list[str], source: Source, path: Path_) -> str:
        if match.group() == "$${":
            return "${"
        if match["others"] is not None:
            return match.group()
        name, default = match["name"], match["default"]
        if name is None:
            raise ConfigError(
                f"{source.exact()}: {match.group()!r} is not a valid reference: write ${{NAME}} or ${{NAME:-default}}"
            )
        names.append(name)
        value = self._environment.get(name)
        if value is None and default is None:
            raise ConfigError(
                f"{source.exact()}: {'.'.join(map(str, path))} is ${{{name}}}, but the environment variable {name} is "
                f"not set: set it, or write ${{{name}:-default}}"
            )
        # An empty variable counts as none where there is a default, as in a shell.
        return default if default is not None and not value else value or ""
