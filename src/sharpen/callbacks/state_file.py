"""State files: a tree of values and arrays in one file.

The file is in the format of safetensors, with the tree as JSON in its metadata; its name may end in anything.
Nothing is ever unpickled. A file is there whole or not at all: it is written beside its place, synced and renamed.
Checksums tell a damaged file from a good one.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, serialize_file

from ..errors import StateError, StateFileError
from ..files import replacing
from .arrays import ArrayReader, ArrayWriter
from .tree import decode, encode

FORMAT, VERSION = "sharpen-state", "1"
# safetensors reads no header above 100 MB; quotes in it are written twice as long, and arrays are listed a second time.
MAX_TREE_BYTES = 40_000_000


def save_state(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a tree. A crash at any moment leaves the old file or the new one."""
    target, arrays = Path(path), ArrayWriter()
    text = json.dumps(encode(tree, put_array=arrays.put), separators=(",", ":"), allow_nan=False)
    if len(text) > MAX_TREE_BYTES:
        raise StateError(f"the state holds {len(text) / 1e6:.0f} MB of plain values: keep long lists as NumPy arrays")
    metadata = {"format": FORMAT, "version": VERSION, "crc32": str(zlib.crc32(text.encode())), "tree": text}
    with replacing(target) as temporary:
        _write(temporary, arrays, metadata)


def load_state(path: str | os.PathLike[str]) -> Any:
    """The tree that was saved. Tensors come back on the CPU."""
    source = Path(path).resolve()  # a link to the latest may move while it is read
    if source.is_dir():
        raise StateFileError(
            f"{str(path)!r} is a folder, no state file: give one in it, such as {str(Path(path) / 'latest.pth')!r}"
        )
    if not source.is_file():
        raise StateFileError(f"there is no state file at {str(path)!r}")
    try:
        text = _read_tree(source)
        with ArrayReader(source) as arrays:
            return decode(json.loads(text), get_array=arrays.get)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StateFileError(f"{str(path)!r} cannot be read: {_cause(source, error)}") from error


def _write(path: Path, arrays: ArrayWriter, metadata: dict[str, str]) -> None:
    try:
        serialize_file(arrays.specs, path, metadata=metadata)
    except SafetensorError as error:
        raise StateFileError(f"{str(path.parent)!r} cannot be written to: {error}") from error


def _read_tree(path: Path) -> str:
    metadata = _read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise ValueError("it is a safetensors file, but no state that was saved here")
    if metadata["version"] != VERSION:
        raise ValueError(f"it is of version {metadata['version']}, which a newer Sharpen reads")
    if str(zlib.crc32(metadata["tree"].encode())) != metadata["crc32"]:
        raise ValueError("its values are not those that were written")
    text: str = metadata["tree"]
    return text


def _read_metadata(path: Path) -> dict[str, str]:
    """The metadata alone: safetensors would import NumPy to open the file, which not every tree needs."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > os.path.getsize(path):
            raise ValueError("it ends in its header")
        header = json.loads(file.read(size))
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata


def _cause(path: Path, error: Exception) -> str:
    """What is wrong, in words for somebody who gave this file."""
    with open(path, "rb") as file:
        head = file.read(9)
    is_safetensors = head[8:] == b"{"
    if not is_safetensors and head.startswith((b"PK", b"\x80")):
        return "it is a pickle (torch.save writes one), and unpickling a file runs whatever is in it"
    if not head:
        return "it is empty"
    return f"it is damaged or no state file ({error})"
