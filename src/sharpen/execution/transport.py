"""How a bundle travels to another process: it is pickled here, and `runner.bundle.unpack` reads it over there.

What is defined in `__main__` or in a notebook travels by value, what lives in a module by its name. Everything that
would fail over there is refused here, by the name of the component, before anything starts.
"""

import functools
import io
import types
from collections.abc import Iterator
from typing import Any

from ..errors import TransportError
from ..runner.bundle import cached_again
from .blame import in_words, reason_of
from .modules import why_not_elsewhere

WAY_OUT = "create it inside the function that uses it, or run in one process with strategy='shm'"


def pack(bundle: object) -> bytes:
    """The bundle as bytes; what cannot travel is an error that names the component."""
    return pack_with_modules(bundle)[0]


def pack_with_modules(bundle: object) -> tuple[bytes, set[str]]:
    """The bundle as bytes, and the modules that must be found over there."""
    try:
        data, modules = _dumps(bundle)
    except Exception as error:
        name, reason = _blame(bundle)
        raise TransportError(
            f"{name} cannot be sent to another process: {reason or reason_of(error)}; {WAY_OUT}"
        ) from error
    for module in sorted(modules):
        if reason := why_not_elsewhere(module):
            who = _user_of(module, bundle)
            raise TransportError(
                f"{who} cannot be sent to another process: it uses the module {module!r}, {reason}; "
                "move it where a new process can import it, or run in one process with strategy='shm'"
            )
    return data, modules


def _dumps(thing: object) -> tuple[bytes, set[str]]:
    """The pickled thing, and the modules that must be imported to read it."""
    import cloudpickle  # type: ignore[import-untyped]

    modules: set[str] = set()

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, _Cached) and thing.__wrapped__.__module__ == "__main__":
                return cached_again, (thing.__wrapped__, thing.cache_parameters())
            answer = super().reducer_override(thing)
            if answer is NotImplemented and (module := _module_of(thing)) is not None:
                modules.add(module)
            return answer

    file = io.BytesIO()
    Packer(file).dump(thing)
    return file.getvalue(), modules


_Cached = type(functools.cache(cached_again))


def _module_of(thing: object) -> str | None:
    """The module that something is found in by name; None for a value."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    if isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType):
        return thing.__module__
    return None


# -- who is to blame ---------------------------------------------------------------------------------


def _parts(bundle: object) -> Iterator[tuple[str, object]]:
    """The components of a bundle, by the names of its attributes."""
    for name, value in getattr(bundle, "__dict__", {}).items():
        yield f"the {name.strip('_')} ({_kind(value)})", value


def _kind(value: object) -> str:
    return f"function {value.__name__}" if isinstance(value, types.FunctionType) else type(value).__name__


def _blame(bundle: object) -> tuple[str, str | None]:
    """The component that cannot travel, and why."""
    for name, part in _parts(bundle):
        if (error := _failure(part)) is not None:
            return name, in_words(part, _failure) or reason_of(error)
    return f"the runner bundle ({_kind(bundle)})", in_words(bundle, _failure)


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
