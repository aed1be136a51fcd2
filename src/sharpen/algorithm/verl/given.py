"""What a caller gave: a mapping of mappings, of dotted names, or a YAML file, as one flat mapping of dotted names.

References such as `${data.max_prompt_length}`, which configs of Hydra hold, are followed among what was given.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import msgspec

from ...errors import ConfigError, MissingExtraError
from .values import shown

_MOST_KEYS, _MOST_LEVELS, _MOST_REFERENCES = 10_000, 32, 16
_REFERENCE = re.compile(r"\$\{(oc\.select:|oc\.env:)?\s*([^${},]+?)\s*(?:,\s*([^${}]*?)\s*)?\}")
_MISSING = "???"  # what OmegaConf writes for a value that has to be given


class _Mapping(Protocol):
    """What mappings of other packages have, whether or not they say that they are mappings."""

    def keys(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Any: ...


def flatten(config: Any, *, leaves: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The values of a config by dotted names. `leaves` are the names whose values are mappings themselves.

    Empty sections are left out.
    """
    if config is None:
        return {}
    if isinstance(config, str | os.PathLike):
        config = _read_yaml(Path(config))
    if not _is_mapping(config):
        raise ConfigError(f"config is {shown(config)}: use a mapping, or the path of a YAML file")
    found: dict[str, Any] = {}
    for name, value in _walk(config, "", leaves, 0):
        if name in found and not _same(found[name], value):
            raise ConfigError(f"{name} is set twice, to {shown(found[name])} and to {shown(value)}: set it once")
        found[name] = value
        if len(found) > _MOST_KEYS:
            raise ConfigError(f"config has more than {_MOST_KEYS} keys: use only keys of verl")
    return found


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of dotted names as a mapping of mappings."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{name} is a key below {section}, which has a value itself: leave out one of them")
        place[last] = value
    return found


def _walk(section: _Mapping, prefix: str, leaves: frozenset[str], level: int) -> Iterator[tuple[str, Any]]:
    if level > _MOST_LEVELS:
        raise ConfigError(f"config is nested more than {_MOST_LEVELS} levels deep, at {prefix[:200]}")
    for key in section.keys():  # noqa: SIM118 - a mapping of another package may iterate over something else
        if not isinstance(key, str) or not key.strip("."):
            raise ConfigError(f"config has the key {shown(key)} in {prefix or 'the top level'}: use str keys")
        name, value = f"{prefix}{key}", section[key]
        if _is_mapping(value) and name not in leaves:
            yield from _walk(value, f"{name}.", leaves, level + 1)
        elif not (isinstance(value, str) and value == _MISSING):
            yield name, value


def _is_mapping(value: Any) -> TypeGuard[_Mapping]:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__"))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _read_yaml(path: Path) -> Any:
    try:
        content = path.expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"config is {str(path)!r}, which cannot be read: {error}") from error
    try:
        found = msgspec.yaml.decode(content)
    except ImportError as error:
        raise MissingExtraError.of("pyyaml", extra="llm", feature="a config in a YAML file") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"config is {str(path)!r}, which is not valid YAML: {error}") from error
    return {} if found is None else found


# -- references --------------------------------------------------------------------------------------


def resolve(name: str, value: Any, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """A value with its references followed, among what was given and then among the defaults."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(value, str) or not (match := _REFERENCE.search(value)):
            return value
        target = _target(name, match, given, defaults)
        if match.span() == (0, len(value)):
            value = target
        elif target is None:
            raise ConfigError(f"{name} is {shown(value)}, but {match.group(2)} has no value: set one of them")
        else:
            value = f"{value[: match.start()]}{target}{value[match.end() :]}"
    raise ConfigError(f"{name} refers to itself through {shown(value)}: use a value")


def _target(name: str, match: re.Match[str], given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """What a reference stands for. One that starts with dots counts from the section of its key, as in OmegaConf."""
    kind, target, otherwise = match.groups()
    if kind == "oc.env:":
        found = os.environ.get(target)
    else:
        dots = len(target) - len(target.lstrip("."))
        above = name.split(".")[:-dots] if dots else []
        target = ".".join([*above, target[dots:]])
        found = given.get(target, defaults.get(target))
    if found is None and otherwise is not None:
        return None if otherwise in ("null", "") else otherwise.strip("'\"")
    if found is None and kind != "oc.select:":
        raise ConfigError(f"{name} is {shown(match.group())}, but {target} has no value: set one of them")
    return found
