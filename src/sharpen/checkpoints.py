"""Checkpoints: a tree of plain values and arrays in one file.

    save_state("run/012.pth", {"iteration": 12, "weights": tensor, "rng": array})
    load_state("run/012.pth")["iteration"]

A tree consists of dicts, lists, tuples and these leaves: None, bool, int, float, complex, str, bytes, bytearray, NumPy
scalars, NumPy arrays and torch tensors. It comes back exactly as it was, with arrays and tensors as separate copies on
the CPU; whatever could not is refused. The file is in the format of safetensors, with the tree as
JSON in its metadata, whatever its name ends in. It is never pickled. It is written under another name, synced and
renamed, so a crash leaves the old file or the new one; checksums tell a damaged file from a good one.

A checkpoint of several files is a folder: write it with `files.replacing_folder`.

In the JSON, values of JSON are written as they are, and everything else is an object with one key that begins with `$`.
"""

import base64
import ctypes
import json
import math
import os
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from .checks import needs_extra
from .errors import StateError, StateFileError
from .files import replacing

Json: TypeAlias = Any

FORMAT, VERSION = "sharpen-state", "1"
# safetensors reads no header above 100 MB; quotes in it are written twice as long, and arrays are listed a second time.
MAX_TREE_BYTES = 40_000_000
_SMALL = 1 << 63
_NUMBERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
_NATIVE = frozenset(("bool", *_NUMBERS, "complex64"))
_NATIVE_IN_TORCH = _NATIVE | {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}


def save_state(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a tree to a file.

    Raises:
        StateError: The tree holds something that would not come back as it is; the error names its place.
        StateFileError: The file cannot be written.
    """
    writer = _TreeWriter()
    try:
        text = json.dumps(writer.encode(tree, "state"), separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise StateError("the state is nested too deeply: does it contain itself?") from None
    if len(text) > MAX_TREE_BYTES:
        raise StateError(f"the state holds {len(text) / 1e6:.0f} MB of plain values: keep long lists as NumPy arrays")
    metadata = {"format": FORMAT, "version": VERSION, "crc32": str(zlib.crc32(text.encode())), "tree": text}
    with replacing(Path(path)) as temporary:
        try:
            serialize_file(writer.specs, temporary, metadata=metadata)
        except SafetensorError as error:
            raise StateFileError(f"cannot write to {str(temporary.parent)!r}: {error}") from error


def load_state(path: str | os.PathLike[str]) -> Any:
    """Return the tree that was saved.

    Raises:
        StateFileError: The file is missing, damaged, or not a checkpoint.
    """
    source = Path(path).resolve()  # a link to the latest may move while it is read
    if source.is_dir():
        example = str(Path(path) / "latest.pth")
        raise StateFileError(f"{str(path)!r} is a folder: pass a checkpoint file in it, such as {example!r}")
    if not source.is_file():
        raise StateFileError(f"there is no checkpoint at {str(path)!r}")
    try:
        tree = json.loads(_read_tree(source))
        with ExitStack() as stack:
            return _TreeReader(source, stack).decode(tree)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StateFileError(f"cannot read {str(path)!r}: {_cause(source, error)}") from error


def is_state_file(path: Path) -> bool:
    """Return True for a file that `save_state` wrote; False for another safetensors file.

    Raises:
        ValueError: It is not a safetensors file at all.
    """
    return _read_metadata(path).get("format") == FORMAT


def copy_tree(tree: Any) -> Any:
    """Return a copy that later changes of the original do not reach; arrays and tensors stay on their device."""
    if isinstance(tree, dict):
        items = ((key, copy_tree(value)) for key, value in tree.items())
        return OrderedDict(items) if isinstance(tree, OrderedDict) else dict(items)
    if isinstance(tree, list):
        return [copy_tree(value) for value in tree]
    if type(tree) is tuple:
        return tuple(copy_tree(value) for value in tree)
    if _is_tensor(tree):
        return tree.detach().clone()
    return tree.copy() if _is_array(tree) or isinstance(tree, bytearray) else tree


# -- the tree ----------------------------------------------------------------------------------------


class _TreeWriter:
    """Encodes a tree as JSON and collects its arrays: `specs` is what safetensors writes.

    Types are matched exactly, as a subclass would come back as its base. Equal memory is stored once.
    """

    def __init__(self) -> None:
        self.specs: dict[str, TensorSpec] = {}
        self._alive: list[object] = []  # safetensors only gets addresses
        self._written: dict[tuple[object, ...], Json] = {}

    def encode(self, value: Any, place: str) -> Json:
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            # Hexadecimal has no limit of digits, and other readers of JSON keep 64 bits at most.
            return value if -_SMALL <= value < _SMALL else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is list or kind is tuple:
            items = [self.encode(each, f"{place}[{index}]") for index, each in enumerate(value)]
            return items if kind is list else {"$tuple": items}
        if kind is dict or kind is OrderedDict:
            return self._dict(value, place)
        if kind is bytes or kind is bytearray:
            return {f"${kind.__name__}": _to_base64(value)}
        if kind is complex:
            return {"$complex": [repr(value.real), repr(value.imag)]}
        if _is_tensor(value):
            return self._array("$tensor", _dense_tensor(value, place))
        if _is_array(value):
            return self._array("$array", _plain_array(value, place))
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind not in "OV":
            return {"$scalar": [value.dtype.str, _to_base64(value.tobytes())]}
        raise StateError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which a state cannot hold: use dicts, lists, tuples, "
            "plain values, NumPy arrays or torch tensors"
        )

    def _dict(self, value: dict[Any, Any], place: str) -> Json:
        if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(each, f"{place}[{key!r}]") for key, each in value.items()}
        pairs = [
            [self.encode(key, f"a key of {place}"), self.encode(each, f"{place}[{key!r}]")]
            for key, each in value.items()
        ]
        return {"$ordered_dict" if type(value) is OrderedDict else "$dict": pairs}

    def _array(self, tag: str, held: Any) -> Json:
        """Store an array in the type that safetensors has for it, otherwise as bytes."""
        (address, size), dtype, shape = _memory(held), _dtype_name(held), tuple(held.shape)
        key = (tag, address, size, dtype, shape)
        if key not in self._written:
            self._alive.append(held)
            name = str(len(self.specs))
            is_native = dtype in (_NATIVE if tag == "$array" else _NATIVE_IN_TORCH)
            self.specs[name] = TensorSpec(
                dtype=dtype if is_native else "uint8",
                shape=shape if is_native else (size,),
                data_ptr=address,
                data_len=size,
            )
            leaf = {tag: name, "dtype": dtype, "shape": list(shape), "crc32": _checksum(address, size)}
            self._written[key] = leaf
        return self._written[key]


class _TreeReader:
    """Decodes a tree, and reads and checks its arrays; NumPy and torch are imported only for a tree with arrays."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._files: dict[str, Any] = {}

    def decode(self, value: Json) -> Any:
        if isinstance(value, list):
            return [self.decode(each) for each in value]
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), "")
        if not tag.startswith("$"):
            return {key: self.decode(each) for key, each in value.items()}
        if tag in ("$array", "$tensor"):
            return self._array(tag, value)
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](self.decode(value[tag]))
        return _LEAVES[tag](value[tag])

    def _array(self, tag: str, leaf: dict[str, Json]) -> Any:
        found = self._file("torch" if tag == "$tensor" else "numpy").get_tensor(leaf[tag])
        held = found.clone() if tag == "$tensor" else found.copy()
        if _checksum(*_memory(held)) != leaf["crc32"]:
            raise ValueError(f"the bytes of array {leaf[tag]} are not those that were written")
        if _dtype_name(held) == leaf["dtype"] and list(held.shape) == leaf["shape"]:
            return held
        return _reshaped(held.reshape(-1), leaf["dtype"], leaf["shape"])

    def _file(self, package: str) -> Any:
        if package not in self._files:
            with needs_extra(package, extra="rl", feature=f"the checkpoint {str(self._path)!r}"):
                __import__(package)
            framework = {"torch": "pt", "numpy": "np"}[package]
            self._files[package] = self._stack.enter_context(safe_open(self._path, framework=framework))
        return self._files[package]


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


