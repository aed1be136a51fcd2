"""Live events: of the list of runs, and of one run."""

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..event_stream import EventStream
from ..live import MAX_VIEWERS, Live


async def follow_runs(request: Request) -> Response:
    return _stream(request, None)


async def follow_run(request: Request) -> Response:
    entry = await asyncio.to_thread(request.app.state.source.entry, request.path_params["run"])
    return _stream(request, entry.name)


def _stream(request: Request, name: str | None) -> Response:
    live: Live = request.app.state.live
    if live.is_full:
        raise HTTPException(
            503, f"{MAX_VIEWERS} pages already receive live updates; close some, or reload this page to see changes"
        )
    return EventStream(live.follow(name))


ROUTES = [Route("/events", follow_runs), Route("/runs/{run}/events", follow_run)]
