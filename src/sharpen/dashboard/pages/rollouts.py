"""The list of a run's rollouts: filters, search, pages, and actions on the selected ones.

Every state of the list has a URL. One call of `search_rollouts` is one page, whatever the size of the store.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import InvalidInputError
from ...store import LightningStore
from ...types import RolloutPage
from ...types.rollouts import ROLLOUT_MODES, ROLLOUT_STATUSES
from ..rendering import fragment, is_htmx, link_from, page
from ..views.action_report import action_report
from ..views.rollout_filter import ORDERS, RolloutFilter
from ..views.rollout_list import PAGE_SIZE, paging, rollout_rows
from ..views.shown_text import TEXT_TOOLS
from .run_store import RunStore

_MOST_LIVE_ROWS = 200


async def show_rollouts(request: Request) -> Response:
    """Return the page; for htmx only the list, which the form replaces."""
    opened = await RunStore.of(request)
    pairs = request.query_params.multi_items()
    try:
        asked, problem = RolloutFilter.of(pairs), None
    except InvalidInputError as error:
        asked, problem = RolloutFilter(), str(error)
    found, problem = await _found(opened, asked, request, problem)
    context = {
        "run": opened.entry,
        "tab": "rollouts",
        "events": link_from(request)("runs", opened.entry.name, "events"),
        "asked": asked,
        "typed": dict(pairs),
        "found": found,
        "rows": rollout_rows(found.items) if found else [],
        "paging": paging(asked, found, request.query_params.get("cursor"), _trail(request)) if found else None,
        "problem": problem,
        "report": action_report(request.query_params),
        "statuses": ROLLOUT_STATUSES,
        "modes": ROLLOUT_MODES,
        "orders": ORDERS,
        "no_changes": opened.why_not_changed,
        **TEXT_TOOLS,
    }
    status = 400 if problem else 200
    if is_htmx(request) and request.headers.get("hx-target") == "rollout-list":
        # An error is shown in place of the list, and htmx shows only successful responses.
        return fragment(request, "rollouts/list.html", **context)
    return page(request, "rollouts/page.html", status_code=status, **context)


async def _found(
    opened: RunStore, asked: RolloutFilter, request: Request, problem: str | None
) -> tuple[RolloutPage | None, str | None]:
    if problem:
        return None, problem
    try:
        cursor = request.query_params.get("cursor") or None
        found = await opened.store.search_rollouts(**asked.arguments(), cursor=cursor, limit=PAGE_SIZE)
        return found if cursor else await _with_named(opened.store, asked, found), None
    except InvalidInputError as error:
        return None, str(error)


async def _with_named(store: LightningStore, asked: RolloutFilter, found: RolloutPage) -> RolloutPage:
    """Return the rollout with a pasted id at once, however long a search for the text would take."""
    if asked.q is None or found.is_complete or {name for name, _ in asked.pairs} - {"q", "order"}:
        return found
    named = await store.get_rollout_by_id(asked.q)
    if named is None or named.rollout_id in {each.rollout_id for each in found.items}:
        return found
    return msgspec.structs.replace(found, items=[named, *found.items])


def _trail(request: Request) -> list[str]:
    return request.query_params.getlist("back")


async def show_rows(request: Request) -> Response:
    """Return the current rows of some rollouts, for a page that is open."""
    opened = await RunStore.of(request)
    ids = request.query_params.getlist("id")[:_MOST_LIVE_ROWS]
    rows = rollout_rows(await opened.store.query_rollouts(rollout_id_in=ids, limit=len(ids))) if ids else []
    return fragment(
        request, "rollouts/rows.html", run=opened.entry, rows=rows, no_changes=opened.why_not_changed, **TEXT_TOOLS
    )


ROUTES = [
    Route("/runs/{run}/rollouts", show_rollouts),
    Route("/runs/{run}/rollout-rows", show_rows),
]
