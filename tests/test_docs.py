"""The README and the docs say what is true: snippets and commands run, links lead somewhere, pictures are not old."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sharpen
import sharpen.llm
import sharpen.rl

from .console_blocks import Command, PageFile, is_run, sharpen_arguments, steps_of
from .llm.tiny_models import write_tiny_model

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def snippets(page: Path) -> str:
    """The snippets of a page, one after another, as a reader would type them; files belong to the page's commands."""
    found = re.findall(r"^(<!-- file: .*\n+)?```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.DOTALL)
    return "\n".join(text for is_file, text in found if not is_file)


# Pages that train a language model name one on the hub: a tiny one of its kind stands in its place.
FINE_TUNING = (
    "fine-tune-a-model.md",
    "let-an-agent-train-models.md",
    "move-from-helloagents.md",
    "serve-a-model.md",
    "train-the-model-behind-your-agent.md",
)
# Pages that train: run by `make test-all`.
SLOW = ("any-program-as-an-agent.md", "train-a-policy.md", "move-from-qlib.md", "improve-a-prompt.md", *FINE_TUNING)


def marked(page: Path) -> Any:
    marks = [pytest.mark.slow, pytest.mark.timeout(600)] if page.name in SLOW else []
    if page.name == "train-on-a-ray-cluster.md":
        marks = [pytest.mark.ray]
    return pytest.param(page, id=page.name, marks=marks)


def place_of(page: Path, folder: Path) -> dict[str, str]:
    """The environment of a page, and in its folder what the page takes for granted."""
    if page.name not in FINE_TUNING:
        return {}
    write_tiny_model(folder / "Qwen" / "Qwen3-0.6B")
    problems = [{"question": f"What is {n} + 5?", "answer": f"{n} + 5 = {n + 5}\n#### {n + 5}"} for n in range(16)]
    (folder / "gsm8k").mkdir()
    for split in ("train", "test"):
        lines = [json.dumps(problem) + "\n" for problem in problems]
        (folder / "gsm8k" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return {"SHARPEN_DATA": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if snippets(page)])
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", snippets(page)],
        cwd=tmp_path,
        env={**os.environ, **place_of(page, tmp_path)},
        capture_output=True,
        text=True,
        timeout=570 if page.name in SLOW else 110,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


# -- commands ----------------------------------------------------------------------------------------

RUN_PAGES = [pytest.param(page, id=page.name) for page in PAGES if is_run(text_of(page))]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN_PAGES)
def test_the_commands_of_a_page_do_what_it_shows(page: Path, tmp_path: Path) -> None:
    programs = str(Path(sys.executable).parent)
    settings = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "120"}
    unset = {"SHARPEN_RUNS", "FORCE_COLOR"}
    env = {name: value for name, value in os.environ.items() if name not in unset} | settings
    folder = tmp_path
    for step in steps_of(text_of(page)):
        if isinstance(step, PageFile):
            (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / step.name).write_text(step.text, encoding="utf-8")
        else:
            folder = run_and_compare(step, folder, env)


def run_and_compare(command: Command, folder: Path, env: dict[str, str]) -> Path:
    """Run a command as a reader would, hold its output against the page, and tell in which folder it left us."""
    left_in = folder / ".left-in"
    script = f"{command.line}\ncode=$?; pwd > {left_in}; exit $code"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == command.exit_code, f"$ {command.line}\n{done.stdout}"
    assert command.fits(done.stdout), f"$ {command.line}\nprinted:\n{done.stdout}\nthe page shows:\n{command.shown}"
    place = Path(left_in.read_text(encoding="utf-8").strip())
    left_in.unlink()
    return place


def test_every_sharpen_command_of_the_docs_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.cli.internals import make_parser

    parser, wrong = make_parser(), []
    for page in PAGES:
        for arguments in sharpen_arguments(text_of(page)):
            try:
                parser.parse_args(arguments)
            except SystemExit as end:
                wrong += [f"{page.name}: sharpen {' '.join(arguments)}"] if end.code else []
    assert wrong == [], capsys.readouterr().err


# -- links and pictures ------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(page)):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_picture_of_the_state_machines_is_that_of_the_tables() -> None:
    command = [sys.executable, "-m", "sharpen.store.transitions"]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for picture in drawn.strip().split("\n\n"):
        assert picture in text_of(DOCS / "ideas" / "store.md")


