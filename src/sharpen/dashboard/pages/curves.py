"""The points of a run's curves, as JSON."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..curves import Curves, curves_of_file, curves_of_store

MAX_NAMES = 64


async def curves_json(request: Request) -> Response:
    source = request.app.state.source
    entry = await asyncio.to_thread(source.entry, request.path_params["run"])
    wanted = request.query_params.getlist("name")[:MAX_NAMES]
    if entry.metrics_path is not None:
        found = await asyncio.to_thread(curves_of_file, entry.name, entry.metrics_path, wanted)
    elif entry.has_store:
        found = await curves_of_store(entry.name, await source.store(entry.name), wanted)
    else:
        found = Curves(entry.name, [], [], None, {})
    return Response(msgspec.json.encode(found), media_type="application/json")


ROUTES = [Route("/runs/{run}/curves.json", curves_json)]
