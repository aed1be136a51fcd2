"""Does something when a module is imported, without importing it.

Our own, since `wrapt`, which offers the same, takes 20 to 110 ms to import and every runner process would pay that.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class ImportWatch:
    """Calls `on_import(name)` after each of the named modules was loaded."""

    def __init__(self, names: Sequence[str], on_import: Callable[[str], None]) -> None:
        self._names = frozenset(names)
        self._on_import = on_import
        self._asking = threading.local()

    def start(self) -> None:
        """Watch from now on; modules that are loaded already count as imported now."""
        sys.meta_path.insert(0, self)
        for name in sorted(self._names & sys.modules.keys()):
            self._on_import(name)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names or getattr(self._asking, "is_on", False):
            return None
        self._asking.is_on = True
        try:
            spec = find_spec(fullname)
        finally:
            self._asking.is_on = False
        return self._watched(spec)

    def _watched(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        loader = spec.loader if spec is not None else None
        if spec is None or loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute, name = loader.exec_module, spec.name

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == name:
                self._on_import(name)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