def test_the_house_of_the_docs_is_that_of_the_code() -> None:
    house = runpy.run_path(str(DOCS / "house.py"))
    used = house["uses"]()
    is_drawn = house["table"](used) in text_of(house["PAGE"]) and house["picture"](used) == text_of(house["PICTURE"])
    assert is_drawn, "rooms or their imports have changed: run python docs/house.py --write"


def test_every_diagram_has_its_picture_and_every_picture_its_diagram() -> None:
    diagrams = runpy.run_path(str(DOCS / "diagrams.py"))
    drawn = {path.name for path in (DOCS / diagrams["DIAGRAMS"]).glob("*.svg")}
    assert drawn == set(diagrams["wanted"]()), "a diagram has changed: run python docs/diagrams.py"


# -- the reference -----------------------------------------------------------------------------------

API_PAGES = sorted((DOCS / "reference" / "api").glob("*.md"))
SHARED = ("sharpen.callbacks", "sharpen.loggers", "sharpen.errors")
"""Where a name may be described instead: these are shared by every training loop."""

NAME = r"^(?:::: |### `)(sharpen[\w.]+)`?(?:\n    options: .*heading: (sharpen[\w.]+))?"
"""A name in the reference, and what it is called there."""


def places_of_names() -> dict[str, list[str]]:
    """The pages that tell of each name."""
    places: dict[str, list[str]] = {}
    for page in API_PAGES:
        for told, heading in re.findall(NAME, text_of(page), re.MULTILINE):
            places.setdefault(heading or told, []).append(page.name)
    return places


@pytest.mark.parametrize("module", [sharpen, sharpen.rl, sharpen.llm], ids=lambda module: module.__name__)
def test_every_public_name_is_on_exactly_one_page_of_the_reference(module: Any) -> None:
    places = places_of_names()
    for name in module.__all__:
        shared = SHARED if module is not sharpen.llm else ()  # whose errors are of their own
        spellings = [f"{module.__name__}.{name}", *(f"{room}.{name}" for room in shared)]
        found = [page for spelling in spellings for page in places.get(spelling, [])]
        assert len(found) == 1, f"{module.__name__}.{name} is on {found or 'no page'} of docs/reference/api"


def test_the_reference_tells_of_nothing_twice() -> None:
    assert [name for name, pages in places_of_names().items() if len(pages) > 1] == []


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("move-from-agent-lightning.md", sharpen),
        ("move-from-qlib.md", sharpen.rl),
        ("move-from-helloagents.md", sharpen.llm),
    ],
    ids=["agent-lightning", "qlib", "helloagents"],
)
def test_names_that_a_page_calls_the_same_are_there(page: str, module: Any) -> None:
    rows = re.findall(r"^\| (.+?) \| same\b", text_of(DOCS / "how-to" / page), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)(?:\([^`]*)?`", row)]
    assert len(names) > 10
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        fetched = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?((?:https?:)?//[^\" >]+)", text_of(page)
        )
        assert fetched == [], f"{page.name} fetches {fetched}"


def places_in_code(page: Path) -> set[tuple[str, str]]:
    """What a page names as `file.py` → `Name.of_function`: pairs of a file below src/sharpen and a name in it."""
    text = " ".join(page.read_text(encoding="utf-8").split())
    named = re.findall(r"`([\w/]+\.py)`(?: → ((?:`[\w.]+`(?:, )?)+))?", text)
    return {(file, name) for file, names in named for name in re.findall(r"[\w.]+", names) or [""]}


def names_of(file: Path) -> set[str]:
    """The functions, classes and methods that a module defines."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{each.name}" for each in ast.walk(node) if isinstance(each, FUNCTION)}
    return found


def test_a_page_that_leads_through_the_code_names_what_is_there() -> None:
    places = places_in_code(DOCS / "ideas" / "how-a-run-works.md")
    files = {file: ROOT / "src" / "sharpen" / file for file, _ in places}
    missing = [file for file, path in files.items() if not path.is_file()]
    missing += [f"{file}: {name}" for file, name in places if name and name not in names_of(files[file])]
    assert len(places) > 40
    assert not missing
