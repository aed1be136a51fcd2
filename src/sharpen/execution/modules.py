"""Whether another process would find a module: a fresh interpreter with this `sys.path`, and nothing of what a
program may have added to its own import machinery."""

import os
import sys
import zipimport
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

_LOADERS = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader, NamespaceLoader, zipimport.zipimporter)


def why_not_elsewhere(module: str) -> str | None:
    """Why a fresh interpreter would not find the module; None where it would."""
    # A package that is found brings its submodules, also those that it makes on the fly.
    name = module.partition(".")[0]
    if name in ("__main__", "builtins"):
        return None
    found = find_module(name)
    known = getattr(sys.modules.get(name), "__spec__", None)
    if found is None:
        return _where_from(name, known)
    if known is not None and _is_another_file(known, found):
        return f"which was loaded from {known.origin!r}, but a new process would find {found.origin!r}"
    return None


def find_module(name: str) -> ModuleSpec | None:
    """Where a fresh interpreter would find it."""
    found = BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)
    if found is not None:
        return found
    found = PathFinder.find_spec(name)
    if found is not None and (found.loader is None or isinstance(found.loader, _LOADERS)):
        return found
    # Packages installed in place bring a finder of their own, which every interpreter of this environment has.
    editable = [finder for finder in sys.meta_path if "editable" in getattr(finder, "__module__", "")]
    return next((spec for finder in editable if (spec := finder.find_spec(name, None)) is not None), None)


def _where_from(name: str, spec: ModuleSpec | None) -> str:
    if name not in sys.modules:
        return "which cannot be imported"
    if spec is None or spec.loader is None:
        return "which was created at run time and has no file"
    if isinstance(spec.loader, _LOADERS):
        return f"which was loaded from {spec.origin!r}, outside sys.path"
    return f"which was loaded by {type(spec.loader).__name__}, which a new process does not have"


def _is_another_file(known: ModuleSpec, found: ModuleSpec) -> bool:
    if not (known.has_location and found.has_location and known.origin and found.origin):
        return False
    return os.path.realpath(known.origin) != os.path.realpath(found.origin)
