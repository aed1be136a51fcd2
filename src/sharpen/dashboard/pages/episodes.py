"""The episodes of a simulator run: the distribution of rewards per iteration, and a table."""

import asyncio
from typing import cast, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import InvalidInputError, UnknownIdError
from ..rendering import fragment, is_htmx, page
from ..views.episode_file import FILE, ORDERS, Episode, EpisodeFile, EpisodeOrder, ordered, read_episodes
from ..views.reward_spread import reward_spread
from ..views.shown_text import TEXT_TOOLS
from .run_store import run_entry

_PAGE_SIZE = 100
_MOST_METRICS = 8


async def show_episodes(request: Request) -> Response:
    entry = await run_entry(request)
    path = entry.path / FILE
    if not entry.has_files or not path.is_file():
        raise UnknownIdError(f"run {entry.name!r} has no episodes: only simulator runs write {FILE}")
    read = await asyncio.to_thread(read_episodes, path)
    asked = _asked(request)
    found = _matching(read, asked)
    offset = _number("offset", asked["offset"]) or 0
    shown = (await asyncio.to_thread(ordered, found, _order(asked["order"])))[offset : offset + _PAGE_SIZE]
    context = {
        "run": entry,
        "tab": "episodes",
        "read": read,
        "asked": asked,
        "orders": ORDERS,
        "shown": shown,
        "offset": offset,
        "page_size": _PAGE_SIZE,
        "total": len(found),
        "metric_names": read.metric_names[:_MOST_METRICS],
        "spread": await asyncio.to_thread(reward_spread, found),
        **TEXT_TOOLS,
    }
    if is_htmx(request) and request.headers.get("hx-target") == "episode-list":
        return fragment(request, "episodes/list.html", **context)
    return page(request, "episodes/page.html", **context)


def _asked(request: Request) -> dict[str, str]:
    names = ("stage", "from", "to", "order", "offset")
    return {name: request.query_params.get(name, "").strip() for name in names}


def _matching(read: EpisodeFile, asked: dict[str, str]) -> list[Episode]:
    first, last = _number("from", asked["from"]), _number("to", asked["to"])
    found = read.episodes
    if asked["stage"]:
        found = [each for each in found if each.stage == asked["stage"]]
    if first is not None:
        found = [each for each in found if each.iteration is not None and each.iteration >= first]
    if last is not None:
        found = [each for each in found if each.iteration is not None and each.iteration <= last]
    return found


def _order(text: str) -> EpisodeOrder:
    if text and text not in get_args(EpisodeOrder):
        raise InvalidInputError(f"order is {text!r}: use one of {', '.join(get_args(EpisodeOrder))}")
    return cast(EpisodeOrder, text or "newest")


def _number(name: str, text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidInputError(f"{name} is {text!r}: use an integer")
    return int(text)


ROUTES = [Route("/runs/{run}/episodes", show_episodes)]
