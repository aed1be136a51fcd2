"""From an import path to the class behind it, and from an object to the path of its class.

The longest part of the path that is a module wins; the rest are attributes. An error raised inside a module that is
being imported belongs to its author and passes unchanged.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType

from ..checks import did_you_mean
from ..errors import ComponentAttributeError, ComponentError, ComponentImportError, MissingExtraError
from .messages import Origin
from .registry import Maker

_OWN_PACKAGE = __name__.partition(".")[0]
_NOTHING = object()


def class_path(thing: object) -> str:
    """Where the class of an object is: `pkg.module.Class`."""
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


def load_class(path: str) -> Maker:
    """The class, or the factory function, at `pkg.module.Class`."""
    return load_from(path, Origin("path", path))


def load_from(path: str, origin: Origin) -> Maker:
    """The class at a path, for a spec that errors name."""
    parts = path.split(".") if isinstance(path, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ComponentError(f"{origin} is not an import path: write 'pkg.module.Class'")
    found = _find(parts, origin)
    if isinstance(found, type) or inspect.isroutine(found):
        return found
    raise ComponentError(f"{origin}: {path} is of type {type(found).__name__}, not a class or a factory function")


def _find(parts: list[str], origin: Origin) -> object:
    try:
        found, rest = _import_longest(parts, origin)
        for place, name in enumerate(rest, start=1):
            found = _attribute(found, name, origin, is_last=place == len(rest))
    except ModuleNotFoundError as error:
        package = (error.name or _OWN_PACKAGE).partition(".")[0]
        if parts[0] != _OWN_PACKAGE or package == _OWN_PACKAGE:
            raise
        raise MissingExtraError.of(package, extra=None, feature=str(origin)) from error
    return found


def _import_longest(parts: list[str], origin: Origin) -> tuple[object, list[str]]:
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        try:
            return importlib.import_module(name), parts[end:]
        except ModuleNotFoundError as error:
            # Only "this part of the path is no module" is ours; a module that lacks a dependency is not.
            if not f"{name}.".startswith(f"{error.name}."):
                raise
    top_level = [module.name for module in pkgutil.iter_modules()]
    raise ComponentImportError(f"{origin}: there is no module {parts[0]!r}.{did_you_mean(parts[0], top_level)}")


def _attribute(owner: object, name: str, origin: Origin, *, is_last: bool) -> object:
    found = getattr(owner, name, _NOTHING)
    if found is not _NOTHING:
        return found
    known = [*dir(owner), *_submodules(owner)]
    kind = "module" if isinstance(owner, ModuleType) else "class"
    owner_name = getattr(owner, "__name__", owner)
    error = ComponentAttributeError if is_last else ComponentImportError
    raise error(f"{origin}: {kind} {owner_name!r} has no attribute {name!r}.{did_you_mean(name, known)}")


def _submodules(owner: object) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(getattr(owner, "__path__", []))]
