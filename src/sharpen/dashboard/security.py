"""Access to the dashboard, and its content security policy.

Every response, errors included, forbids scripts, styles and frames other than the dashboard's own files: output of
agents is harmless even if escaping failed. A token in a URL is exchanged at once for a cookie that scripts cannot read
and other sites cannot send. The cookie is made from the token, and is not the token: a
browser sends cookies to every port of a host, and the token would open the store as well.

A redirect is part of the navigation that led to it. If that began on another site, such as a link in a notebook or
the file of `sharpen dashboard --open`, the new cookie would not be sent with it: a page of ours forwards instead.
"""

import asyncio
import hashlib
import hmac
import logging
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp as App, Receive, Scope, Send

from ..web.app import serve_other
from . import rendering

log = logging.getLogger(__name__)

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not `no-referrer`: with it a browser hides the origin of our own forms as well, by which they are checked.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})
MAX_LOGIN_BYTES = 4096
STOPPING = "sharpen.stopping"


class Guard:
    """Checks each request before it reaches the pages, and marks it with what its sender may do."""

    def __init__(
        self,
        app: App,
        *,
        view_token: str | None,
        edit_token: str | None,
        hosts: frozenset[str] | None = None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._app, self._view_token, self._edit_token = app, view_token, edit_token
        self._hosts, self._stopping = hosts, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await serve_other(scope, receive, send)
        if self._stopping is not None:
            scope[STOPPING] = self._stopping
        scope["app"] = self._app  # an error page is rendered without the application
        sender = _WithHeaders(send)
        try:
            await self._serve(scope, receive, sender)
        except Exception:
            # The application has responded; what it could not handle is logged once.
            log.exception("%s %s failed", scope["method"], quote(scope["path"]))
            if not sender.has_started:
                raise
        return None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        refusal = self._refusal(request)
        if refusal is not None:
            return await rendering.error_page(request, 403, refusal)(scope, receive, send)
        path = scope["path"][len(scope.get("root_path", "")) :]
        if path.startswith("/static/"):
            return await self._app(scope, receive, send)
        if path == "/token" and scope["method"] == "POST":
            return await self._log_in(request, receive, send)
        if "token" in request.query_params:
            return await self._exchange(request, receive, send)
        rights = self._rights(request)
        if rights is None:
            return await self._ask_for_token(request, receive, send)
        scope.setdefault("state", {})["can_edit"] = rights == "edit"
        return await self._app(scope, receive, send)

    # -- where a request comes from ------------------------------------------------------------------

    def _refusal(self, request: Request) -> str | None:
        """Return why a request is refused: it names another host, or comes from a page of another site."""
        host = request.headers.get("host", "")
        if self._hosts is not None and _name_of(host).lower() not in self._hosts:
            return f"The host {host!r} is not served here."
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return f"Requests from the origin {origin!r} are not allowed."
        if request.method in UNSAFE and not self._is_ours(request):
            return "Changes are only accepted from the dashboard's own pages or from a program with a bearer token."
        return None

    def _is_ours(self, request: Request) -> bool:
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        # A browser sends its origin. A program has no cookie that others could make it send.
        return "origin" in request.headers or "authorization" in request.headers

    # -- tokens --------------------------------------------------------------------------------------

    def _rights(self, request: Request) -> str | None:
        """Return `edit`, `view`, or None without a valid token."""
        if self._view_token is None and self._edit_token is None:
            return "view"
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._level(given.strip())
        cookie = _cookie(request, _cookie_name(request))
        if cookie is None:
            return None
        return self._matching(cookie, [_sealed(each) for each in (self._edit_token, self._view_token)])

    def _level(self, given: str) -> str | None:
        return self._matching(given, [self._edit_token, self._view_token])

    @staticmethod
    def _matching(given: str, known: list[str | None]) -> str | None:
        """Return which token it is; both are always compared, so that the duration reveals nothing."""
        same = [each is not None and hmac.compare_digest(given.encode(), each.encode()) for each in known]
        return "edit" if same[0] else "view" if same[1] else None

    async def _exchange(self, request: Request, receive: Receive, send: Send) -> None:
        """Exchange a token in the URL for a cookie, and remove it from the URL."""
        query = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = next(value for name, value in query if name == "token")
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        target = quote(request.scope["path"]) + (f"?{rest}" if rest else "")
        await self._let_in(request, token, _own(request, target), receive, send)

    async def _log_in(self, request: Request, receive: Receive, send: Send) -> None:
        """Handle the form of the page that asks for a token."""
        body = await _short_body(request)
        fields = dict(parse_qsl(body.decode("utf-8", "replace")))
        target = _own(request, fields.get("next", ""))
        await self._let_in(request, fields.get("token", "").strip(), target, receive, send)

    async def _let_in(self, request: Request, token: str, target: str, receive: Receive, send: Send) -> None:
        level = self._level(token)
        if level is None and not (self._view_token is None and self._edit_token is None):
            return await self._ask_for_token(request, receive, send, here=target, is_wrong=True)
        answer = _leading_to(request, target)
        answer.headers["referrer-policy"] = "no-referrer"
        if level is not None:
            token = self._edit_token if level == "edit" else self._view_token  # type: ignore[assignment]
            answer.headers["set-cookie"] = _set_cookie(request, _sealed(token) or "")
        return await answer(request.scope, receive, send)

    async def _ask_for_token(
        self, request: Request, receive: Receive, send: Send, *, here: str | None = None, is_wrong: bool = False
    ) -> None:
        """Return the page with the form; it leads to `here`, by default the requested URL."""
        message = "The token is not correct." if is_wrong else "This dashboard requires a token."
        if here is None:
            query = urlencode(request.query_params.multi_items())
            here = _own(request, quote(request.scope["path"]) + (f"?{query}" if query else ""))
        answer = rendering.error_page(
            request, 401, message, headers={"www-authenticate": "Bearer"}, asks_for_token=True, here=here
        )
        await answer(request.scope, receive, send)


class _WithHeaders:
    """Add the headers of every response, unless the response has set them itself."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    async def __call__(self, message: Scope) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            headers = list(message.get("headers", []))
            given = {name.lower() for name, _ in headers}
            headers += [pair for pair in [*HEADERS, (b"cache-control", b"no-store")] if pair[0] not in given]
            message = {**message, "headers": headers}
        await self._send(message)


def _own(request: Request, target: str) -> str:
    """Return the URL of one of our own pages; the first page instead of another site's."""
    root = quote(request.scope.get("root_path", ""))
    # Browsers drop tabs and newlines, and treat a backslash as a slash: what follows would be a host.
    is_plain = target.isascii() and target.isprintable() and "\\" not in target
    is_ours = is_plain and target.startswith(f"{root}/") and not target.startswith("//")
    return target if is_ours else f"{root}/"


def _leading_to(request: Request, target: str) -> Response:
    """Return a redirect if the navigation began on our site or was typed, otherwise a page that forwards."""
    if request.headers.get("sec-fetch-site") in ("same-origin", "none"):
        return Response(status_code=303, headers={"location": target})
    return rendering.page(request, "entered.html", target=target)


async def _short_body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_LOGIN_BYTES:
            return b""
        parts.append(part)
    return b"".join(parts)


def _sealed(token: str | None) -> str | None:
    """Return the value of the cookie for a token."""
    return None if token is None else hmac.new(token.encode(), b"sharpen dashboard", hashlib.sha256).hexdigest()


def _cookie_name(request: Request) -> str:
    """Return a name for this host and port: cookies ignore ports, so two dashboards on one machine need two names."""
    place = f"{request.headers.get('host', '')}{request.scope.get('root_path', '')}"
    return f"sharpen-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def _cookie(request: Request, name: str) -> str | None:
    # Cookies of other programs on this host are sent to us as well. No character in them may hide ours.
    return request.cookies.get(name)


def _set_cookie(request: Request, value: str) -> str:
    path = quote(request.scope.get("root_path", "")) + "/"
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{_cookie_name(request)}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}"


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port."""
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host
