"""The code of the program on other nodes: the modules that lie beside it, with all that they import.

What is installed is expected on every node; what is not is found by its import statements, packed once, and unpacked
by each process into a folder of its own.
"""

import ast
import contextlib
import io
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ...errors import TransportError
from ..transport import find_module

MAX_BYTES = 64 * 2**20
_OWN = __name__.partition(".")[0]
_LEFT_OUT = {"__pycache__", "node_modules"}


def pack_modules(modules: Iterable[str]) -> bytes:
    """Pack these modules, the ones that the program itself imports, and theirs; empty where all are installed."""
    packed: dict[str, Path] = {}
    seen = {"__main__", _OWN}
    waiting = [*modules, *_imports_of(_program())]
    while waiting:
        name = waiting.pop().partition(".")[0]
        if name not in seen:
            seen.add(name)
            found = dict(_files_of(name))
            packed |= found
            waiting += _imports_of(file for file in found.values() if file.suffix == ".py")
    return _zip(packed) if packed else b""


def unpack_modules(packed: bytes) -> Path:
    """Return the folder that they were unpacked into; who is done with it removes it."""
    folder = Path(tempfile.mkdtemp(prefix="sharpen-modules-"))
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(folder)
    return folder


def _program() -> list[Path]:
    file = getattr(sys.modules["__main__"], "__file__", None)
    return [] if file is None or not file.endswith(".py") else [Path(file)]


def _imports_of(files: Iterable[Path]) -> Iterator[str]:
    """Yield the modules that these files import, also inside functions; what is not Python imports nothing."""
    for file in files:
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    yield from (each.name for each in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield node.module


def _files_of(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a module that is not installed, by their places in the archive."""
    spec = None if name in sys.stdlib_module_names else find_module(name)
    if spec is None:
        return
    origin = [spec.origin] if spec.has_location and spec.origin else []
    for root in map(Path, origin if spec.submodule_search_locations is None else spec.submodule_search_locations):
        if any(root.resolve().is_relative_to(folder) for folder in _installed()):
            continue
        if root.is_file():
            yield root.name, root
        for file in sorted(root.rglob("*")) if root.is_dir() else ():
            inside = file.relative_to(root)
            if file.is_file() and not any(part in _LEFT_OUT or part.startswith(".") for part in inside.parts):
                yield f"{name}/{inside.as_posix()}", file


@cache
def _installed() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _zip(files: dict[str, Path]) -> bytes:
    size = sum(file.stat().st_size for file in files.values())
    if size > MAX_BYTES:
        largest = max(files, key=lambda place: files[place].stat().st_size)
        raise TransportError(
            f"the modules next to the program are {size / 2**20:.0f} MiB, above {MAX_BYTES / 2**20:.0f}; the largest "
            f"file is {str(files[largest])!r}: keep data out of the code folder, or list what the nodes need with "
            "runtime_env={'working_dir': ...}"
        )
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for place, file in files.items():
            archive.write(file, place)
    return written.getvalue()
