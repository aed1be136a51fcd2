"""Cancel and retry rollouts, the only changes that the dashboard can make.

A form sends the ids; the first response asks for confirmation, the second acts and redirects to the previous page with
the counts. The guard of the dashboard has already checked where the request comes from.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...errors import AccessDeniedError, InvalidInputError, TooLargeError
from ...store import LightningStore
from ...types import EnqueueRolloutRequest, Rollout
from ..rendering import link_from, page
from ..views.rollout_list import rollout_rows
from ..views.shown_text import TEXT_TOOLS
from .run_store import RunStore

Action = Literal["cancel", "retry"]
MOST_AT_ONCE = 500
_MOST_BYTES = 256 * 1024
_MOST_ID = 150


class _Order(msgspec.Struct, frozen=True):
    """The request of a form. A retry that is sent twice with the same `key` is done once."""

    action: Action
    ids: list[str]
    back: str
    key: str | None


async def cancel(request: Request) -> Response:
    return await _act(request, "cancel")


async def retry(request: Request) -> Response:
    return await _act(request, "retry")


async def _act(request: Request, action: Action) -> Response:
    opened = await RunStore.of(request)
    if opened.why_not_changed is not None:
        raise AccessDeniedError(opened.why_not_changed)
    order = await _order(request, action)
    rollouts = await _rollouts(opened.store, order.ids)
    if order.key is None:
        return _ask(request, opened, order, rollouts)
    done = await (_cancel(opened.store, rollouts) if action == "cancel" else _retry(opened.store, rollouts, order.key))
    return RedirectResponse(_address(request, opened, order, done, len(order.ids) - done), status_code=303)


def _ask(request: Request, opened: RunStore, order: _Order, rollouts: Sequence[Rollout]) -> Response:
    """Return the confirmation page."""
    affected = [each for each in rollouts if order.action == "retry" or not each.is_finished]
    return page(
        request,
        "actions/confirm.html",
        run=opened.entry,
        tab="rollouts",
        action=order.action,
        rows=rollout_rows(affected),
        num_left=len(order.ids) - len(affected),
        back=order.back,
        leave=_way_back(request, opened, order),
        key=secrets.token_hex(8),
        **TEXT_TOOLS,
    )


async def _cancel(store: LightningStore, rollouts: Sequence[Rollout]) -> int:
    """Return how many rollouts this call cancelled; one that finished meanwhile is not changed."""
    wanted = [each.rollout_id for each in rollouts if not each.is_finished]
    if not wanted:
        return 0
    return sum(each.status == "cancelled" for each in await store.cancel_rollouts(wanted))


async def _retry(store: LightningStore, rollouts: Sequence[Rollout], key: str) -> int:
    """Enqueue the same tasks again with the latest version of the same resources."""
    if not rollouts:
        return 0
    return len(await store.enqueue_many_rollouts([_again(each, key) for each in rollouts]))


def _again(rollout: Rollout, key: str) -> EnqueueRolloutRequest:
    return EnqueueRolloutRequest(
        input=rollout.input,
        mode=rollout.mode,
        resources_id=rollout.resources_id,
        config=rollout.config,
        metadata={**(rollout.metadata or {}), "retry_of": rollout.rollout_id},
        rollout_id=f"{_short_id(rollout.rollout_id)}-retry-{key}",
    )


def _short_id(rollout_id: str) -> str:
    """Shorten a long id to its beginning and a hash, which distinguishes it from others that begin alike."""
    if len(rollout_id) <= _MOST_ID:
        return rollout_id
    return f"{rollout_id[: _MOST_ID - 17]}-{hashlib.sha256(rollout_id.encode()).hexdigest()[:16]}"


async def _rollouts(store: LightningStore, ids: Sequence[str]) -> list[Rollout]:
    found = await store.query_rollouts(rollout_id_in=list(ids), limit=len(ids))
    return [each for each in found if each.rollout_id in set(ids)]


# -- the form ----------------------------------------------------------------------------------------


async def _order(request: Request, action: Action) -> _Order:
    fields = await _fields(request)
    ids = list(dict.fromkeys(value for name, value in fields if name == "id" and value))
    if not ids:
        raise InvalidInputError(f"no rollout is selected; select at least one to {action}")
    if len(ids) > MOST_AT_ONCE:
        raise InvalidInputError(f"{len(ids)} rollouts are selected: {action} at most {MOST_AT_ONCE} at once")
    last = dict(fields)
    return _Order(action, ids, last.get("back", ""), _key(last.get("key")))


def _key(text: str | None) -> str | None:
    if text is not None and not (text.isascii() and text.isalnum() and len(text) <= 64):
        raise InvalidInputError("the key of the form is invalid; go back and try again")
    return text


async def _fields(request: Request) -> list[tuple[str, str]]:
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise InvalidInputError("send the form as application/x-www-form-urlencoded")
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > _MOST_BYTES:
            raise TooLargeError(f"the form has more than {_MOST_BYTES:,} bytes: select fewer rollouts")
        parts.append(part)
    return parse_qsl(b"".join(parts).decode("utf-8", "replace"))


def _address(request: Request, opened: RunStore, order: _Order, done: int, left: int) -> str:
    return _way_back(request, opened, order, ("did", order.action), ("done", str(done)), ("left", str(left)))


def _way_back(request: Request, opened: RunStore, order: _Order, *report: tuple[str, str]) -> str:
    """Return the previous page if it is a list or a rollout of this run, otherwise the list."""
    own = link_from(request)("runs", opened.entry.name, "rollouts")
    path, _, query = order.back.partition("?")
    is_ours = path == own or path.startswith(f"{own}/")
    kept = [(name, value) for name, value in parse_qsl(query if is_ours else "") if name not in ("did", "done", "left")]
    query = urlencode([*kept, *report])
    return (path if is_ours else own) + (f"?{query}" if query else "")


ROUTES = [
    Route("/runs/{run}/actions/cancel", cancel, methods=["POST"]),
    Route("/runs/{run}/actions/retry", retry, methods=["POST"]),
]
