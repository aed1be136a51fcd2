"""Every public name is where it was, and takes and gives what it did."""

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from .conftest import SNAPSHOTS, Compare
from .places import KEPT_PATHS, LISTED, NAMED, PLACES
from .signatures import describe, without_module

NAMES, MODULES = "names.txt", "modules.txt"


def test_public_names_keep_their_signatures(compare: Compare) -> None:
    first = first_places()
    classes = {value: place for place, value in first.items() if isinstance(value, type)}
    lines = [fact for place in sorted(first) for fact in describe(place, first[place], public=classes, named=NAMED)]
    compare(NAMES, lines)


def test_modules_keep_their_names(compare: Compare, repository: Path) -> None:
    known = {identity(place.rpartition(".")[2], value): place for place, value in first_places().items()}
    modules = sorted({*PLACES, *KEPT_PATHS, *documented(repository)})
    lines = [line for module in modules for line in module_lines(module, known, documented(repository))]
    compare(MODULES, lines)


def test_documents_import_from_public_places(repository: Path) -> None:
    assert set(documented(repository)) <= {*PLACES, *KEPT_PATHS}


def module_lines(module: str, known: dict[Any, str], documented: dict[str, set[str]]) -> Iterator[str]:
    is_kept = module in PLACES or module in KEPT_PATHS
    names = (names_of(module) if is_kept else set()) | documented.get(module, set())
    listed = getattr(loaded(module), "__all__", None)
    for name in sorted(name for name in names if hasattr(loaded(module), name)):
        place = known.get(identity(name, value_of(module, name)))
        if place is None and listed is None and name not in documented.get(module, set()):
            continue  # a part of how a kept path is made
        same = f"  is {place}" if place and place != f"{module}.{name}" else ""
        unlisted = "  unlisted" if listed is not None and name not in listed else ""
        yield f"{module} {name}{same}{unlisted}"


def first_places() -> dict[str, Any]:
    """Every public name by the first place that has it."""
    found: dict[Any, tuple[str, Any]] = {}
    for module in PLACES:
        for name in sorted(names_of(module)):
            value = value_of(module, name)
            found.setdefault(identity(name, value), (f"{module}.{name}", value))
    return dict(found.values())


def identity(name: str, value: Any) -> tuple[str, int]:
    return name, id(value)


def value_of(module: str, name: str) -> Any:
    return without_module(getattr(loaded(module), name), name)


@cache
def loaded(module: str) -> ModuleType:
    """A module; an empty one where there is none, so that what it had is seen to be missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        return ModuleType(module)


@cache
def names_of(module: str) -> set[str]:
    """What a module lists, what it defines where it lists nothing, and what the snapshot says it has.

    A name stays in the snapshot as long as it can be imported, also when its module stops listing it.
    """
    listed = set(getattr(loaded(module), "__all__", ())) or LISTED.get(module) or set(defined_in(loaded(module)))
    path = SNAPSHOTS / MODULES
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    recorded = {line.split()[1] for line in lines if line.split()[0] == module}
    return {name for name in listed | recorded if hasattr(loaded(module), name)}


def defined_in(module: ModuleType) -> Iterator[str]:
    """The public names that a module defines itself; of those in `PLACES` no functions."""
    source = Path(file).read_text(encoding="utf-8") if (file := getattr(module, "__file__", None)) else ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = [] if module.__name__ in PLACES else [node.name]
        elif isinstance(node, ast.ClassDef):
            found = [node.name]
        else:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            found = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in found if not name.startswith("_"))


@cache
def documented(repository: Path) -> dict[str, set[str]]:
    """What the documentation, the README and the examples import, by module."""
    files = [repository / "README.md", *repository.glob("docs/**/*.md"), *repository.glob("examples/**/*.py")]
    found: dict[str, set[str]] = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        for module, many, one in re.findall(r"^ *from (sharpen[\w.]*) import (?:\(([^)]*)\)|(.*))$", text, re.M):
            names = re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"#.*", "", many or one))
            found.setdefault(module, set()).update(names)
    return found
