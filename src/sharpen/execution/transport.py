"""How a bundle travels to another process: it is pickled here, and `runner.base.unpack` reads it over there.

What is defined in `__main__` or in a notebook travels by value, what lives in a module by its name. Everything that
would fail over there is refused here, before anything starts: the error names the component, the part of it that cannot
be pickled, or the module that a fresh interpreter with this `sys.path` would not find.

To another machine, the modules that lie beside the program go with it, with all that they import. What is installed is
expected there; what is not is found by its import statements, packed once, and unpacked by each process into a folder
of its own.
"""

import ast
import contextlib
import dis
import functools
import inspect
import io
import os
import sys
import sysconfig
import tempfile
import types
import zipfile
import zipimport
from collections.abc import Iterable, Iterator
from importlib.machinery import (
    BuiltinImporter,
    ExtensionFileLoader,
    FrozenImporter,
    ModuleSpec,
    NamespaceLoader,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any

from ..errors import TransportError
from ..runner.base import cached_again

DEPTH = 6  # how deep a culprit is looked for
MAX_BYTES = 64 * 2**20  # of all modules that go to another machine
_OWN = __name__.partition(".")[0]
_LEFT_OUT = {"__pycache__", "node_modules"}
_LOADERS = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader, NamespaceLoader, zipimport.zipimporter)
_Cached = type(functools.cache(cached_again))
Named = tuple[str, object]


def pack(bundle: object) -> bytes:
    """Return the bundle as bytes; what cannot travel is an error that names the component."""
    return pack_with_modules(bundle)[0]


def pack_with_modules(bundle: object) -> tuple[bytes, set[str]]:
    """Return the bundle as bytes, and the modules that must be found over there."""
    try:
        data, modules = _dumps(bundle)
    except Exception as error:
        name, part = next(each for each in _components(bundle) if _failure(each[1]) is not None)
        raise TransportError(
            f"{name} cannot be sent to another process: {_reason(part)}; create it inside the function that uses it, "
            "or run in one process with strategy='shm'"
        ) from error
    for module in sorted(modules):
        if reason := why_not_found(module):
            name = next(name for name, part in _components(bundle) if module in _dumps(part)[1])
            raise TransportError(
                f"{name} cannot be sent to another process: it uses the module {module!r}, {reason}; move it where a "
                "new process can import it, or run in one process with strategy='shm'"
            )
    return data, modules


def _dumps(thing: object) -> tuple[bytes, set[str]]:
    """Return the pickled thing, and the modules that must be imported to read it."""
    import cloudpickle  # type: ignore[import-untyped]

    modules: set[str] = set()

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, _Cached) and thing.__wrapped__.__module__ == "__main__":
                return cached_again, (thing.__wrapped__, thing.cache_parameters())
            answer = super().reducer_override(thing)
            if answer is NotImplemented:  # it is found by name
                if isinstance(thing, types.ModuleType):
                    modules.add(thing.__name__)
                elif isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType) and thing.__module__:
                    modules.add(thing.__module__)
            return answer

    file = io.BytesIO()
    Packer(file).dump(thing)
    return file.getvalue(), modules


# -- modules that another process finds --------------------------------------------------------------


def why_not_found(module: str) -> str | None:
    """Return why a fresh interpreter would not find the module, or None if it would."""
    # A package that is found brings its submodules, also those that it makes on the fly.
    name = module.partition(".")[0]
    if name in ("__main__", "builtins"):
        return None
    found = find_module(name)
    known = getattr(sys.modules.get(name), "__spec__", None)
    if found is None:
        if name not in sys.modules:
            return "which cannot be imported"
        if known is None or known.loader is None:
            return "which was created at run time and has no file"
        if isinstance(known.loader, _LOADERS):
            return f"which was loaded from {known.origin!r}, outside sys.path"
        return f"which was loaded by {type(known.loader).__name__}, which a new process does not have"
    places = [spec.origin for spec in (known, found) if spec is not None and spec.has_location and spec.origin]
    if len({os.path.realpath(place) for place in places}) > 1:
        return f"which was loaded from {places[0]!r}, but a new process would find {places[1]!r}"
    return None


def find_module(name: str) -> ModuleSpec | None:
    """Return where a fresh interpreter would find a module, without the import hooks of this program."""
    found = BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)
    if found is not None:
        return found
    found = PathFinder.find_spec(name)
    if found is not None and (found.loader is None or isinstance(found.loader, _LOADERS)):
        return found
    # Packages installed in place bring a finder of their own, which every interpreter of this environment has.
    editable = [finder for finder in sys.meta_path if "editable" in getattr(finder, "__module__", "")]
    return next((spec for finder in editable if (spec := finder.find_spec(name, None)) is not None), None)


