"""Versions of resources: the changes of each, a single one, and two of them compared."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import InvalidInputError, UnknownIdError
from ...store import LightningStore
from ...types import ResourcesUpdate
from ..rendering import page
from ..views.resource_view import VersionChanges, changes_of, shown_resources
from ..views.shown_text import TEXT_TOOLS
from .run_store import RunStore

_PAGE_SIZE = 50


async def list_resources(request: Request) -> Response:
    """Return all versions, the newest first, each with its changes."""
    opened = await RunStore.of(request)
    offset = _number("offset", request.query_params.get("offset") or "0")
    found = await opened.store.query_resources(
        sort_by="update_time", sort_order="desc", limit=_PAGE_SIZE + 1, offset=offset, all_versions=True
    )
    return page(
        request,
        "resources/list.html",
        run=opened.entry,
        tab="resources",
        versions=(await _with_changes(opened.store, found.items))[:_PAGE_SIZE],
        offset=offset,
        page_size=_PAGE_SIZE,
        total=found.total,
        **TEXT_TOOLS,
    )


async def show_resources(request: Request) -> Response:
    """Return one version; with `against`, its changes from another version (`2`) or from other resources (`id@2`)."""
    opened = await RunStore.of(request)
    resources_id = request.path_params["rid"]
    update = await _version(opened.store, resources_id, _number("version", request.path_params["version"]))
    newest = await _version(opened.store, resources_id, None)
    against = request.query_params.get("against", "")
    other = await _other(opened.store, resources_id, against) if against else None
    return page(
        request,
        "resources/page.html",
        run=opened.entry,
        tab="resources",
        update=update,
        newest=newest.version,
        against=other,
        shown=shown_resources(update.resources, other.resources if other else None),
        **TEXT_TOOLS,
    )


async def _with_changes(store: LightningStore, updates: list[ResourcesUpdate]) -> list[VersionChanges]:
    """Compare with the previous version; new resources with those published before them, since algorithms publish each
    candidate as separate resources."""
    known = {(each.resources_id, each.version): each for each in updates}
    changes = []
    for place, each in enumerate(updates):
        key = each.resources_id, each.version - 1
        if each.version > 1:
            before = known.get(key) or await store.get_resources_by_id(*key)
        else:
            before = updates[place + 1] if place + 1 < len(updates) else None
        changes.append(changes_of(each, before))
    return changes


async def _other(store: LightningStore, resources_id: str, against: str) -> ResourcesUpdate:
    name, mark, version = against.rpartition("@")
    return await _version(store, name if mark else resources_id, _number("against", version))


async def _version(store: LightningStore, resources_id: str, version: int | None) -> ResourcesUpdate:
    found = await store.get_resources_by_id(resources_id, version)
    if found is None:
        wanted = "" if version is None else f"version {version} of "
        raise UnknownIdError(f"there is no {wanted}resources {resources_id!r} in this store")
    return found


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 18):
        raise InvalidInputError(f"{name} is {text!r}: use an integer")
    return int(text)


ROUTES = [
    Route("/runs/{run}/resources", list_resources),
    Route("/runs/{run}/resources/{rid}/{version}", show_resources),
]
