"""One run: its curves, counts, recent rollouts and configuration."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...archive.catalog import RunEntry
from ...errors import SharpenError
from ...store import LightningStore
from .. import rendering
from ..curves import Newest, newest_of_store
from ..live import statistics_for_page
from ..sources import Source

NEWEST = 8
MOST_SETTINGS = 16
# Metrics that are shown as numbers: always, and only if not 0.
_ALWAYS = {"llm/calls": "LLM calls", "llm/input_tokens": "Input tokens", "llm/output_tokens": "Output tokens"}
_IF_ANY = {"llm/cost": "Cost ($)", "llm/errors": "Failed calls", "llm/refused": "Refused calls", "lost": "Lost"}
_WORDS = {"llm_proxy": "gateway", "n_runners": "runners"}


class Fact(msgspec.Struct, frozen=True):
    """A number under its name; `key` is its name in live events."""

    words: str
    value: float
    key: str


async def show_run(request: Request) -> Response:
    source, name = request.app.state.source, request.path_params["run"]
    entry = await asyncio.to_thread(source.entry, name)
    statistics, newest, problem = await _of_store(source, entry)
    config = await asyncio.to_thread(_config, entry)
    link = rendering.link_from(request)
    return rendering.page(
        request,
        "run.html",
        run=entry,
        tab="overview",
        events=link("runs", entry.name, "events"),
        statistics=statistics,
        problem=problem,
        newest=newest,
        numbers=_numbers(entry),
        config=config,
        settings=_settings(config),
        curves=[{"run": entry.name, "url": link("runs", entry.name, "curves.json")}],
    )


async def newest_finished(request: Request) -> Response:
    """Return the rollouts that finished last; the page fetches it again as others finish."""
    source = request.app.state.source
    entry = await asyncio.to_thread(source.entry, request.path_params["run"])
    store: LightningStore = await source.store(entry.name)
    page = await store.search_rollouts(status_in=["succeeded", "failed", "cancelled"], order="finished", limit=NEWEST)
    return rendering.fragment(request, "run_newest.html", run=entry, rollouts=page.items)


async def _of_store(source: Source, entry: RunEntry) -> tuple[dict[str, Any] | None, Newest | None, str | None]:
    """Return the counts of its store, or why there are none; the rest of the page is shown in any case."""
    if not entry.has_store:
        return None, None, None
    try:
        store = await source.store(entry.name)
        newest = None if entry.has_metrics else await newest_of_store(store)
        return statistics_for_page(await store.statistics()), newest, None
    except (SharpenError, OSError) as error:
        return None, None, f"The store of this run cannot be read: {error}"


def _config(entry: RunEntry) -> dict[str, Any]:
    try:
        return entry.config()
    except SharpenError as error:
        return {"error": str(error)}


def _numbers(entry: RunEntry) -> list[Fact]:
    shown = [name for name in _ALWAYS if name in entry.metrics] + [name for name in _IF_ANY if entry.metrics.get(name)]
    return [Fact((_ALWAYS | _IF_ANY)[name], entry.metrics[name], f"metric:{name}") for name in shown]


def _settings(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the main settings; the configuration below has all of them."""
    parts = config.get("components")
    found: list[tuple[str, str]] = []
    for name, part in _named(parts):
        path = part.get("class") if isinstance(part, dict) else None
        if isinstance(path, str) and name not in ("algorithm", "tracer", "adapter"):
            found.append((_WORDS.get(name, name), path.rpartition(".")[2]))
    sets = config.get("datasets")
    for name, part in _named(sets):
        size = part.get("size") if isinstance(part, dict) else None
        if size is not None:
            found.append((f"{name} tasks", str(size)))
    settings = config.get("settings")
    for name, value in _named(settings):
        if value not in (None, False, 0, ""):
            found.append((_WORDS.get(name, name.replace("_", " ")), str(value)))
    return found or [(name, str(value)) for name, value in _named(config) if _is_plain(name, value)][:MOST_SETTINGS]


def _is_plain(name: str, value: object) -> bool:
    """Return whether to show a setting of a flat configuration, such as that of fine-tuning."""
    return isinstance(value, str | int | float) and value not in (False, "") and name not in ("started", "resumed")


def _named(value: object) -> list[tuple[str, Any]]:
    return [(str(name), each) for name, each in value.items()] if isinstance(value, dict) else []


ROUTES = [Route("/runs/{run}", show_run), Route("/runs/{run}/newest", newest_finished)]
