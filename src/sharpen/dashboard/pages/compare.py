"""Compare runs: their curves, final values with intervals, and changed settings."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...archive.catalog import RunEntry
from ...archive.comparison import compare
from ...errors import InvalidInputError
from ...store import LightningStore
from .. import rendering

MOST = 12


async def show_comparison(request: Request) -> Response:
    entries = await _entries(request)
    link = rendering.link_from(request)
    names = [entry.name for entry in entries]
    return rendering.page(
        request,
        "compare.html",
        entries=entries,
        curves=[{"run": name, "url": link("runs", name, "curves.json")} for name in names],
        table=link("compare", "table", run=names),
    )


async def comparison_table(request: Request) -> Response:
    """Return the tables, separately from the page, as all rewards of every store are read for them."""
    entries = await _entries(request)
    source = request.app.state.source

    @contextlib.asynccontextmanager
    async def store_of(entry: RunEntry) -> AsyncIterator[LightningStore]:
        yield await source.store(entry.name)

    found = await compare(entries, store_of=store_of)
    several = {score.mode for run in found.runs for score in run.scores if score.versions > 1}
    return rendering.fragment(request, "compare_table.html", entries=entries, found=found, several=several)


async def _entries(request: Request) -> list[RunEntry]:
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if not names:
        raise InvalidInputError("no runs are selected; select two or more in the list of runs")
    if len(names) > MOST:
        raise InvalidInputError(f"{len(names)} runs are too many to compare; select at most {MOST}")
    source = request.app.state.source
    return [await asyncio.to_thread(source.entry, name) for name in names]


ROUTES = [Route("/compare", show_comparison), Route("/compare/table", comparison_table)]
