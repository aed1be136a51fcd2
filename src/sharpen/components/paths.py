"""Import paths, addresses of parts that run elsewhere, and how errors name a spec.

In an import path, the longest part that is a module wins; the rest are attributes. An error raised inside a module that
is being imported belongs to its author and passes unchanged. An address is a URL, or `env:NAME` for one that the
environment holds, as it should if it contains a password.
"""

import importlib
import inspect
import os
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import TypeGuard

from ..checks import did_you_mean
from ..errors import ComponentAttributeError, ComponentError, ComponentImportError, ConfigError, MissingExtraError
from ..secrets import ENV_PREFIX, shown
from .registry import Maker

_OWN_PACKAGE = __name__.partition(".")[0]
_NOTHING = object()


@dataclass(frozen=True)
class Origin:
    """Where a spec was given: the beginning of every message, formatted only when there is an error."""

    spec_name: str
    spec: object

    def __str__(self) -> str:
        return f"{self.spec_name}={shown(self.spec)}"


def class_path(thing: object) -> str:
    """Return the import path of the class of an object: `pkg.module.Class`."""
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


def load_class(path: str) -> Maker:
    """Return the class, or the factory function, at `pkg.module.Class`."""
    return load_from(path, Origin("path", path))


def load_from(path: str, origin: Origin) -> Maker:
    """Return the class at a path, for a spec that is named in errors."""
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
            # Only "this part of the path is not a module" is ours; a missing dependency of a module is not.
            if not f"{name}.".startswith(f"{error.name}."):
                raise
    top_level = [module.name for module in pkgutil.iter_modules()]
    raise ComponentImportError(f"{origin}: there is no module {parts[0]!r}.{did_you_mean(parts[0], top_level)}")


def _attribute(owner: object, name: str, origin: Origin, *, is_last: bool) -> object:
    found = getattr(owner, name, _NOTHING)
    if found is not _NOTHING:
        return found
    known = [*dir(owner), *getattr(owner, "__all__", ()), *_submodules(owner)]
    kind = "module" if isinstance(owner, ModuleType) else "class"
    owner_name = getattr(owner, "__name__", owner)
    error = ComponentAttributeError if is_last else ComponentImportError
    raise error(f"{origin}: {kind} {owner_name!r} has no attribute {name!r}.{did_you_mean(name, known)}")


def _submodules(owner: object) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(getattr(owner, "__path__", []))]


def is_address(spec: object) -> TypeGuard[str]:
    """Whether a spec is the address of a part, rather than a name or an import path."""
    return isinstance(spec, str) and ("://" in spec or spec.startswith(ENV_PREFIX))


def resolve_address(text: str) -> str:
    """Return the address itself, read from the environment if it is a reference; any other text is unchanged."""
    if not text.startswith(ENV_PREFIX):
        return text
    name = text.removeprefix(ENV_PREFIX)
    found = os.environ.get(name, "").strip()
    if not found:
        raise ConfigError(f"the address is {text!r}, but the environment variable {name} is not set")
    return found


def name_of(thing: object) -> str:
    """Return the name of a class or a function, or of the class of another object."""
    return str(getattr(thing, "__name__", type(thing).__name__))
