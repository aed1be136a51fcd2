"""YAML documents that remember where each value is written.

Scalars follow YAML 1.2: only `true` and `false` are booleans, `1e-4` is a number, a date is a string. Duplicate keys,
keys that are not strings, and files whose aliases grow without bound are refused.
"""

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ...checks import did_you_mean
from ...errors import ConfigError
from .sources import Path_, Source

_MOST_VALUES, _MOST_LEVELS = 20_000, 64
_MERGE = "<<"


class _Loader(yaml.SafeLoader):
    """Only for reading nodes and scalars."""


IMPLICIT = tuple(
    (f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), first)
    for tag, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
        (
            "float",
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
            list("-+.0123456789"),
        ),
    )
)
"""How scalars without quotes are read: the tag, the pattern, and the characters that it begins with."""

_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in IMPLICIT:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)


class Document:
    """The values of a YAML text, and the place of each.

    `plain` holds the paths of strings without quotes, which may be parsed as YAML again.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.sources: dict[Path_, Source] = {}
        self.plain: set[Path_] = set()
        self._count = 0
        node = self._compose(text)
        self.value: Any = None if node is None else self._read(node, ())

    def _compose(self, text: str) -> yaml.Node | None:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = self.name if mark is None else f"{self.name}:{mark.line + 1}:{mark.column + 1}"
            raise ConfigError(f"{place}: invalid YAML: {error.problem or error.context}") from error
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise ConfigError(f"{self.name}: invalid YAML: {error}") from error
        finally:
            loader.dispose()

    def _read(self, node: yaml.Node, path: Path_) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES or len(path) > _MOST_LEVELS:
            self._refuse(
                node,
                f"the file has more than {_MOST_VALUES:,} values or {_MOST_LEVELS} levels, or an alias contains itself",
            )
        self.sources[path] = self._source(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._read(each, (*path, number)) for number, each in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in lines:
                self._refuse(key_node, f"duplicate key {key!r}, first set in line {lines[key]}: remove one of them")
            lines[key] = key_node.start_mark.line + 1
            if key == _MERGE:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            found[key] = self._read(value_node, (*path, key))
            self.sources[(*path, key)] = self._source(key_node)
        for each in merged:
            self._merge(each, path, found)
        return found

    def _merge(self, node: yaml.Node, path: Path_, found: dict[str, Any]) -> None:
        """Add the keys of another mapping (`<<: *alias`) that are not set here."""
        if not isinstance(node, yaml.MappingNode):
            self._refuse(node, "<< needs a mapping or a list of mappings")
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key not in found:
                found[key] = self._read(value_node, (*path, key))

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(node, "a key must be a string, not a list or a mapping")
        return str(node.value)

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
        text = str(node.value)
        if tag == "str":
            if getattr(node, "style", None) is None:
                self.plain.add(path)
            return text
        try:
            return _SCALARS[tag](text)
        except (KeyError, ValueError):
            self._refuse(node, f"the YAML tag {node.tag!r} is not supported: use a plain value")

    def _source(self, node: yaml.Node) -> Source:
        mark = node.start_mark
        return Source("file", f"{self.name}:{mark.line + 1}", mark.line + 1, mark.column + 1)

    def _refuse(self, node: yaml.Node, why: str) -> NoReturn:
        raise ConfigError(f"{self._source(node).exact()}: {why}")


def _int(text: str) -> int:
    return int(text, 0) if text.lower().startswith(("0x", "0o")) else int(text)


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": _int,
    "float": _float,
}


def read_scalar(text: str, name: str) -> Any:
    """Return a value that is written as YAML outside a file: an override or an environment variable."""
    return Document(text, name).value


def read_document(path: Path, name: str) -> Document:
    """Return the document in a file."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        hint = did_you_mean(path.name, [each.name for each in path.parent.glob("*.y*ml")])
        raise ConfigError(
            f"configuration file {str(path)!r} not found: check the path, or create one with 'sharpen init'.{hint}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from error
    return Document(text, name)
