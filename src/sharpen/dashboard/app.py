"""`make_app`: the dashboard as an ASGI application over a source of runs."""

import importlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp as App

from ..errors import MissingExtraError, SharpenError

try:
    import jinja2  # noqa: F401 - only whether it is there
except ImportError as error:
    raise MissingExtraError.of("jinja2", extra="dashboard", feature="the dashboard") from error

from . import rendering
from .live import Live
from .pages import MODULES
from .security import Guard

if TYPE_CHECKING:
    import asyncio

    from .sources import Source

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"


def make_app(
    source: "Source",
    *,
    view_token: str | None,
    edit_token: str | None,
    hosts: frozenset[str] | None = None,
    stopping: "asyncio.Event | None" = None,
) -> App:
    """Return the dashboard of a source, under any `root_path`.

    Viewing needs one of the tokens, changes need the `edit_token`; without tokens everybody may view and nobody may
    change anything. `hosts` are the accepted host names (None: any), and long responses end when `stopping` is set.
    """
    app = Starlette(routes=_routes(), exception_handlers=_handlers())
    app.router.redirect_slashes = False
    app.state.source = source
    app.state.live = Live(source)
    return Guard(app, view_token=view_token, edit_token=edit_token, hosts=hosts, stopping=stopping)


def _routes() -> list[BaseRoute]:
    routes: list[BaseRoute] = [Mount("/static", _Static(directory=STATIC), name="static")]
    for name in MODULES:
        routes += importlib.import_module(f"{__package__}.pages.{name}").ROUTES
    return routes


class _Static(StaticFiles):
    """The static files of the package. Browsers revalidate them, so that an upgrade is seen at once."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        answer = super().file_response(*arguments, **named)
        answer.headers["cache-control"] = "no-cache"
        return answer


def _handlers() -> dict[Any, Any]:
    return {HTTPException: _http_error, SharpenError: _sharpen_error, Exception: _unexpected}


async def _http_error(request: Request, error: HTTPException) -> Response:
    words = {404: f"There is no page at {request.url.path}.", 405: f"{request.method} is not allowed here."}
    message = words.get(error.status_code, error.detail)
    return rendering.error_page(request, error.status_code, message, headers=error.headers)


async def _sharpen_error(request: Request, error: SharpenError) -> Response:
    from ..errors import http_status

    return rendering.error_page(request, http_status(error), str(error))


async def _unexpected(request: Request, error: Exception) -> Response:
    return rendering.error_page(
        request, 500, f"Internal error ({type(error).__name__}); see the log of the dashboard for details."
    )
