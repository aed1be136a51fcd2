"""The workers of a run: what they do, when they were last seen, and which of them are late."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...algorithm.base import is_gateway
from ...types import Worker
from .. import rendering

QUIET_SECONDS = 25.0  # runners send a heartbeat every 10 s
LATE_SECONDS = 60.0
MOST = 500

Health = Literal["idle", "busy", "quiet", "late", "gone"]
_ORDER: tuple[Health, ...] = ("late", "quiet", "busy", "idle", "gone")


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker as the page shows it."""

    worker: Worker
    health: Health
    stats: list[tuple[str, str]]
    is_gateway: bool
    busy_seconds: float | None


async def show_workers(request: Request) -> Response:
    source = request.app.state.source
    entry = await asyncio.to_thread(source.entry, request.path_params["run"])
    store = await source.store(entry.name)
    found = await store.query_workers(sort_by="last_heartbeat_time", sort_order="desc", limit=MOST)
    rows = rows_of(found, time.time(), is_running=entry.is_running)
    context = {
        "run": entry,
        "tab": "workers",
        "runners": [row for row in rows if not row.is_gateway],
        "gateways": [row for row in rows if row.is_gateway],
        "counts": {health: sum(row.health == health for row in rows if not row.is_gateway) for health in _ORDER},
        "total": found.total,
        "events": rendering.link_from(request)("runs", entry.name, "events"),
    }
    if rendering.is_htmx(request):
        return rendering.fragment(request, "workers_rows.html", **context)
    return rendering.page(request, "workers.html", **context)


def rows_of(workers: Sequence[Worker], now: float, *, is_running: bool) -> list[WorkerRow]:
    """Return the workers, those that need attention first."""
    rows = [_row(worker, now, is_running=is_running) for worker in workers]
    return sorted(rows, key=lambda row: (_ORDER.index(row.health), row.worker.worker_id))


def health_of(worker: Worker, now: float, *, is_running: bool) -> Health:
    """Return the health of a worker; those of a run that has ended are gone, not late."""
    if not is_running:
        return "gone"
    heard = worker.last_heartbeat_time or worker.last_dequeue_time
    silent = float("inf") if heard is None else now - heard
    if silent > LATE_SECONDS:
        return "late"
    if silent > QUIET_SECONDS:
        return "quiet"
    return "busy" if worker.status == "busy" else "idle"


def _row(worker: Worker, now: float, *, is_running: bool) -> WorkerRow:
    since = worker.last_busy_time if worker.status == "busy" and is_running else None
    return WorkerRow(
        worker=worker,
        health=health_of(worker, now, is_running=is_running),
        stats=[(name, _text(value)) for name, value in (worker.heartbeat_stats or {}).items()],
        is_gateway=is_gateway(worker),
        busy_seconds=None if since is None else max(now - since, 0.0),
    )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


ROUTES = [Route("/runs/{run}/workers", show_workers)]
