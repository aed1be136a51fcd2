"""The order of the rooms, the cost of the import, the public names, and what tests may know of the layout."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sharpen
from sharpen.compat.names import MODULE_OF
from tests.errors import raises

TESTS = Path(__file__).parent
EXAMPLES = TESTS.parent / "examples"
PACKAGE = Path(sharpen.__file__).parent
DOCS = PACKAGE.parent.parent / "docs"

# From the ground up; a room may import rooms of lower floors only.
FLOORS = [
    {"errors", "semconv", "_version", "secrets", "backoff", "lazy"},
    {"checks", "files", "compat"},
    {"types", "logging", "http", "checkpoints"},
    {"process"},
    {"components", "stats", "chat", "web"},
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
# Below a room, these alone are public; every other inner module reaches the tests through `tests/<room>/internals.py`.
PUBLIC_MODULES = {
    "sharpen.compat.names",
    "sharpen.llm.engine",
    "sharpen.llm.server",
    "sharpen.rl.order_execution",
    "sharpen.rl.policies",
    "sharpen.trainer.init_utils",
    "sharpen.trainer.registry",
}
# Programs that child processes run by their path: they cannot import `tests`.
STANDALONE = {TESTS / "store" / "crash_worker.py", TESTS / "store" / "sqlite_child.py"}
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


def inner_modules(node: ast.AST) -> list[str]:
    """The modules below a room that a statement imports, or imports from."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [node.module]
        if node.module.count(".") == 1 and node.module.startswith("sharpen."):  # `from sharpen.store import sqlite`
            public = getattr(import_module(node.module), "__all__", ())
            names += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public]
    else:
        return []
    inner = [name for name in names if name.startswith("sharpen.") and name.count(".") > 1]
    places = {name: PACKAGE.parent.joinpath(*name.split(".")) for name in inner}
    return [name for name, place in places.items() if place.is_dir() or place.with_suffix(".py").exists()]


def test_inner_modules_are_imported_in_one_place_a_room() -> None:
    files = [*sorted(TESTS.rglob("*.py")), *sorted(EXAMPLES.rglob("*.py"))]
    found = [
        f"{path.relative_to(TESTS.parent)}:{node.lineno}: {name}"
        for path in files
        if path.name != "internals.py" and path not in STANDALONE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in inner_modules(node)
        if name not in PUBLIC_MODULES
    ]
    assert found == [], "import from a public place, or through tests/<room>/internals.py"


def test_the_check_of_imports_sees_inner_modules() -> None:
    inner = (
        "from sharpen.store import sqlite",
        "from sharpen.store.sqlite import SQLiteStore",
        "import sharpen.store.sqlite",
    )
    assert all(inner_modules(ast.parse(statement).body[0]) == ["sharpen.store.sqlite"] for statement in inner)
    assert inner_modules(ast.parse("from sharpen.store import SQLiteStore").body[0]) == []
    assert inner_modules(ast.parse("from sharpen.emitter import operation").body[0]) == []


def is_sentence_pinned(node: ast.AST) -> bool:
    """Whether a call is `pytest.raises` with a pattern for the message."""
    is_raises = isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.raises", "raises")
    return is_raises and any(keyword.arg == "match" for keyword in node.keywords)


def test_errors_are_expected_by_class_and_values() -> None:
    found = [
        f"{path.relative_to(TESTS.parent)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if is_sentence_pinned(node)
    ]
    assert found == [], "use raises(X, value, ...) of tests/errors.py"
    assert is_sentence_pinned(ast.parse("pytest.raises(ValueError, match='is 0')", mode="eval").body)


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
    assert not [
        name for name in loaded if name.startswith(("uvicorn", "starlette", "aiohttp", "opentelemetry.sdk", "torch"))
    ]


@pytest.mark.parametrize("name", ["LightningStoreClient", "llm_proxy", "LLMProxy", "CommandAgent", "Trainer"])
def test_a_client_loads_no_web_server(name: str) -> None:
    loaded = loaded_by(f"from sharpen import {name}")
    assert not [each for each in loaded if each.startswith(("uvicorn", "starlette", "anyio", "aiohttp"))]
    assert name not in ("LightningStoreClient", "llm_proxy") or "urllib.request" not in loaded


def test_public_names_are_exactly_the_documented_ones() -> None:
    page = (DOCS / "reference" / "names.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(sharpen.__all__)


def test_every_public_name_can_be_imported() -> None:
    for name in sharpen.__all__:
        assert getattr(sharpen, name) is not None


@pytest.mark.parametrize(
    ("file", "names"),
    [("__init__.py", set(sharpen.__all__) - {"__version__"}), ("compat/names.py", set(MODULE_OF))],
    ids=["listed", "unlisted"],
)
def test_type_checkers_see_the_same_names(file: str, names: set[str]) -> None:
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    imported = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {None} == names


def test_unlisted_names_can_be_imported_and_are_not_offered() -> None:
    for name, module in MODULE_OF.items():
        if name != "reward":  # which the deprecated module of that name replaces once it is imported
            assert getattr(sharpen, name) is getattr(import_module(f"sharpen.{module}"), name)
    assert not set(MODULE_OF) & set(dir(sharpen))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with raises(AttributeError, "Trainr"):
        _ = sharpen.Trainr
