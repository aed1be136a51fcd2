"""The log of a run: its newest entries of at least a level, live."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .. import rendering
from ..log_file import LEVELS, Level, LogPiece, read_log


async def show_log(request: Request) -> Response:
    source, link = request.app.state.source, rendering.link_from(request)
    entry = await asyncio.to_thread(source.entry, request.path_params["run"])
    query = request.query_params
    level: Level = next((each for each in LEVELS if each == query.get("level")), "debug")
    before, text = _place(query.get("before", "")), query.get("q", "")
    path = entry.log_path
    piece = LogPiece([], 0, 0)
    if path is not None:
        piece = await asyncio.to_thread(read_log, path, before=before, level=level, text=text)
    context = {
        "run": entry,
        "tab": "log",
        "piece": piece,
        "has_log": path is not None,
        "level": level,
        "levels": LEVELS,
        "q": text,
        "before": before,
        "events": link("runs", entry.name, "events"),
    }
    if rendering.is_htmx(request):
        return rendering.fragment(request, "log_entries.html", **context)
    return rendering.page(request, "log.html", **context)


def _place(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


ROUTES = [Route("/runs/{run}/log", show_log)]
