"""Imports that are carried out when a name is first asked for, so that a test loads only the modules it uses."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def imports_on_use(file: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a module: each import under its `if TYPE_CHECKING:` happens on first use."""
    sources = {
        alias.asname or alias.name: (node.module, alias.name)
        for statement in ast.parse(Path(file).read_text(encoding="utf-8")).body
        if isinstance(statement, ast.If)
        for node in statement.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def load(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"{file} does not import {name!r}")
        module, attribute = sources[name]
        found = import_module(module)
        return getattr(found, attribute) if hasattr(found, attribute) else import_module(f"{module}.{attribute}")

    return load
