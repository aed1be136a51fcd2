"""`key=value` over a configuration: `algorithm.learning_rate=1e-4`, `callbacks.0.patience=3`, values read as YAML."""

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError
from .document import Document
from .sources import Path_, Source, dotted


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Write each override into the document. Overriding a key twice is an error."""
    seen: dict[Path_, str] = {}
    for text in overrides:
        keys, value = _parse(text)
        given = Document(value, f"override {text.partition('=')[0]!r}")
        path = _places(document.value, keys, text)
        if path in seen:
            raise ConfigError(f"{dotted(path)} is overridden twice, by {seen[path]!r} and {text!r}: remove one of them")
        seen[path] = text
        _put(document, path, given, Source("override", f"override {dotted(path)}"))


def _parse(text: str) -> tuple[list[str], str]:
    name, sign, value = text.partition("=")
    keys = name.strip().split(".")
    if not sign or not all(keys):
        raise ConfigError(f"{text!r} is not an override: write key=value, such as n_runners=4 or algorithm.type=APO")
    return keys, value


def _places(value: Any, keys: list[str], text: str) -> Path_:
    """Return the path of the keys, with numbers for list items. New keys may be set; a list can grow by one item at
    its end."""
    path: list[str | int] = []
    for position, key in enumerate(keys):
        if isinstance(value, list):
            number = int(key) if key.isdecimal() else -1
            if not 0 <= number <= len(value):
                raise ConfigError(
                    f"{text!r}: {dotted(path)} is a list of {len(value)} items: use an index from 0 to {len(value)}, "
                    f"not {key!r}"
                )
            path.append(number)
            value = value[number] if number < len(value) else {}
        elif isinstance(value, dict):
            path.append(key)
            value = value.get(key, {})
        elif isinstance(value, str) and position and keys[position - 1] != "type":
            # A spec that is only a name becomes a dict with arguments.
            path.append(key)
            value = {}
        elif value is None:
            path.append(key)
            value = {}
        else:
            raise ConfigError(f"{text!r}: {dotted(path)} is {value!r}, which has no keys")
    return tuple(path)


def _put(document: Document, path: Path_, given: Document, source: Source) -> None:
    place: Any = document.value
    for depth, key in enumerate(path[:-1]):
        inner = place[key] if _has(place, key) else None
        if not isinstance(inner, dict | list):
            # `algorithm: APO` with `algorithm.beam_width=2` is an APO with that width.
            name = "file" if str(path[0]).endswith(("_dataset", "_states")) else "type"
            here = path[: depth + 1]
            if inner is not None:
                document.sources[(*here, name)] = document.sources.get(here, source)
            inner = {} if inner is None else {name: inner}
            document.sources.setdefault(here, source)
            _set(place, key, inner)
        place = inner
    for old in [each for each in document.sources if each[: len(path)] == path]:
        del document.sources[old]
    document.plain = {each for each in document.plain if each[: len(path)] != path}
    _set(place, path[-1], given.value)
    document.sources |= {(*path, *inner): source for inner in given.sources} or {path: source}
    document.sources.setdefault(path, source)
    document.plain |= {(*path, *inner) for inner in given.plain}


def _has(place: Any, key: str | int) -> bool:
    return key < len(place) if isinstance(key, int) and isinstance(place, list) else key in place


def _set(place: Any, key: str | int, value: Any) -> None:
    if isinstance(place, list) and key == len(place):
        place.append(value)
    else:
        place[key] = value
