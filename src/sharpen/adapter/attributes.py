"""Reading attributes that hold more than one value: JSON in a string, or one attribute for each leaf of a tree."""

import json
import logging
from typing import Any

from ..types import Attributes, Span

_log = logging.getLogger(__name__)
# More than any recorder writes; a key made only of dots must not end in a tree without bottom.
_MAX_DEPTH = 8


def read_json(span: Span, key: str) -> Any:
    """The value of an attribute, parsed where it is JSON; None where it is missing or cut off."""
    value = span.attributes.get(key)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        # A limit on the length of attributes cuts JSON in its middle: one lost call, not a lost run.
        _log.warning(
            "the attribute %s of span %s (%r) is no JSON and is left out: %s", key, span.span_id, span.name, error
        )
        return None


def read_flat(attributes: Attributes, prefix: str) -> Any:
    """The list that was written as `prefix.0.name`, `prefix.0.items.0.name`, …; numbers are its order."""
    tree: dict[str, Any] = {}
    start = f"{prefix}."
    for key, value in attributes.items():
        if key.startswith(start):
            _put(tree, key.removeprefix(start).split(".", _MAX_DEPTH), value)
    # Beside the list there may be other things, such as `gen_ai.prompt.prompt_filter_results`.
    numbered = {key: value for key, value in tree.items() if key.isdecimal()}
    return _with_lists(numbered) if numbered else []


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        below = tree.get(part)
        if not isinstance(below, dict):
            below = tree[part] = {}
        tree = below
    if not isinstance(tree.get(path[-1]), dict):
        tree[path[-1]] = value


def _with_lists(value: Any) -> Any:
    """Dicts whose keys are all numbers are lists."""
    if not isinstance(value, dict):
        return value
    if value and all(map(str.isdecimal, value)):
        return [_with_lists(value[key]) for key in sorted(value, key=int)]
    return {key: _with_lists(below) if isinstance(below, dict) else below for key, below in value.items()}
