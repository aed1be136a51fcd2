"""The candidates of a prompt search: a tree, and each with its score, cost, critique and diffs.

A sequence has a folder for each stage, with separate prompts.
"""

import asyncio
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...algorithm.prompts.candidates import Candidate, CandidateBook
from ...algorithm.prompts.tree import FOLDER, read_records, summary
from ...errors import ConfigError, UnknownIdError
from ..rendering import fragment, is_htmx, page
from ..views.candidate_tree import candidate_tree, prompt_diffs
from ..views.shown_text import TEXT_TOOLS
from .run_store import run_entry

_FILE = "candidates.json"
_MOST_BYTES = 64 * 2**20


class _Search(msgspec.Struct, frozen=True):
    """One prompt search of a run: its stage (empty if the run has only one), and its candidates."""

    stage: str
    book: CandidateBook


async def show_prompts(request: Request) -> Response:
    """Return the tree and one candidate: the best, unless the URL names another."""
    entry = await run_entry(request)
    searches = await asyncio.to_thread(stages_with_prompts, entry.path) if entry.has_files else {}
    stage = request.query_params.get("stage") or next(iter(searches), "")
    if stage not in searches:
        raise UnknownIdError(f"there is no prompt search in run {entry.name!r}{f', stage {stage!r}' if stage else ''}")
    book = await asyncio.to_thread(_read, searches[stage])
    version = request.query_params.get("version")
    candidate = book.get(version) if version else book.best
    context = {
        "run": entry,
        "tab": "prompts",
        "stages": list(searches),
        "stage": stage,
        "book": book,
        "candidate": candidate,
        "cost": candidate.cost.text(),
        "diffs": prompt_diffs(book, candidate),
        "is_best": candidate.version == book.best.version,
        **TEXT_TOOLS,
    }
    if is_htmx(request) and request.headers.get("hx-target") == "candidate":
        return fragment(request, "prompts/candidate.html", **context)
    return page(
        request, "prompts/page.html", tree=candidate_tree(book), summary=summary(book), order=_order(book), **context
    )


def stages_with_prompts(folder: Path) -> dict[str, Path]:
    """Return the folders with candidates by stage; a search of the run itself has no name."""
    places = {"": folder / FOLDER}
    places |= {path.parent.parent.name: path.parent for path in sorted(folder.glob(f"*/{FOLDER}/{_FILE}"))}
    return {stage: path for stage, path in places.items() if (path / _FILE).is_file()}


def _read(folder: Path) -> CandidateBook:
    size = (folder / _FILE).stat().st_size
    if size > _MOST_BYTES:
        raise ConfigError(f"{str(folder / _FILE)!r} has {size:,} bytes, too many for a page")
    book = read_records(folder)
    if not len(book):
        raise UnknownIdError("the prompt search has no candidates yet")
    return book


def _order(book: CandidateBook) -> list[Candidate]:
    """Return the best candidate first, then the others by score, those without one last."""
    return sorted(book, key=lambda each: (each.version != book.best_version, -each.score.mean if each.score else 9e99))


ROUTES = [Route("/runs/{run}/prompts", show_prompts)]
