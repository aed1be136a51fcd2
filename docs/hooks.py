"""What the site needs beyond Markdown: links out of docs/, the examples as pages, diagrams as pictures.

The same files are read on a code host, where links lead to files of the repository and Mermaid is drawn by the host.
On the site, examples, the changelog and their like become pages, and diagrams become the pictures that
`docs/diagrams.py` drew: nothing is fetched when a page is read.
"""

import ast
import posixpath
import re
from pathlib import Path

from diagrams import DIAGRAMS, DOCS, FENCE, diagram_name
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = DOCS.parent
PAGE_OF = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "examples": "examples/index.md",
}
"""Files and folders outside docs/ that are pages of the site."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_ELSEWHERE = ("http:", "https:", "mailto:", "#")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGE_OF.items():
        if source.endswith(".md") and page != "index.md":
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    examples = sorted((ROOT / "examples").glob("*.py"))
    for path in examples:
        files.append(File.generated(config, f"examples/{path.stem}.md", content=_example_page(path)))
    files.append(File.generated(config, "examples/index.md", content=_examples_page(examples)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links and diagrams as the site has them; code stays as it is."""
    uri, parts, end = page.file.src_uri, [], 0
    for fence in FENCE.finditer(markdown):
        parts.append(_with_links(markdown[end : fence.start()], uri))
        parts.append(_diagram(fence[2], uri) if fence[1] == "mermaid" else fence[0])
        end = fence.end()
    return "".join([*parts, _with_links(markdown[end:], uri)])


def _example_page(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return f"# {path.name}\n\n```python\n{text}```\n"


def _examples_page(paths: list[Path]) -> str:
    rows = [f"| [{path.name}]({path.stem}.md) | {_purpose(path)} |" for path in paths]
    head = "# Examples\n\nWhole programs, run by the tests. Each opens with its purpose and its command.\n\n"
    return head + "| program | what it shows |\n| --- | --- |\n" + "\n".join(rows) + "\n"


def _purpose(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(said.split("\n\n")[0].split()).replace("|", "\\|")


def _with_links(text: str, uri: str) -> str:
    return _LINK.sub(lambda link: _link(link[1], link[2], link[3], uri), text)


def _link(mark: str, words: str, target: str, uri: str) -> str:
    """A link as the site has it; one to a file that is no page stays as its words."""
    path, hash_mark, anchor = target.partition("#")
    if target.startswith(_ELSEWHERE):
        return f"{mark}[{words}]({target})"
    there = _page_at(posixpath.normpath(posixpath.join(posixpath.dirname(_origin(uri)), path)))
    if there is None:
        return words
    return f"{mark}[{words}]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}{hash_mark}{anchor})"


def _origin(uri: str) -> str:
    """The file of a page, seen from the root of the repository."""
    return next((source for source, page in PAGE_OF.items() if page == uri and uri != "index.md"), f"docs/{uri}")


def _page_at(path: str) -> str | None:
    """The page of a file of the repository; None where it has none."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    # Links inside of pages that were made here are right already.
    return path if path.startswith("examples/") else PAGE_OF.get(path)


def _diagram(source: str, uri: str) -> str:
    name = diagram_name(source)
    if not (DOCS / DIAGRAMS / name).is_file():
        raise PluginError(f"{uri}: a diagram has no picture {name}: run python docs/diagrams.py")
    image = posixpath.relpath(f"{DIAGRAMS}/{name}", posixpath.dirname(uri) or ".")
    return f'<div class="diagram" markdown="block">\n[![diagram]({image})]({image})\n</div>'
