"""The address at which the program of one rollout reports: on this machine only, and only while the program runs.

The URL holds a secret of the rollout, so that nobody else on the machine can reward it.
"""

import hmac
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...web.app import HttpError, WebApp, read_body
from ...web.serving import address, listen, serving
from .reports import JSON, Reports

HOST = "127.0.0.1"
MAX_BODY_BYTES = 16 * 2**20
LAST_SECONDS = 1.0  # for reports that are being read when the program has ended


@asynccontextmanager
async def listening(reports: Reports) -> AsyncIterator[str]:
    """Take reports inside the block; gives the URL below which they are sent."""
    secret, bound = secrets.token_urlsafe(16), listen(HOST, 0)
    url = f"{address(HOST, bound.getsockname()[1])}/{secret}"
    async with serving(_ReportApp(secret, reports), bound, grace_seconds=LAST_SECONDS):
        yield url


class _ReportApp(WebApp):
    """Hands to the reports what is sent below the secret."""

    def __init__(self, secret: str, reports: Reports) -> None:
        super().__init__(self._take, max_body_bytes=MAX_BODY_BYTES, error_names="class")
        self._root, self._reports = f"/{secret}", reports

    def authorize(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        root = "/" + scope["path"][1:].partition("/")[0]
        if not hmac.compare_digest(root.encode(), self._root.encode()):
            message = "unknown report address: use the value of SHARPEN_REWARD_URL unchanged"
            raise HttpError(404, message, code="not_found")
        scope["root_path"] = root

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("POST", "PUT"):
            message = f"send reports with POST, not {scope['method']}"
            raise HttpError(405, message, code="wrong_method", headers=[(b"allow", b"POST, PUT")])
        body = await read_body(scope, receive, types=None, encodings=("gzip", "deflate"))
        content_type = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1").partition(";")[0].strip()
        path = scope["path"].removeprefix(self._root)
        answer, content_type = self._reports.take(path, body, content_type or JSON)
        await Response(answer, headers={"content-type": content_type})(scope, receive, send)
