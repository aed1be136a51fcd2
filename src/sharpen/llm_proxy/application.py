"""The gateway over HTTP, as an ASGI application. The routes stand in `routes`.

A request is checked (host, origin, token, route, size, type) and parsed into a `Call`; what is wrong with it is said in
the words of the API that it speaks. Keys that an agent sends are compared or handed on, and never written down.
"""

import asyncio
import hmac
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote_from_bytes

import msgspec
from starlette.types import Receive, Scope, Send

from .._version import __version__
from ..chat.wire import decode, may_hold_halves, mended
from ..store.base import new_id
from ..web.app import serve_other
from .calls import Api, Call, Place, Refusal
from .dialects import JSON_TYPE, Dialect, RawHeaders, error_body, error_headers, model_body, models_body
from .gateway import Gateway
from .options import GatewayOptions
from .pausing import stopping
from .routes import ROUTES, Route, find_route
from .watching import HungUp

BODY_SECONDS = 30.0  # from piece to piece of a request
_encode = msgspec.json.Encoder().encode
_QUERY_CHARACTERS = "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}"  # with letters, digits and _.-~ all of ASCII that can be seen


class GatewayApplication:
    """Serves one gateway."""

    def __init__(self, gateway: Gateway, options: GatewayOptions | None = None) -> None:
        self.gateway = gateway
        self.options = options or gateway.options
        self._token = None if self.options.token is None else self.options.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await serve_other(scope, receive, send)
        headers = _headers(scope["headers"])
        found = find_route(_raw_path(scope))
        try:
            self._check_origin(headers)
            has_token = self._takes_token(headers, found)
            route = _checked(scope["method"], scope["path"], found)
            if route.api is None:
                if not has_token and route.place is not None:
                    await self.gateway.check_credential(route.place)
                return await self._tell(route, headers, send)
            call = await self._call(route.api, route.place, headers, receive)
            call.query, call.has_token = _query(scope), has_token
        except Refusal as refusal:
            return await _refuse(refusal, found, headers, send)
        except HungUp:
            return None  # before it had asked for anything
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            return await _refuse(stopping(), found, headers, send)
        return await self.gateway.serve(call, receive, send)

    # -- checks --------------------------------------------------------------------------------------

    def _check_origin(self, headers: dict[str, str]) -> None:
        """A page of another site must not spend the user's keys, by name tricks or by script."""
        host = headers.get("host", "")
        if self.options.hosts is not None and _name_of(host).lower() not in self.options.hosts:
            raise Refusal(403, "wrong_host", f"the host {host!r} is not allowed")
        origin = headers.get("origin")
        if origin and origin.partition("://")[2] != host:
            raise Refusal(403, "wrong_origin", f"requests from the origin {origin!r} are not allowed")

    def _takes_token(self, headers: dict[str, str], route: Route | None) -> bool:
        """Whether the token was shown, or is not needed; it is not for upstreams, so it goes no further.

        False leaves the decision to the id of the attempt in the URL; where that cannot decide, it is refused.
        """
        if self._token is None or (route is not None and route.page == "health"):
            return True
        shown, key = headers.get("authorization", ""), headers.get("x-api-key", "")
        scheme, _, given = shown.partition(" ")
        bearer = given.strip() if scheme.lower() == "bearer" else ""
        if any(hmac.compare_digest(each.encode(), self._token) for each in (bearer, key)):
            headers.pop("authorization", None)
            headers.pop("x-api-key", None)
            return True
        if self.options.open_attempts and route is not None and route.place is not None:
            return False
        advice = "pass it to your SDK as the API key"
        if self.options.open_attempts:
            advice = "agents must use the URL of their attempt, llm.get_base_url(rollout_id, attempt_id)"
        raise Refusal(401, "wrong_token", f"the token of the gateway is missing or wrong: {advice}", should_retry=False)

    # -- a call --------------------------------------------------------------------------------------

    async def _call(self, api: Api, place: Place | None, headers: dict[str, str], receive: Receive) -> Call:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, "wrong_content_type", f"the content type is {kind or 'missing'}: send application/json")
        if headers.get("content-encoding", "identity") != "identity":
            raise Refusal(
                415,
                "wrong_content_encoding",
                f"the content encoding is {headers['content-encoding']!r}: send the request body uncompressed",
            )
        body = await self._read(headers, receive)
        return Call(new_id("call"), api, place, body, _parse(body), headers)

    async def _read(self, headers: dict[str, str], receive: Receive) -> bytes:
        limit, declared = self.options.max_body_bytes, headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        parts, size = [], 0
        while True:
            message = await _next(receive)
            if message["type"] == "http.disconnect":
                raise HungUp("the client disconnected")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    # -- about itself --------------------------------------------------------------------------------

    async def _tell(self, route: Route, headers: dict[str, str], send: Send) -> None:
        if route.page == "health":
            return await _answer(send, 200, _encode(self._health()), [JSON_TYPE])
        if route.page == "totals":
            return await _answer(send, 200, _encode(self.gateway.totals()), [JSON_TYPE])
        models = await self.gateway.choice.list_models(headers)
        if route.model is None:
            return await _answer(send, 200, models_body(models.names), [JSON_TYPE])
        if models.has(route.model):
            return await _answer(send, 200, model_body(route.model), [JSON_TYPE])
        refusal = Refusal(404, "model_not_found", f"model {route.model!r} does not exist: {models.known()}")
        return await _refuse(refusal, route, headers, send)

    def _health(self) -> dict[str, Any]:
        gate = self.gateway.gate
        counts = {"in_flight": gate.in_flight, "waiting": gate.waiting}
        return {"status": "ok", "version": __version__, **counts, "paused": gate.is_paused}


