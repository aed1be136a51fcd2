"""Pages from templates. Everything is escaped; a template gets the links, the run and what the viewer may do.

In every template:

    link("runs", run.name, "rollouts", id, status="failed")   the URL of a page, quoted, under any root path
    static("app.css")                                         the URL of a static file
    run, tab                                                  the RunEntry of the page and its tab, if there is one
    can_edit                                                  whether changes are allowed
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
import msgspec
from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from .._version import __version__
from ..archive.background import run_in_background
from . import formats
from .views.shown_text import visible

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(formats.FILTERS)
    made.filters["exact"] = escape  # for values that are sent back unchanged
    made.globals["version"] = __version__
    return made


def _shown(value: Any) -> Any:
    """Escape the characters of a text that hide or reverse text. Markup, such as the output of a macro or of the filter
    `exact`, stays as it is."""
    if hasattr(value, "__html__") or isinstance(value, int | float):
        return value
    text = str(value)
    return text if text.isprintable() else visible(text)


def page(request: Request, name: str, *, status_code: int = 200, **context: Any) -> Response:
    """Return a page, from a template that extends `base.html`."""
    return _answer(request, name, status_code, context)


def fragment(request: Request, name: str, *, status_code: int = 200, **context: Any) -> Response:
    """Return a part of a page for htmx. Its template does not extend `base.html`."""
    return _answer(request, name, status_code, context)


def is_htmx(request: Request) -> bool:
    """Return whether a part is requested, not a page."""
    return request.headers.get("hx-request") == "true" and "hx-history-restore-request" not in request.headers


def error_page(
    request: Request, status: int, message: str, *, headers: Mapping[str, str] | None = None, **context: Any
) -> Response:
    """Return an error in the form the client can use: a page, one line for htmx, JSON for a program."""
    if request.url.path.endswith(".json") or "application/json" in request.headers.get("accept", ""):
        body = msgspec.json.encode({"error": {"status": status, "message": message}})
        answer = Response(body, status, media_type="application/json")
    elif is_htmx(request):
        answer = Response(message, status, media_type="text/plain")
    else:
        answer = page(request, "error.html", status_code=status, message=message, status=status, **context)
    answer.headers.update(headers or {})
    return answer


def link_from(request: Request) -> "Linker":
    """Return a function that makes URLs of pages under the root path of a request."""
    return Linker(request.scope.get("root_path", ""))


class Linker:
    def __init__(self, root: str) -> None:
        self._root = quote(root.rstrip("/"))

    def __call__(self, *parts: object, **query: object) -> str:
        """`link("runs", name, x=1)`: each part is one segment. None is left out, a list repeats its name."""
        path = "/".join(quote(str(part), safe="") for part in parts)
        given = {name: value for name, value in query.items() if value is not None and value != ""}
        return f"{self._root}/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    def static(self, name: str) -> str:
        return f"{self._root}/static/{quote(name)}"


def _answer(request: Request, name: str, status: int, context: dict[str, Any]) -> Response:
    link = link_from(request)
    common = {
        "link": link,
        "static": link.static,
        "request": request,
        "can_edit": getattr(request.state, "can_edit", False),
        "is_single": request.app.state.source.is_single,
        "run": None,
        "tab": None,
        "events": None,
    }
    return _Page(lambda: environment().get_template(name).render(common | context), status)


class _Page(HTMLResponse):
    """Rendered when it is sent, in the background: a store in the same process can still serve claims."""

    def __init__(self, render: Callable[[], str], status_code: int) -> None:
        super().__init__(None, status_code)
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = self.render(await run_in_background(self._render))
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)
