"""The order of the rooms, the cost of the import, and the public names."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sharpen

PACKAGE = Path(sharpen.__file__).parent
DOCS = PACKAGE.parent.parent / "docs"

# From the ground up; a room may import rooms of lower floors only.
FLOORS = [
    {"errors", "semconv", "_version", "files", "secrets"},
    {"types", "logging", "http"},
    {"components", "stats", "chat"},
    {"callbacks", "loggers"},
    {"store", "runs", "rl", "llm"},
    {"tracer"},
    {"emitter"},
    {"litagent", "llm_proxy", "adapter", "reward"},
    {"runner", "archive"},
    {"execution"},
    {"algorithm"},
    {"trainer"},
    {"dashboard"},
    {"cli"},
]
HEAVY = ("torch", "numpy", "uvicorn", "starlette", "aiohttp", "opentelemetry.sdk", "rich", "sqlite3", "msgspec")


def floor_of(room: str) -> int:
    return next(level for level, rooms in enumerate(FLOORS) if room in rooms)


def rooms_imported(path: Path) -> set[str]:
    """The rooms that a module imports, also inside functions; imports for type checkers do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    here = ["sharpen", *path.relative_to(PACKAGE).with_suffix("").parts[:-1]]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            names = [*base, *(node.module or "").split(".")] if node.module else base
            targets = [names] if len(names) > 1 else [[*names, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        else:
            continue
        found |= {target[1] for target in targets if target[0] == "sharpen" and len(target) > 1}
    return found


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or path.name != "__init__.py"]


def test_every_room_has_a_floor() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert rooms <= set().union(*FLOORS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_lower_rooms_import_no_higher_ones(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for other in rooms_imported(path) - {room}:
        assert floor_of(other) < floor_of(room), f"{path.name} ({room}) imports {other}"


def test_the_check_of_floors_sees_imports_in_functions(tmp_path: Path) -> None:
    assert "types" in rooms_imported(PACKAGE / "store" / "base.py")
    assert "store" in rooms_imported(PACKAGE / "store" / "__main__.py") | {"store"}
    assert rooms_imported(PACKAGE / "errors.py") == set()


def names_used(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


def test_training_calls_every_function_of_its_mathematics() -> None:
    """A function that only tests call has hand-worked numbers that say nothing about what training computes."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in modules()]
    used = set().union(*map(names_used, trees))
    defined = {
        node.name: path.name
        for folder in (PACKAGE / "llm" / "policy", PACKAGE / "algorithm" / "verl")
        for path in sorted(folder.rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in sharpen.__all__
    }
    assert {name: file for name, file in defined.items() if name not in used} == {}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before), sep='\\n')"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_loads_no_heavy_package() -> None:
    loaded = loaded_by("import sharpen")
    assert not [name for name in loaded if name.startswith(HEAVY)]


def test_a_local_store_loads_no_web_framework() -> None:
    loaded = loaded_by("from sharpen import InMemoryLightningStore, SQLiteStore, Span")
    assert not [name for name in loaded if name.startswith(("uvicorn", "aiohttp", "opentelemetry.sdk", "torch"))]


@pytest.mark.parametrize("name", ["LightningStoreClient", "llm_proxy"])
def test_a_client_loads_no_web_server(name: str) -> None:
    loaded = loaded_by(f"from sharpen import {name}")
    assert not [each for each in loaded if each.startswith(("uvicorn", "aiohttp", "urllib.request"))]


def test_public_names_are_exactly_the_documented_ones() -> None:
    page = (DOCS / "reference" / "names.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(sharpen.__all__)


def test_every_public_name_can_be_imported() -> None:
    for name in sharpen.__all__:
        assert getattr(sharpen, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imported = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {None} == set(sharpen.__all__) - {"__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        _ = sharpen.Trainr
