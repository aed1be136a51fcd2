"""Arrays and tensors in a safetensors file.

Each is stored under a number, in the type that safetensors has for it, else as its bytes; the tree holds type, shape
and checksum of each. Equal memory is stored once; loading gives copies that share nothing, on the CPU.
"""

import ctypes
import math
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import TensorSpec, safe_open

from ..errors import MissingExtraError, StateError
from .tree import Json, is_tensor

_NUMBERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
NATIVE = frozenset(("bool", *_NUMBERS, "complex64"))
NATIVE_IN_TORCH = NATIVE | {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
_PLAIN_KINDS = "biufcmMSU"


class ArrayWriter:
    """Collects the arrays of a tree; `specs` is what safetensors writes."""

    def __init__(self) -> None:
        self.specs: dict[str, TensorSpec] = {}
        self._alive: list[object] = []  # safetensors gets addresses only
        self._written: dict[tuple[object, ...], dict[str, Json]] = {}

    def put(self, value: Any, place: str) -> Json:
        tag, held = (
            ("$tensor", _held_tensor(value, place)) if is_tensor(value) else ("$array", _held_array(value, place))
        )
        self._alive.append(held)
        key = (tag, *_memory(held), _dtype_name(held), tuple(held.shape))
        if key not in self._written:
            self._written[key] = self._store(held, tag)
        return self._written[key]

    def _store(self, held: Any, tag: str) -> dict[str, Json]:
        name = str(len(self.specs))
        (address, size), dtype = _memory(held), _dtype_name(held)
        is_native = dtype in (NATIVE if tag == "$array" else NATIVE_IN_TORCH)
        self.specs[name] = TensorSpec(
            dtype=dtype if is_native else "uint8",
            shape=tuple(held.shape) if is_native else (size,),
            data_ptr=address,
            data_len=size,
        )
        return {tag: name, "dtype": dtype, "shape": list(held.shape), "crc32": checksum(address, size)}


class ArrayReader:
    """Finds the arrays of a tree in a file, and checks each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "ArrayReader":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def get(self, leaf: dict[str, Json]) -> Any:
        tag = "$tensor" if "$tensor" in leaf else "$array"
        found = self._file("pt" if tag == "$tensor" else "np").get_tensor(leaf[tag])
        held = found.clone() if tag == "$tensor" else found.copy()
        if checksum(*_memory(held)) != leaf["crc32"]:
            raise ValueError(f"the bytes of array {leaf[tag]} are not those that were written")
        is_native = _dtype_name(held) == leaf["dtype"] and list(held.shape) == leaf["shape"]
        return held if is_native else _shaped(held.reshape(-1), leaf)

    def _file(self, framework: str) -> Any:
        if framework not in self._files:
            package = {"pt": "torch", "np": "numpy"}[framework]
            try:
                __import__(package)
            except ImportError:
                raise MissingExtraError.of(package, extra="rl", feature=f"the state in {str(self._path)!r}") from None
            self._files[framework] = self._stack.enter_context(safe_open(self._path, framework=framework))
        return self._files[framework]


def checksum(address: int, size: int) -> int:
    return zlib.crc32((ctypes.c_char * size).from_address(address)) if size else 0


def _held_array(value: Any, place: str) -> Any:
    """The array with its values in one piece, in the order of C."""
    import numpy

    if type(value) is not numpy.ndarray:
        raise StateError(f"{place} is a {type(value).__name__}, not a plain array: give numpy.asarray of it")
    if value.dtype.kind not in _PLAIN_KINDS:
        what = "Python objects" if value.dtype.hasobject else "records"
        raise StateError(f"{place} is an array of {what} ({value.dtype}): give lists, or one array for each field")
    return numpy.require(value, requirements=["C", "A"])


def _held_tensor(value: Any, place: str) -> Any:
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise StateError(f"{place} is a tensor without plain values ({value.layout}, {value.device}): make it dense")
    return value.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _memory(held: Any) -> tuple[int, int]:
    """Address and size in bytes."""
    if is_tensor(held):
        return held.data_ptr(), held.numel() * held.element_size()
    return held.ctypes.data, held.nbytes


def _dtype_name(held: Any) -> str:
    if is_tensor(held):
        return str(held.dtype).removeprefix("torch.")
    is_swapped = held.dtype.kind in "SUmM" or not held.dtype.isnative
    return str(held.dtype.str if is_swapped else held.dtype.name)


def _shaped(raw: Any, leaf: dict[str, Json]) -> Any:
    """What was stored as bytes, as it was."""
    if not is_tensor(raw):
        return _numpy_shaped(raw, leaf)
    import torch

    dtype = getattr(torch, leaf["dtype"])
    return raw.view(dtype).reshape(leaf["shape"]) if raw.numel() else torch.empty(leaf["shape"], dtype=dtype)


def _numpy_shaped(raw: Any, leaf: dict[str, Json]) -> Any:
    import numpy

    dtype = numpy.dtype(leaf["dtype"])
    if not math.prod(leaf["shape"]) or not dtype.itemsize:
        return numpy.zeros(leaf["shape"], dtype)
    return raw.view(dtype).reshape(leaf["shape"])
