"""What a caller gave: a mapping of mappings, of dotted names, or a YAML file, as one flat mapping of dotted names.

Values are read as people write them, and each kind says in an error what it takes. References such as
`${data.max_prompt_length}`, which configs of Hydra hold, are followed among what was given.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import msgspec

from ...errors import ConfigError, MissingExtraError

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


# -- values as people write them ----------------------------------------------------------------------


_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: in words that follow "use", and the reader that gives it or raises ValueError."""

    words: str
    read: Callable[[Any], Any]


def read_value(name: str, kind: Kind, value: Any) -> Any:
    """The value of a key; a ConfigError names the key and what to use."""
    try:
        return kind.read(value)
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{name} is {shown(value)}: use {kind.words}") from error


def shown(value: Any) -> str:
    """A value as it is written in a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; a list of lists without end
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


# -- numbers -----------------------------------------------------------------------------------------


def whole(least: int, most: int | None = None, *, note: str = "") -> Kind:
    words = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"

    def read(value: Any) -> int:
        found = _as_whole(value)
        if found < least or (most is not None and found > most):
            raise ValueError(f"{found} is out of range")
        return found

    return Kind(words + (f" ({note})" if note else ""), read)


def number(
    *, above: float | None = None, least: float | None = None, most: float | None = None, below: float | None = None
) -> Kind:
    bounds = {"above {}": above, "{} or more": least, "{} or less": most, "below {}": below}
    words = " and ".join(text.format(f"{bound:g}") for text, bound in bounds.items() if bound is not None)

    def read(value: Any) -> float:
        found = _as_number(value)
        is_low = (above is not None and found <= above) or (least is not None and found < least)
        if is_low or (most is not None and found > most) or (below is not None and found >= below):
            raise ValueError(f"{found} is out of range")
        return found

    return Kind(f"a number, {words}", read)


def _as_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise TypeError("not a number")
    found = float(value)
    if not math.isfinite(found):
        raise ValueError("not finite")
    return found


def _as_whole(value: Any) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass  # it may be written as 1e3, which is a number below
    found = _as_number(value)
    if found != int(found):
        raise ValueError("not whole")
    return int(found)


def _as_betas(value: Any) -> list[float]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError("not a pair")
    found = [_as_number(each) for each in value]
    if len(found) != 2 or not all(0 <= each < 1 for each in found):
        raise ValueError("not two fractions")
    return found


BETAS = Kind("two numbers, 0 or more and below 1, such as [0.9, 0.999]", _as_betas)
SEED = whole(0, 2**32 - 1)
FREQUENCY = Kind("a number of steps, or -1 for the end only", lambda value: whole(-1).read(value) or -1)


# -- words -------------------------------------------------------------------------------------------


def _as_truth(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise TypeError("neither True nor False")
    return value


def _as_text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError("not a str")
    found = os.fspath(value)
    if not isinstance(found, str) or not found.strip() or "\0" in found:
        raise ValueError("empty")
    return found


def _as_path(value: Any) -> str:
    found = _as_text(value)
    return os.path.expanduser(found) if found.startswith("~") else found


def _as_texts(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError("not a list")
    return [_as_text(each) for each in value]


def choice(*names: str, others: Mapping[str, str] | None = None) -> Kind:
    """One of `names`; `others` are further spellings of them."""
    spellings = {name: name for name in names} | dict(others or {})
    also = f" (or verl's {', '.join(others)})" if others else ""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in spellings:
            raise ValueError("no such name")
        return spellings[value]

    return Kind(f"{', '.join(names)}{also}", read)


def truth_or(name: str) -> Kind:
    """True, False, or a word."""

    def read(value: Any) -> bool | str:
        return name if value == name and isinstance(value, str) else _as_truth(value)

    return Kind(f"True, False or {name}", read)


def one_or_more(words: str, *, keeps_one: bool) -> Kind:
    """A name, or a list of names; `keeps_one` leaves a single name as it is."""

    def read(value: Any) -> str | list[str]:
        if isinstance(value, str):
            return _as_text(value) if keeps_one else [_as_text(value)]
        found = _as_texts(value)
        if keeps_one and not found:
            raise ValueError("empty")
        return found

    return Kind(words, read)


def _as_trainable(value: Any) -> str:
    if value in ("all", "lora"):
        return str(value)
    if not isinstance(value, str) or not value.startswith("top:"):
        raise ValueError("no such part")
    return f"top:{whole(1).read(value.removeprefix('top:'))}"


def _as_json(value: Any) -> dict[str, Any]:
    if not hasattr(value, "keys"):
        raise TypeError("no mapping")
    # Through JSON and back: what cannot travel there is refused, and nobody else holds the copy.
    found = msgspec.json.decode(msgspec.json.encode(dict(value)))
    if not isinstance(found, dict):
        raise TypeError("no mapping")
    return found


TRUTH = Kind("True or False", _as_truth)
TEXT = Kind("a str", _as_text)
PATH = Kind("a path", _as_path)
MODEL = Kind("a name on the Hugging Face hub, a folder, or a .gguf file", _as_path)
MODULES = one_or_more("all-linear, or module names such as ['q_proj', 'v_proj']", keeps_one=True)
TRAINABLE = Kind("all, lora, or top:N for the last N layers", _as_trainable)
MAPPING = Kind("a mapping of JSON values", _as_json)
