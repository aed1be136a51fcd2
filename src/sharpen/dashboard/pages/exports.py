"""Exports: one rollout as JSON or Markdown, a list as JSON Lines, metrics as CSV.

Long ones are streamed, so that an export of a million rollouts needs no more memory than one page.
"""

import re
from collections.abc import AsyncIterator
from typing import cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ...archive.background import run_in_background
from ...archive.export import exported_rollout, exported_rollouts
from ...archive.lookup import RolloutFilters
from ...archive.transcript import read_transcript
from ...errors import UnknownIdError
from ..sources import Source
from ..views.markdown import transcript_markdown
from ..views.metrics_table import metrics_csv
from ..views.rollout_filter import RolloutFilter
from .rollout import show_rollout
from .run_store import RunStore, run_entry

_AT_ONCE = 64 * 1024


async def rollouts_jsonl(request: Request) -> Response:
    """Return the rollouts that match a filter, one per line; with `spans=1` each with its spans."""
    opened = await RunStore.of(request)
    filters = cast(RolloutFilters, RolloutFilter.of(request.query_params.multi_items()).arguments())
    found = exported_rollouts(opened.store, filters, with_spans=request.query_params.get("spans") == "1")
    name = _file_name(opened.entry.name, "rollouts.jsonl")
    lines = _batched(each.line() async for each in found)
    source: Source = request.app.state.source
    async with source.in_use(opened.store):
        first = await anext(lines)  # an error in the filter is reported before the response begins
    return StreamingResponse(
        _from_open_store(request, opened, _with_first(first, lines)), headers=_download(name, "application/x-ndjson")
    )


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for each in rest:
        yield each


async def rollout_json(request: Request) -> Response:
    """Return one rollout with its attempts and spans; `download=1` makes a browser save it."""
    opened = await RunStore.of(request)
    if await _is_in_id(request, opened, ".json"):
        return await show_rollout(request)
    rollout_id = request.path_params["id"]
    rollout = await opened.store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise UnknownIdError(f"there is no rollout {rollout_id!r}")
    line = (await exported_rollout(opened.store, rollout, with_spans=True)).line()
    return Response(line, headers=_shown(request, f"{rollout_id}.json", "application/json"))


async def rollout_markdown(request: Request) -> Response:
    """Return the transcript of an attempt, the latest unless the URL names one."""
    opened = await RunStore.of(request)
    if await _is_in_id(request, opened, ".md"):
        return await show_rollout(request)
    rollout_id = request.path_params["id"]
    read = await read_transcript(opened.store, rollout_id, request.query_params.get("attempt") or None)
    text = await run_in_background(transcript_markdown, read, run_name=opened.entry.name)
    return Response(text, headers=_shown(request, f"{rollout_id}.md", "text/plain; charset=utf-8"))


async def _is_in_id(request: Request, opened: RunStore, ending: str) -> bool:
    """Return whether the suffix belongs to the id of a rollout; then the page of that rollout is meant."""
    whole = request.path_params["id"] + ending
    if await opened.store.get_rollout_by_id(whole) is None:
        return False
    request.path_params["id"] = whole
    return True


async def metrics_table(request: Request) -> Response:
    entry = await run_entry(request)
    path = request.app.state.source.metrics_path(entry.name)
    if path is None or not path.is_file():
        raise UnknownIdError(f"run {entry.name!r} has no metrics")
    name = _file_name(entry.name, "metrics.csv")
    return StreamingResponse(metrics_csv(path), headers=_download(name, "text/csv; charset=utf-8"))


async def _from_open_store(request: Request, opened: RunStore, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Keep the store open during a long export."""
    source: Source = request.app.state.source
    async with source.in_use(opened.store):
        async for piece in pieces:
            yield piece


async def _batched(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join lines to larger chunks: a chunk per line would cost more than the line."""
    waiting, size = list[bytes](), 0
    async for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= _AT_ONCE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _shown(request: Request, name: str, media_type: str) -> dict[str, str]:
    headers = _download(_file_name(name), media_type)
    if request.query_params.get("download") != "1":
        headers["content-disposition"] = headers["content-disposition"].replace("attachment", "inline", 1)
    return headers


def _download(name: str, media_type: str) -> dict[str, str]:
    return {"content-type": media_type, "content-disposition": f'attachment; filename="{name}"'}


def _file_name(*parts: str) -> str:
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "_", part)[:100] for part in parts)


ROUTES = [
    Route("/runs/{run}/rollouts.jsonl", rollouts_jsonl),
    Route("/runs/{run}/rollouts/{id}.json", rollout_json),
    Route("/runs/{run}/rollouts/{id}.md", rollout_markdown),
    Route("/runs/{run}/metrics.csv", metrics_table),
]
