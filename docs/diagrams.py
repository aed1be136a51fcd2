"""Draws the Mermaid diagrams of the docs as pictures, once, so that readers of the site need no script of 3.5 MB.

    npm pack mermaid && tar xzf mermaid-*.tgz
    python docs/diagrams.py package/dist/mermaid.min.js [--chromium /usr/bin/chromium]

A picture is named after its text: those that are there are kept, those that no page asks for are removed.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

DOCS = Path(__file__).parent
DIAGRAMS = "images/diagrams"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of code: its language and its text."""

_SETTINGS = "{startOnLoad: false, theme: 'neutral', htmlLabels: false, flowchart: {htmlLabels: false}}"


def diagram_name(source: str) -> str:
    """The file of a diagram: its name follows from its text, so that a picture can never be an old one."""
    return f"{hashlib.sha256(source.strip().encode()).hexdigest()[:12]}.svg"


def wanted() -> dict[str, str]:
    """Every diagram of the docs, by the name of its picture."""
    pages = [page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))]
    sources = [fence[2] for text in pages for fence in FENCE.finditer(text) if fence[1] == "mermaid"]
    return {diagram_name(source): source for source in sources}


def draw(page: "Page", source: str) -> str:
    return str(page.evaluate("async text => (await mermaid.render('diagram', text)).svg", source))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mermaid", type=Path, help="mermaid.min.js")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright  # only to draw: the site and the tests ask for names

    folder, diagrams = DOCS / DIAGRAMS, wanted()
    for picture in folder.glob("*.svg"):
        if picture.name not in diagrams:
            picture.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=given.mermaid)
        page.evaluate(f"mermaid.initialize({_SETTINGS})")
        for name, source in diagrams.items():
            if not (folder / name).is_file():
                (folder / name).write_text(draw(page, source), encoding="utf-8")
                sys.stdout.write(f"{folder / name}\n")
        browser.close()


if __name__ == "__main__":
    main()
