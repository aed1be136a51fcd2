"""Where a path leads: to which API, and for which attempt.

    /v1/…                                                     unattributed
    /rollout/{rollout_id}/attempt/{attempt_id}/v1/…           of one attempt
    /rollout/{rollout_id}/attempt/{attempt_id}/role/{name}/v1/…   of one agent of several

with `chat/completions`, `completions`, `responses`, `embeddings`, `messages` (POST), `models` and `models/{name}`
(GET); `/v1` may be left out, or be there twice: SDKs differ in who adds it. `/health` answers without a token, and
`/totals` says what was called and spent.
"""

import functools
from typing import Literal
from urllib.parse import unquote

import msgspec

from .calls import PATHS, Api, Place

ROUTES = (
    "POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/messages; GET /v1/models; "
    "also under /rollout/{rollout_id}/attempt/{attempt_id} with or without /role/{name}; GET /totals, /health"
)
_APIS: dict[str, Api] = {path[1:]: api for api, path in PATHS.items()}
Page = Literal["models", "totals", "health"]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What a path means: an API, or a page that tells about the gateway itself."""

    api: Api | None = None
    page: Page | None = None
    place: Place | None = None
    model: str | None = None
    """The one that is asked for by `models/{name}`."""

    @property
    def verb(self) -> str:
        return "GET" if self.api is None else "POST"


@functools.lru_cache(maxsize=4096)  # an attempt calls the same path again and again
def find_route(raw_path: bytes) -> Route | None:
    """The route of a path as it came over the wire; None where nothing is."""
    segments = [unquote(segment) for segment in raw_path.decode("latin-1").rstrip("/").split("/")[1:]]
    if segments == ["health"]:
        return Route(page="health")
    if segments == ["totals"]:
        return Route(page="totals")
    place, rest = _place(segments)
    while rest[:1] == ["v1"]:
        rest = rest[1:]
    if rest[:1] == ["models"]:
        return Route(page="models", place=place, model="/".join(rest[1:]) or None)
    api = _APIS.get("/".join(rest))
    return None if api is None else Route(api=api, place=place)


def _place(segments: list[str]) -> tuple[Place | None, list[str]]:
    """The attempt that a path names, and what follows; a role without an attempt says nothing."""
    ids = None
    if len(segments) > 4 and segments[0] == "rollout" and segments[2] == "attempt":
        ids, segments = (segments[1], segments[3]), segments[4:]
    role = None
    if len(segments) > 2 and segments[0] == "role":
        role, segments = segments[1], segments[2:]
    return (None if ids is None else Place(*ids, role)), segments
