"""What the program of a `CommandAgent` reports while it runs, turned into spans of its attempt at once.

POST …/reward       {"reward": 0.5}, {"reward": {"right": 1, "short": 0.2}, "primary_key": "right"},
                    {"message": "text"}, or just a number
POST …/v1/traces    spans, as an OpenTelemetry exporter sends them (OTLP over HTTP)

It is served on this machine only, and only while the program runs. The URL holds a secret of the rollout, so that
nobody else on the machine can reward it.
"""

import contextvars
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from ..emitter import emit_message, emit_reward
from ..errors import InvalidInputError
from ..tracer.trace import current_trace
from ..web.app import JSON, HttpError, WebApp, read_body
from ..web.serving import address, listen, serving
from .command_environment import REWARD_PATH, TRACES_PATH

HOST = "127.0.0.1"
MAX_BODY_BYTES = 16 * 2**20
LAST_SECONDS = 1.0  # for reports that are being read when the program has ended
_METHODS = ["POST", "PUT"]
_KEYS = ("reward", "primary_key", "message")
_WHAT = 'send {"reward": 0.5} or {"message": "text"}'


@asynccontextmanager
async def listening() -> AsyncIterator[str]:
    """Take reports for the current trace inside the block; yield the URL below which they are sent."""
    secret, bound = secrets.token_urlsafe(16), listen(HOST, 0)
    async with serving(_ReportApp(secret), bound, grace_seconds=LAST_SECONDS):
        yield f"{address(HOST, bound.getsockname()[1])}/{secret}"


class _ReportApp(WebApp):
    """Writes what is sent below the secret to the trace, in the context that was current when this was made."""

    def __init__(self, secret: str) -> None:
        routes = [
            Route(REWARD_PATH, self._take_report, methods=_METHODS),
            Route(TRACES_PATH, self._take_spans, methods=_METHODS),
        ]
        super().__init__(routes, max_body_bytes=MAX_BODY_BYTES, error_names="class")
        self._root = f"/{secret}"
        self._trace, self._context = current_trace(), contextvars.copy_context()

    def authorize(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        root = "/" + scope["path"][1:].partition("/")[0]
        if not hmac.compare_digest(root.encode(), self._root.encode()):
            message = "unknown report address: use the value of SHARPEN_REWARD_URL unchanged"
            raise HttpError(404, message, code="not_found")
        scope["root_path"] = root

    async def _take_report(self, request: Request) -> Response:
        self._context.run(_emit, _parse(await _body(request)))
        return Response(media_type=JSON)  # empty, so that it is not in the way of what a shell script prints next

    async def _take_spans(self, request: Request) -> Response:
        from ..store import otlp  # with the first program that sends spans

        content_type = request.headers.get("content-type", "").partition(";")[0].strip() or JSON
        for span in otlp.read_spans(otlp.parse(await _body(request), content_type)):
            if self._trace is not None and span.trace_id and span.span_id:
                # Part of this attempt, whatever it says of itself.
                ids = {"rollout_id": self._trace.rollout_id, "attempt_id": self._trace.attempt_id}
                self._trace.record(replace(span, sequence_id=0, **ids))
        return Response(otlp.answer(0, "", content_type), media_type=content_type)


async def _body(request: Request) -> bytes:
    return await read_body(request.scope, request.receive, types=None, encodings=("gzip", "deflate"))


def _parse(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidInputError(f"{body[:80]!r} is not JSON: {_WHAT}") from None
    if isinstance(said, int | float):
        said = {"reward": said}
    if not isinstance(said, dict) or not {"reward", "message"} & said.keys():
        raise InvalidInputError(f"{json.dumps(said)[:80]} has neither a reward nor a message: {_WHAT}")
    for key in said:
        if key not in _KEYS:
            raise InvalidInputError(f"unknown key {key!r}: use {', '.join(_KEYS)}")
    return said


def _emit(said: dict[str, Any]) -> None:
    """Emit the message and the reward, or neither of them."""
    if "message" in said:
        emit_message(said["message"], propagate=False)
    if "reward" in said:
        emit_reward(said["reward"], primary_key=said.get("primary_key"))
    if "message" in said:
        emit_message(said["message"])