def _checked(verb: str, path: str, route: Route | None) -> Route:
    if route is None:
        raise Refusal(404, "not_found", f"{path} does not exist; the gateway serves {ROUTES}", should_retry=False)
    if verb != route.verb:
        raise Refusal(405, "wrong_method", f"{path} only allows {route.verb}, not {verb}", should_retry=False)
    return route


async def _next(receive: Receive) -> MutableMapping[str, Any]:
    """What comes next of a body: it may be long, but not stop coming."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await receive()
    except TimeoutError:
        message = f"the request body was not received: no data for {BODY_SECONDS:g} s"
        raise Refusal(408, "body_too_slow", message) from None


def _headers(raw: RawHeaders) -> dict[str, str]:
    """By name; those that were sent several times are joined, as HTTP allows."""
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
    if len(found) < len(raw):
        for name in found:
            found[name] = ", ".join(value.decode("latin-1") for each, value in raw if each.decode("latin-1") == name)
    return found


def _parse(body: bytes) -> dict[str, Any]:
    try:
        request = decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Refusal(
            400, "malformed_json", f"the request body is not valid JSON: {error}", should_retry=False
        ) from None
    if not isinstance(request, dict):
        raise Refusal(400, "malformed_request", "the request body is not a JSON object", should_retry=False)
    return mended(request) if may_hold_halves(body) else request


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "body_too_large", f"the request body exceeds the limit of {limit} bytes")


def _dialect(route: Route | None, headers: dict[str, str]) -> Dialect:
    is_anthropic = (route is not None and route.api == "messages") or "anthropic-version" in headers
    return "anthropic" if is_anthropic else "openai"


def _raw_path(scope: Scope) -> bytes:
    """The path within this application, as it came over the wire: a role may hold a quoted slash."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.removeprefix(scope.get("root_path", "").encode())


def _query(scope: Scope) -> str:
    """As it came over the wire; what may not stand in a request line is quoted."""
    raw: bytes = scope.get("query_string") or b""
    return quote_from_bytes(raw, safe=_QUERY_CHARACTERS) if raw else ""


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    return host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host


async def _refuse(refusal: Refusal, route: Route | None, headers: dict[str, str], send: Send) -> None:
    allowed = [(b"allow", route.verb.encode())] if route is not None and refusal.status == 405 else []
    # The rest of a body that stopped coming would be taken for the next request.
    closing = [(b"connection", b"close")] if refusal.status == 408 else []
    body = error_body(refusal, _dialect(route, headers))
    await _answer(send, refusal.status, body, [*error_headers(refusal), *allowed, *closing])


async def _answer(send: Send, status: int, body: bytes, headers: RawHeaders) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