# -- arrays and tensors ------------------------------------------------------------------------------


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")  # if it is not imported, there are none of its arrays
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _plain_array(value: Any, place: str) -> Any:
    """Return the array with its values in one piece, in the order of C."""
    import numpy

    if type(value) is not numpy.ndarray:
        raise StateError(f"{place} is a {type(value).__name__}, not a plain array: pass numpy.asarray of it")
    if value.dtype.kind not in "biufcmMSU":
        what = "Python objects" if value.dtype.hasobject else "records"
        raise StateError(f"{place} is an array of {what} ({value.dtype}): use lists, or one array for each field")
    return numpy.require(value, requirements=["C", "A"])


def _dense_tensor(value: Any, place: str) -> Any:
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise StateError(f"{place} is a tensor without plain values ({value.layout}, {value.device}): make it dense")
    return value.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _memory(held: Any) -> tuple[int, int]:
    """Return the address and the size in bytes."""
    if _is_tensor(held):
        return held.data_ptr(), held.numel() * held.element_size()
    return held.ctypes.data, held.nbytes


def _checksum(address: int, size: int) -> int:
    return zlib.crc32((ctypes.c_char * size).from_address(address)) if size else 0


def _dtype_name(held: Any) -> str:
    if _is_tensor(held):
        return str(held.dtype).removeprefix("torch.")
    has_no_name = held.dtype.kind in "SUmM" or not held.dtype.isnative
    return str(held.dtype.str if has_no_name else held.dtype.name)


def _reshaped(raw: Any, dtype_name: str, shape: list[int]) -> Any:
    """Return what was stored as bytes in its own type and shape."""
    if _is_tensor(raw):
        import torch

        dtype = getattr(torch, dtype_name)
        return raw.view(dtype).reshape(shape) if raw.numel() else torch.empty(shape, dtype=dtype)
    import numpy

    numpy_dtype = numpy.dtype(dtype_name)
    if not math.prod(shape) or not numpy_dtype.itemsize:
        return numpy.zeros(shape, numpy_dtype)
    return raw.view(numpy_dtype).reshape(shape)


# -- the file ----------------------------------------------------------------------------------------


def _read_tree(path: Path) -> str:
    metadata = _read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise ValueError("it is a safetensors file, but not a checkpoint of Sharpen")
    if metadata["version"] != VERSION:
        raise ValueError(f"it has version {metadata['version']}, which needs a newer version of Sharpen")
    if str(zlib.crc32(metadata["tree"].encode())) != metadata["crc32"]:
        raise ValueError("its values are not those that were written")
    return str(metadata["tree"])


def _read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata alone: safetensors would import NumPy to open the file, which not every tree needs."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > os.path.getsize(path):
            raise ValueError("its header is cut off")
        header = json.loads(file.read(size))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata


def _cause(path: Path, error: Exception) -> str:
    with open(path, "rb") as file:
        head = file.read(9)
    if not head:
        return "it is empty"
    if head[8:] != b"{" and head.startswith((b"PK", b"\x80")):
        return "it is a pickle, as torch.save writes it, and unpickling a file could run any code in it"
    return f"it is damaged or not a checkpoint ({error})"
