"""How a bundle travels to another process: pickled here, unpickled in the child, which is the only place in the
package where anything is unpickled.

What is defined in `__main__` or in a notebook travels by value, what lives in a module by its name. Everything that
would fail over there is refused here, by the name of the component, before anything starts.
"""

import io
import pickle
import types
from collections.abc import Iterator
from typing import Any

from ..errors import TransportError
from .modules import why_not_elsewhere

WAY_OUT = "create it inside the function that uses it, or run in one process with strategy='shm'"
DEPTH = 4  # how deep a culprit is looked for


def pack(bundle: object) -> bytes:
    """The bundle as bytes; what cannot travel is an error that names the component."""
    try:
        data, modules = _dumps(bundle)
    except Exception as error:
        name, culprit = _blame(bundle)
        raise TransportError(
            f"{name} cannot travel to another process: {culprit or _reason(error)}; {WAY_OUT}"
        ) from error
    for module in sorted(modules):
        if reason := why_not_elsewhere(module):
            who = _user_of(module, bundle)
            raise TransportError(
                f"{who} cannot travel to another process: it uses the module {module!r}, {reason}; "
                "put it where a new process can import it, or run in one process with strategy='shm'"
            )
    return data


def unpack(data: bytes) -> Any:
    return pickle.loads(data)


def _dumps(thing: object) -> tuple[bytes, set[str]]:
    """The pickled thing, and the modules that must be imported to read it."""
    import cloudpickle  # type: ignore[import-untyped]

    modules: set[str] = set()

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            answer = super().reducer_override(thing)
            if answer is NotImplemented and (module := _module_of(thing)) is not None:
                modules.add(module)
            return answer

    file = io.BytesIO()
    Packer(file).dump(thing)
    return file.getvalue(), modules


def _module_of(thing: object) -> str | None:
    """The module that something is found in by name; None for a value."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    if isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType):
        return thing.__module__
    return None


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# -- who is to blame ---------------------------------------------------------------------------------


def _parts(bundle: object) -> Iterator[tuple[str, object]]:
    """The components of a bundle, by the names of its attributes."""
    for name, value in getattr(bundle, "__dict__", {}).items():
        yield f"the {name.strip('_')} ({_kind(value)})", value


def _kind(value: object) -> str:
    return f"function {value.__name__}" if isinstance(value, types.FunctionType) else type(value).__name__


def _blame(bundle: object) -> tuple[str, str | None]:
    for name, part in _parts(bundle):
        if (error := _failure(part)) is not None:
            return name, _culprit_in(part) or _reason(error)
    return f"the runner bundle ({_kind(bundle)})", _culprit_in(bundle)


def _user_of(module: str, bundle: object) -> str:
    """The component that uses a module."""
    for name, part in _parts(bundle):
        if module in _dumps(part)[1]:
            return name
    return f"the runner bundle ({_kind(bundle)})"


def _failure(thing: object) -> Exception | None:
    try:
        _dumps(thing)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return error
    return None


def _culprit_in(thing: object, depth: int = DEPTH) -> str | None:
    """The global, the closure variable or the attribute that cannot travel, in words."""
    for words, value in _inside(thing):
        error = _failure(value)
        if error is None:
            continue
        deeper = _culprit_in(value, depth - 1) if depth else None
        return deeper or f"{words} is a {type(value).__name__}, which cannot be pickled ({_reason(error)})"
    return None


def _inside(thing: object) -> Iterator[tuple[str, object]]:
    if isinstance(thing, types.MethodType):
        yield f"the object of the method {thing.__name__!r}", thing.__self__
        thing = thing.__func__
    if isinstance(thing, types.FunctionType):
        yield from _inside_function(thing)
        return
    if isinstance(thing, dict):
        yield from ((f"the entry {name!r}", value) for name, value in thing.items())
    elif isinstance(thing, list | tuple | set):
        yield from ((f"the item {number}", value) for number, value in enumerate(thing))
    elif isinstance(thing, type):
        yield from ((f"the attribute {name!r} of {thing.__name__}", value) for name, value in _members(thing))
    else:
        state = getattr(thing, "__dict__", {})
        yield from ((f"the attribute {name!r} of {type(thing).__name__}", value) for name, value in state.items())
        if type(thing).__module__ == "__main__":
            yield f"the class {type(thing).__name__}", type(thing)


def _inside_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name in _names_used(function.__code__):
        if name in function.__globals__:
            yield f"the global {name!r} used by {function.__name__!r}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the variable {name!r} used by {function.__name__!r}", cell.cell_contents
        except ValueError:
            continue  # not filled yet
    yield f"the defaults of {function.__name__!r}", (function.__defaults__, function.__kwdefaults__)


def _names_used(code: types.CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names_used, inner))


def _members(kind: type) -> list[tuple[str, object]]:
    return [(name, value) for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")]
