"""The list of runs: search by name and state, selection for a comparison, live updates."""

import asyncio
from collections.abc import Sequence
from typing import get_args

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...archive.catalog import RunEntry, RunState
from .. import rendering
from ..sources import Source
from ..sparks import Spark, spark_of

PAGE = 100
STATES: tuple[str, ...] = get_args(RunState)


class Row(msgspec.Struct, frozen=True):
    run: RunEntry
    spark: Spark | None


async def show_runs(request: Request) -> Response:
    source, link = request.app.state.source, rendering.link_from(request)
    if source.is_single:
        only = (await asyncio.to_thread(source.runs))[0]
        return RedirectResponse(link("runs", only.name), 303)
    query, state = request.query_params.get("q", ""), request.query_params.get("state", "")
    number = _page_number(request.query_params.get("page", ""))
    rows, number, found, total = await asyncio.to_thread(_rows, source, query, state, number)
    context = {
        "rows": rows,
        "found": found,
        "total": total,
        "label": source.label,
        "q": query,
        "state": state,
        "states": STATES,
        "number": number,
        "pages": max(-(-found // PAGE), 1),
        "events": link("events"),
    }
    if rendering.is_htmx(request):
        return rendering.fragment(request, "runs_rows.html", **context)
    return rendering.page(request, "runs.html", **context)


def _rows(source: Source, query: str, state: str, number: int) -> tuple[list[Row], int, int, int]:
    """Return the rows of one page, or of the last one if there are fewer; its number, the number of matching runs, and
    the number of all runs."""
    entries = source.runs()
    matching = [entry for entry in entries if _matches(entry, query.lower().split(), state)]
    number = min(number, max(-(-len(matching) // PAGE), 1))
    shown = matching[(number - 1) * PAGE : number * PAGE]
    return [Row(entry, spark_of(entry)) for entry in shown], number, len(matching), len(entries)


def _matches(entry: RunEntry, words: Sequence[str], state: str) -> bool:
    if state and entry.state != state:
        return False
    text = " ".join(filter(None, (entry.name, entry.algorithm, entry.agent, entry.model, entry.kind))).lower()
    return all(word in text for word in words)


def _page_number(text: str) -> int:
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 7 else 1


ROUTES = [Route("/", show_runs)]
