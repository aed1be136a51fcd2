"""The dashboard beside a served store: an application that a store server mounts.

Its heavy parts are imported at the first request, so that a run without viewers pays nothing for it. They are imported
in a thread, as the event loop of the store has other requests to serve.
"""

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..errors import MissingExtraError
from ..store import LightningStore

if TYPE_CHECKING:
    from starlette.types import ASGIApp as App, Receive, Scope, Send


def dashboard_app(
    store: LightningStore, *, name: str, run_path: str | Path | None = None, edit_token: str | None = None
) -> "App":
    """Return the dashboard of an open store, and of the files of its run if `run_path` is given.

    `edit_token` is required to view it and allows changes; without one, everybody may view and nobody may change it.
    """
    path = None if run_path is None else Path(run_path)
    return _Mounted(store, name=name, run_path=path, edit_token=edit_token)


class _Mounted:
    def __init__(self, store: LightningStore, *, name: str, run_path: Path | None, edit_token: str | None) -> None:
        self._store, self._name, self._run_path, self._edit_token = store, name, run_path, edit_token
        self._app: App | None = None

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            if self._app is None:
                await asyncio.to_thread(importlib.import_module, ".app", __package__)
            app = self._app or self._build()
        except MissingExtraError as error:
            return await _say(send, 501, str(error))
        if scope["path"] == scope.get("root_path", ""):
            # Links of a page are relative to its root, which ends with a slash.
            return await _say(send, 307, "", location=_with_slash(scope))
        return await app(scope, receive, send)

    def _build(self) -> "App":
        from .app import make_app
        from .sources import StoreSource

        source = StoreSource(self._store, self._name, self._run_path)
        self._app = make_app(source, view_token=None, edit_token=self._edit_token)
        return self._app


def _with_slash(scope: "Scope") -> str:
    query = scope.get("query_string", b"").decode("latin-1")
    return quote(scope["path"]) + "/" + (f"?{query}" if query else "")


async def _say(send: "Send", status: int, text: str, *, location: str | None = None) -> None:
    body = text.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    ]
    if location is not None:
        headers.append((b"location", location.encode("latin-1")))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
