"""State trees as JSON, without loss.

A tree is made of dicts, lists, tuples and these leaves: None, bool, int, float, complex, str, bytes, bytearray, NumPy
scalars, NumPy arrays, torch tensors. What JSON knows stands for itself; everything else is an object with one key that
begins with `$`. Types are matched exactly: a subclass would come back as its base, so it is refused.
"""

import base64
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ..errors import StateError

Json: TypeAlias = Any
_SMALL = 1 << 63


def encode(tree: object, *, put_array: Callable[[Any, str], Json]) -> Json:
    """The tree as JSON. `put_array` keeps an array and returns the object that stands for it."""
    try:
        return _Encoder(put_array).encode(tree, "state")
    except RecursionError:
        raise StateError("the state is nested too deeply: does it contain itself?") from None


def decode(value: Json, *, get_array: Callable[[dict[str, Json]], Any]) -> Any:
    """The tree that was encoded. `get_array` finds what `put_array` kept."""
    if isinstance(value, list):
        return [decode(each, get_array=get_array) for each in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: decode(each, get_array=get_array) for key, each in value.items()}
    if tag in ("$array", "$tensor"):
        return get_array(value)
    inner = value[tag]
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](decode(inner, get_array=get_array))
    return _LEAVES[tag](inner)


def copy_tree(tree: Any) -> Any:
    """A copy that later changes of the original do not reach. Arrays and tensors are copied where they are."""
    if isinstance(tree, dict):
        return _like(tree, ((key, copy_tree(value)) for key, value in tree.items()))
    if isinstance(tree, list):
        return [copy_tree(value) for value in tree]
    if type(tree) is tuple:
        return tuple(copy_tree(value) for value in tree)
    if is_tensor(tree):
        return tree.detach().clone()
    if is_array(tree) or isinstance(tree, bytearray):
        return tree.copy()
    return tree


def is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")  # where it is not imported, nothing can be one of its arrays
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _like(tree: dict[Any, Any], items: Iterator[tuple[Any, Any]]) -> dict[Any, Any]:
    return OrderedDict(items) if isinstance(tree, OrderedDict) else dict(items)


class _Encoder:
    """Knows where in the tree it is, so that an error can name the place."""

    def __init__(self, put_array: Callable[[Any, str], Json]) -> None:
        self._put_array = put_array

    def encode(self, value: Any, place: str) -> Json:
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            # Hexadecimal has no limit of digits, and other readers of JSON keep 64 bits at most.
            return value if -_SMALL <= value < _SMALL else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is dict or kind is OrderedDict:
            return self._dict(value, place)
        if kind is list:
            return [self.encode(each, f"{place}[{index}]") for index, each in enumerate(value)]
        if kind is tuple:
            return {"$tuple": [self.encode(each, f"{place}[{index}]") for index, each in enumerate(value)]}
        if is_array(value) or is_tensor(value):
            return self._put_array(value, place)
        return self._rare(value, place)

    def _dict(self, value: dict[Any, Any], place: str) -> Json:
        is_plain = type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value)
        if is_plain:
            return {key: self.encode(each, f"{place}[{key!r}]") for key, each in value.items()}
        pairs = [
            [self.encode(key, f"a key of {place}"), self.encode(each, f"{place}[{key!r}]")]
            for key, each in value.items()
        ]
        return {"$ordered_dict" if type(value) is OrderedDict else "$dict": pairs}

    def _rare(self, value: Any, place: str) -> Json:
        kind = type(value)
        if kind is bytes:
            return {"$bytes": _to_base64(value)}
        if kind is bytearray:
            return {"$bytearray": _to_base64(value)}
        if kind is complex:
            return {"$complex": [repr(value.real), repr(value.imag)]}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind not in "OV":
            return {"$scalar": [value.dtype.str, _to_base64(value.tobytes())]}
        raise StateError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which a state cannot hold: use dicts, lists, tuples, "
            "plain values, NumPy arrays or torch tensors"
        )


def _to_base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def _to_scalar(inner: list[str]) -> Any:
    import numpy

    dtype, data = numpy.dtype(inner[0]), base64.b64decode(inner[1])
    # An empty string is of a type without size.
    return numpy.frombuffer(data, dtype)[0] if dtype.itemsize else numpy.zeros(1, dtype)[0]


_CONTAINERS: dict[str, Callable[[Any], Any]] = {"$tuple": tuple, "$dict": dict, "$ordered_dict": OrderedDict}
_LEAVES: dict[str, Callable[[Any], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$complex": lambda parts: complex(float(parts[0]), float(parts[1])),
    "$bytes": base64.b64decode,
    "$bytearray": lambda text: bytearray(base64.b64decode(text)),
    "$scalar": _to_scalar,
}
