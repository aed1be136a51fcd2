"""The rollouts of one task side by side."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...archive.lookup import MAX_GROUP, task_group
from ...errors import UnknownIdError
from ..rendering import page
from ..views.group_columns import read_group
from ..views.rollout_list import rollout_row
from ..views.shown_text import TEXT_TOOLS
from .run_store import RunStore


async def show_group(request: Request) -> Response:
    opened = await RunStore.of(request)
    rollout_id = request.path_params["id"]
    rollout = await opened.store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise UnknownIdError(f"there is no rollout {rollout_id!r}")
    rollouts = await task_group(opened.store, rollout)
    return page(
        request,
        "group/page.html",
        run=opened.entry,
        tab="rollouts",
        rollout=rollout,
        row=rollout_row(rollout),
        group=await read_group(opened.store, rollouts),
        is_cut=len(rollouts) >= MAX_GROUP,
        **TEXT_TOOLS,
    )


ROUTES = [Route("/runs/{run}/rollouts/{id}/group", show_group)]
