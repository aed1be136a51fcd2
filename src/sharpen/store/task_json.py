"""Tasks and metadata as JSON that gives back an equal value.

JSON has no tuples, dates and times. In a task each of them is an object with one key, such as
`{"sharpen:date": "2026-01-31"}`. Everything else stands for itself, and a dict that looks like such an object is
wrapped in `{"sharpen:dict": …}`. Types are matched exactly, and no class is looked up by name: nothing that is read
from a store or a network decides which code runs. Metadata has no tags.
"""

import dataclasses
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timezone
from typing import Any

import msgspec

from ..errors import TaskError

TASK = "task"
_PREFIX = "sharpen:"
_TUPLE, _DICT = f"{_PREFIX}tuple", f"{_PREFIX}dict"
_LEAVES: dict[type, str] = {date: f"{_PREFIX}date", datetime: f"{_PREFIX}datetime", time: f"{_PREFIX}time"}
_READERS: dict[str, Callable[[str], Any]] = {tag: kind.fromisoformat for kind, tag in _LEAVES.items()}  # type: ignore[attr-defined]
_TAGS = {_TUPLE, _DICT, *_READERS}
_MOST_DEPTH = 200
_ERRORS = (TypeError, ValueError, RecursionError, OverflowError)
_decode = msgspec.json.Decoder().decode


def encode_equal(value: Any, what: str) -> bytes:
    """Return the JSON of a value. `what` is `TASK`, or the name of metadata.

    Raises:
        TaskError: if the value would not come back equal. It names the first part that would not.
    """
    return _encode(value, what, has_tags=what == TASK)


def check_task(task: Any, name: str) -> None:
    """Refuse a task that a store could not keep; `name` says where it comes from."""
    _encode(task, name, has_tags=True)


def decode_equal(data: str | bytes, what: str) -> Any:
    """Return the value that `encode_equal` was given."""
    value = _decode(data)
    return from_tagged(value) if what == TASK and has_tag(data) else value


def has_tag(data: str | bytes) -> bool:
    """Whether JSON may hold a tag; most does not, and need not be searched."""
    return f'"{_PREFIX}' in data if isinstance(data, str) else f'"{_PREFIX}'.encode() in data


def to_tagged(value: Any) -> Any:
    """Return the value with tags in place of tuples, dates and times. Other objects stay as they are."""
    kind = type(value)
    if kind in _LEAVES:
        is_kept = kind is date or value.tzinfo is None or type(value.tzinfo) is timezone
        return {_LEAVES[kind]: value.isoformat()} if is_kept else value
    if kind is tuple:
        return {_TUPLE: [to_tagged(item) for item in value]}
    if isinstance(value, list):
        return [to_tagged(item) for item in value]
    if isinstance(value, dict):
        items = {key: to_tagged(item) for key, item in value.items()}
        return {_DICT: items} if _tag_of(items) else items
    return value


def from_tagged(value: Any) -> Any:
    """Return what `to_tagged` was given. An object with a tag and a value that is not of its kind stays as it is."""
    if isinstance(value, list):
        return [from_tagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = _tag_of(value)
    inner = value[tag] if tag else None
    if tag == _TUPLE and isinstance(inner, list):
        return tuple(from_tagged(item) for item in inner)
    if tag == _DICT and isinstance(inner, dict):
        value = inner
    elif tag in _READERS and isinstance(inner, str):
        try:
            return _READERS[tag](inner)
        except ValueError:
            return value
    return {key: from_tagged(item) for key, item in value.items()}


def _tag_of(value: dict[Any, Any]) -> str:
    key = next(iter(value)) if len(value) == 1 else ""
    return key if key in _TAGS else ""


def _encode(value: Any, name: str, *, has_tags: bool) -> bytes:
    try:
        encoded = msgspec.json.encode(value)
        if _decode(encoded) == value and not (has_tags and has_tag(encoded)):
            return encoded
    except _ERRORS:
        pass  # tried again with tags, or part by part to find the one
    try:
        if has_tags:
            encoded = msgspec.json.encode(to_tagged(value))
            if from_tagged(_decode(encoded)) == value:
                return encoded
    except _ERRORS:
        pass
    raise _task_error(value, name, has_tags=has_tags)


# -- what cannot be kept -----------------------------------------------------------------------------


def _task_error(value: Any, name: str, *, has_tags: bool) -> TaskError:
    place, part = next(_lost_parts(value, name, has_tags), (name, value))
    kind = type(part)
    title = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return TaskError(
        f"{place} is {_short(part)}, of type {title}, which cannot be written as JSON and read back unchanged. "
        f"{_way_out(part, has_tags)}, or use the memory store with the shared-memory strategy, which pass objects "
        'unchanged: Trainer(store="memory", strategy="shm")'
    )


def _way_out(part: Any, has_tags: bool) -> str:
    name = type(part).__name__
    if hasattr(part, "model_dump"):
        return f'Pass its model_dump(mode="json") and call {name}.model_validate(task) in the agent'
    if isinstance(part, msgspec.Struct):
        return f"Pass msgspec.to_builtins(value) and call msgspec.convert(task, {name}) in the agent"
    if dataclasses.is_dataclass(part):
        return f"Pass dataclasses.asdict(value) and call {name}(**task) in the agent"
    if hasattr(part, "_asdict"):
        return f"Pass its _asdict() and call {name}(**task) in the agent"
    if hasattr(part, "to_pydatetime"):
        return "Pass its to_pydatetime()"
    if hasattr(part, "tolist"):
        return "Pass its tolist()"
    if has_tags and isinstance(part, datetime):
        return "Pass its astimezone(datetime.timezone.utc)"
    kinds = "str, int, finite float, bool, None" + (", tuples, dates and times" if has_tags else "")
    return f"Use dicts with str keys, lists, {kinds} (dataclasses.asdict converts a dataclass)"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _lost_parts(value: Any, place: str, has_tags: bool, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each part that would not come back equal."""
    if depth > _MOST_DEPTH:
        yield place, value
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                yield f"the key {key!r} of {place}", key
            yield from _lost_parts(item, f"{place}[{key!r}]", has_tags, depth + 1)
    elif type(value) is list or (has_tags and type(value) is tuple):
        for index, item in enumerate(value):
            yield from _lost_parts(item, f"{place}[{index}]", has_tags, depth + 1)
    else:
        try:
            kept = to_tagged(value) if has_tags else value
            again = _decode(msgspec.json.encode(kept))
            is_kept = (from_tagged(again) if has_tags else again) == value
        except _ERRORS:
            is_kept = False
        if not is_kept:
            yield place, value