# -- what cannot be pickled --------------------------------------------------------------------------


def _components(bundle: object) -> Iterator[Named]:
    """Yield the components of a bundle by the names of its attributes, and the bundle itself."""
    for name, value in getattr(bundle, "__dict__", {}).items():
        yield f"the {name.strip('_')} ({_kind(value)})", value
    yield f"the runner bundle ({_kind(bundle)})", bundle


def _kind(value: object) -> str:
    return f"function {value.__name__}" if isinstance(value, types.FunctionType) else type(value).__name__


def _failure(thing: object) -> str | None:
    try:
        _dumps(thing)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return f"{type(error).__name__}: {error}"
    return None


def _reason(thing: object) -> str | None:
    """Return why a thing cannot be pickled: which global, variable, attribute or item of it cannot, if it is one.

    Functions, classes and our own objects are looked through, since the user did not write "the attribute
    `__wrapped__`"; whatever else one of them holds is named as a whole, with the innermost reason.
    """
    chain: list[Named] = [("", thing)]
    while len(chain) <= DEPTH:
        found = next((each for each in _inside(chain[-1][1]) if _failure(each[1]) is not None), None)
        if found is None:
            break
        chain.append(found)
    inner, reason = chain[-1], _failure(chain[-1][1])
    if len(chain) == 1:
        return reason

    def is_looked_through(value: object) -> bool:
        is_ours = type(value).__module__.partition(".")[0] == _OWN
        return is_ours or isinstance(value, types.FunctionType | types.MethodType | type)

    outer = next((each for each in chain[1:] if not is_looked_through(each[1])), chain[1])
    if inner is not outer:
        reason = f"{inner[0]} ({_kind(inner[1])}): {reason}"
    return f"{outer[0]} ({_kind(outer[1])}) cannot be pickled ({reason})"


def _inside(thing: object) -> Iterator[Named]:
    if isinstance(thing, types.MethodType):
        yield from _inside(thing.__self__)
        thing = thing.__func__
    if isinstance(thing, types.FunctionType):
        yield from _inside_function(thing)
    elif isinstance(thing, dict):
        yield from ((f"the entry {name!r}", value) for name, value in thing.items())
    elif isinstance(thing, list | tuple | set):
        yield from ((f"the item {number}", value) for number, value in enumerate(thing))
    elif isinstance(thing, type):
        members = ((name, value) for name, value in vars(thing).items() if name not in ("__dict__", "__weakref__"))
        yield from ((f"the attribute {name!r} of {thing.__name__}", value) for name, value in members)
    else:
        yield from ((f"the attribute {name!r} of {type(thing).__name__}", value) for name, value in _state(thing))
        if type(thing).__module__ == "__main__":
            yield f"the class {type(thing).__name__}", type(thing)


def _state(thing: object) -> list[Named]:
    """Return the attributes that travel: not what the object leaves out by itself, and none where it defines how it is
    pickled."""
    kind: Any = type(thing)
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return []
    try:
        state = thing.__getstate__()
    except Exception:  # noqa: BLE001 - then the object itself is the culprit, with this very error
        return []
    parts = state if isinstance(state, tuple) else (state,)
    return [each for part in parts if isinstance(part, dict) for each in part.items()]


def _inside_function(function: types.FunctionType) -> Iterator[Named]:
    code, name = function.__code__, function.__name__
    for used in sorted(_globals_used(code) & function.__globals__.keys()):
        yield f"the global {used!r} used by {name!r}", function.__globals__[used]
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the variable {variable!r} used by {name!r}", cell.cell_contents
        except ValueError:
            continue  # not filled yet
    for parameter in inspect.signature(function, follow_wrapped=False).parameters.values():
        if parameter.default is not parameter.empty:
            yield f"the default of {parameter.name!r} in {name!r}", parameter.default


def _globals_used(code: types.CodeType) -> set[str]:
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return own.union(*map(_globals_used, inner))


# -- modules that another machine does not have --------------------------------------------------------


def pack_modules(modules: Iterable[str]) -> bytes:
    """Pack these modules, the ones that the program itself imports, and theirs; empty where all are installed."""
    packed: dict[str, Path] = {}
    seen = {"__main__", _OWN}
    program = getattr(sys.modules["__main__"], "__file__", None) or ""
    waiting = [*modules, *_imports_of([Path(program)] if program.endswith(".py") else [])]
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


@functools.cache
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
