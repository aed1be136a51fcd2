"""Every Python snippet of the README and the docs runs as it stands, page by page, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .llm.tiny_models import write_tiny_model

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page: Path) -> str:
    """The snippets of a page, one after another, as a reader would type them."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


# Pages that train a language model name one on the hub: a tiny one of its kind stands in its place.
FINE_TUNING = (
    "fine-tune-a-model.md",
    "let-an-agent-train-models.md",
    "move-from-helloagents.md",
    "serve-a-model.md",
    "train-the-model-behind-your-agent.md",
)
# Pages that train: run by `make test-all`.
SLOW = ("train-a-policy.md", "move-from-qlib.md", "improve-a-prompt.md", *FINE_TUNING)


def marked(page: Path) -> Any:
    marks = [pytest.mark.slow, pytest.mark.timeout(600)] if page.name in SLOW else []
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_picture_of_the_state_machines_is_that_of_the_tables() -> None:
    command = [sys.executable, "-m", "sharpen.store.transitions"]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for picture in drawn.strip().split("\n\n"):
        assert picture in (ROOT / "docs" / "ideas" / "store.md").read_text(encoding="utf-8")
