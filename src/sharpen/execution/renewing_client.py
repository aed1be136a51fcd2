"""The client of runners that outlive the algorithm they were started for: the next one brings a token of its own."""

import asyncio
import weakref
from pathlib import Path
from typing import Any

from ..http.client import HttpClient
from ..store.client import LightningStoreClient
from ..store.spool import Entry
from .tokens import read_token

DENIED = 401


class RenewingClient(LightningStoreClient):
    """Where the server wants another token, it is read again from the file that the first one came from."""

    def __init__(self, url: str, token: str | None, file: Path, **options: Any) -> None:
        super().__init__(url, token, **options)
        self._file = file
        self._made_with: weakref.WeakKeyDictionary[HttpClient, str | None] = weakref.WeakKeyDictionary()

    def _connections(self) -> HttpClient:
        found = super()._connections()
        self._made_with.setdefault(found, self._headers.get("authorization"))
        return found

    async def _exchange(self, request: Entry, store_id: str | None = None) -> tuple[int, bytes]:
        used = self._connections()
        status, body = await super()._exchange(request, store_id)
        if status == DENIED and self._renews(used):
            status, body = await super()._exchange(request, store_id)
        return status, body

    def _renews(self, used: HttpClient) -> bool:
        """Whether there is another token than the one that these connections were made with; each loop has its own."""
        token = read_token(self._file)
        if token is None or self._made_with.get(used) == f"Bearer {token}":
            return False
        self._headers = {**self._headers, "authorization": f"Bearer {token}"}
        loop = asyncio.get_running_loop()
        if self._by_loop.get(loop) is used:
            del self._by_loop[loop]
            used.close()
        return True
