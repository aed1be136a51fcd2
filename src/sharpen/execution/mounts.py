"""Other applications at the address of the store, such as a dashboard.

They are named by import path, so that neither the store nor this room knows them, and made in the process that serves
the store, at the first request: a run that nobody looks at pays nothing for them.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..errors import MissingExtraError
from ..runs.screen import is_terminal, say
from ..store import LightningStore

if TYPE_CHECKING:
    from starlette.types import ASGIApp as App, Receive, Scope, Send

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mount:
    """An application under a path prefix. `factory` (`package.module:function`) is called with the store, the
    options and `edit_token`, the token of the store's server; the options are plain JSON values."""

    prefix: str
    factory: str
    title: str
    options: dict[str, Any] = field(default_factory=dict)

    def app(self, store: LightningStore, token: str | None) -> "App":
        return MountedApp(self, store, token)


class MountedApp:
    """Makes the application when somebody asks for it."""

    def __init__(self, mount: Mount, store: LightningStore, token: str | None) -> None:
        self._mount, self._store, self._token = mount, store, token
        self._app: App | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            app = await self._made()
        except MissingExtraError as error:
            await _refuse(send, str(error))
            return
        await app(scope, receive, send)

    async def _made(self) -> "App":
        async with self._making:
            if self._app is None:
                # Importing takes a while, and the store has others to answer.
                self._app = await asyncio.to_thread(self._make)
            return self._app

    def _make(self) -> "App":
        module, _, name = self._mount.factory.partition(":")
        app: App = getattr(import_module(module), name)(self._store, edit_token=self._token, **self._mount.options)
        return app


async def _refuse(send: "Send", words: str) -> None:
    body = f"{words}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def announce(mounts: Sequence[Mount], url: str, token: str, token_file: Path | None) -> None:
    """Say where they are. The token opens the store, so it is shown to a person only, and never logged: elsewhere
    it is said where to find it."""
    where = "SHARPEN_TOKEN" if token_file is None else str(token_file)
    for mount in mounts:
        place = f"{url}{mount.prefix}/"
        log.info("%s: %s (its token is in %s)", mount.title, place, where)
        if is_terminal():
            say(f"{mount.title}: {place}?token={quote(token)}")
