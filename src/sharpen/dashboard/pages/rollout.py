"""One rollout: a waterfall of its spans beside its conversation, and each part of it on demand.

Long content is fetched by the page in parts: entries beyond the first, a text that was cut, the tokens of a call, the
attributes of a span.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...archive.background import run_in_background
from ...archive.llm_calls import token_strips
from ...archive.lookup import why_ended
from ...archive.transcript import Transcript, read_transcript, waterfall
from ...errors import SpansEvictedError, UnknownIdError
from ...types import Rollout, Span
from ..rendering import fragment, link_from, page
from ..views.action_report import action_report
from ..views.entry_list import EntryList, entry_list
from ..views.heat_strip import heat_strip
from ..views.rollout_list import rollout_row
from ..views.shown_text import TEXT_TOOLS, as_text, visible
from ..views.span_detail import attribute_text, span_details
from ..views.waterfall_rows import MOST_ROWS, waterfall_rows
from .run_store import RunStore

_EVERYTHING = 10**9


async def show_rollout(request: Request) -> Response:
    opened = await RunStore.of(request)
    mark = await _unfinished_mark(request, opened)
    read = await _transcript(request, opened)
    wanted = request.query_params.get("span")
    most = _EVERYTHING if "all" in request.query_params else MOST_ROWS
    rows = await run_in_background(lambda: waterfall_rows(waterfall(read.spans), most=most))
    context = {
        "run": opened.entry,
        "tab": "rollouts",
        "events": link_from(request)("runs", opened.entry.name, "events"),
        "read": read,
        "rollout": read.rollout,
        "row": rollout_row(read.rollout),
        "bars": rows,
        "listed": entry_list(read),
        "details": span_details(read.spans, wanted) if wanted else [],
        "wanted": wanted,
        "mark": mark,
        "why_ended": why_ended,
        "report": action_report(request.query_params),
        "no_changes": opened.why_not_changed,
        **TEXT_TOOLS,
    }
    return page(request, "rollout/page.html", **context)


async def show_state(request: Request) -> Response:
    """Return the progress of a rollout in a few bytes; the page of an unfinished one polls it."""
    opened = await RunStore.of(request)
    rollout = await _rollout(request, opened)
    mark = await _mark(opened, rollout, request.query_params.get("attempt") or None)
    return Response(msgspec.json.encode({"mark": mark}), media_type="application/json")


async def _unfinished_mark(request: Request, opened: RunStore) -> str | None:
    """Return None for a finished rollout. It is read before the content, so that changes in between are announced."""
    rollout = await _rollout(request, opened)
    attempt_id = request.query_params.get("attempt") or None
    return None if rollout.is_finished else await _mark(opened, rollout, attempt_id)


async def _mark(opened: RunStore, rollout: Rollout, attempt_id: str | None) -> str:
    """Return a mark that changes when there is something new to show."""
    attempts = (await opened.store.query_attempts(rollout.rollout_id, limit=1)).total
    try:
        spans = (await opened.store.query_spans(rollout.rollout_id, attempt_id or "latest", limit=1)).total
    except SpansEvictedError:
        spans = 0
    return f"{rollout.status} {attempts} {spans}"


async def show_span(request: Request) -> Response:
    """Return the attributes, events and links of one span."""
    opened = await RunStore.of(request)
    details = span_details(await _spans_of(request, opened), request.query_params.get("span", ""))
    return fragment(
        request, "rollout/span.html", run=opened.entry, rollout_id=_id(request), details=details, **TEXT_TOOLS
    )


async def show_value(request: Request) -> Response:
    """Return the full value of one attribute of a span."""
    spans = await _spans_of(request, await RunStore.of(request))
    text = attribute_text(spans, request.query_params.get("key", ""))
    return fragment(request, "rollout/whole.html", text=visible(text))


async def show_task(request: Request) -> Response:
    """Return the full task of a rollout."""
    rollout = await _rollout(request, await RunStore.of(request))
    return fragment(request, "rollout/whole.html", text=visible(as_text(rollout.input)))


async def show_tokens(request: Request) -> Response:
    """Return the tokens of one call, starting with the one of a number."""
    opened = await RunStore.of(request)
    read = await _transcript(request, opened)
    span_id, first = request.query_params.get("span", ""), _number(request, "first")
    tokens = token_strips(read.spans).get(span_id)
    if tokens is None:
        raise UnknownIdError(f"span {span_id!r} has no tokens")
    strip = heat_strip(tokens, first=first)
    return fragment(
        request, "rollout/tokens.html", run=opened.entry, rollout=read.rollout, attempt=read.attempt,
        span_id=span_id, strip=strip,
    )  # fmt: skip


async def show_entries(request: Request) -> Response:
    """Return more entries of the conversation from a number on, or the full entries of one span."""
    opened = await RunStore.of(request)
    read = await _transcript(request, opened)
    listed = _wanted_entries(request, read)
    return fragment(
        request, "rollout/entries.html", run=opened.entry, rollout=read.rollout, read=read, listed=listed, **TEXT_TOOLS
    )


def _wanted_entries(request: Request, read: Transcript) -> EntryList:
    if span_id := request.query_params.get("span"):
        return entry_list(read, span_id=span_id)
    return entry_list(read, first=_number(request, "first"))


async def _rollout(request: Request, opened: RunStore) -> Rollout:
    rollout = await opened.store.get_rollout_by_id(_id(request))
    if rollout is None:
        raise UnknownIdError(f"there is no rollout {_id(request)!r}")
    return rollout


async def _transcript(request: Request, opened: RunStore) -> Transcript:
    return await read_transcript(opened.store, _id(request), request.query_params.get("attempt") or None)


async def _spans_of(request: Request, opened: RunStore) -> list[Span]:
    span_id, attempt = request.query_params.get("span", ""), request.query_params.get("attempt") or "latest"
    found = (await opened.store.query_spans(_id(request), attempt, span_id=span_id, limit=10)).items
    if not found:
        raise UnknownIdError(f"there is no span {span_id!r} in rollout {_id(request)!r}")
    return found


def _id(request: Request) -> str:
    return str(request.path_params["id"])


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


ROUTES = [
    Route("/runs/{run}/rollouts/{id}", show_rollout),
    Route("/runs/{run}/rollouts/{id}/state.json", show_state),
    Route("/runs/{run}/rollouts/{id}/span", show_span),
    Route("/runs/{run}/rollouts/{id}/value", show_value),
    Route("/runs/{run}/rollouts/{id}/task", show_task),
    Route("/runs/{run}/rollouts/{id}/tokens", show_tokens),
    Route("/runs/{run}/rollouts/{id}/entries", show_entries),
]
