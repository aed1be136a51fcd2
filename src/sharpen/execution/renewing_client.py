"""The client of those who outlive the server that they were started for: the next one brings a token of its own."""

import asyncio
import time
import weakref
from pathlib import Path
from typing import Any

from ..http.client import HttpClient
from ..store.client import LightningStoreClient
from ..store.spool import Entry
from .tokens import given_token, read_token, token_file

DENIED = 401
TOKEN_SECONDS, LOOK_SECONDS = 2.0, 0.05


def client_at(url: str, host: str, port: int) -> LightningStoreClient:
    """A client with the token of SHARPEN_TOKEN, else with the one that a server on this machine has left."""
    token = given_token()
    if token is not None:
        return LightningStoreClient(url, token)
    file = token_file(host, port)
    return RenewingClient(url, read_token(file), file)


def client_with(url: str, token: str | None, file: Path | None, **options: Any) -> LightningStoreClient:
    """A client with this token; where it came from a file, also with later ones from there."""
    if file is None:
        return LightningStoreClient(url, token, **options)
    return RenewingClient(url, token, file, **options)


class RenewingClient(LightningStoreClient):
    """Where the server wants another token, it is read again from the file that the first one came from."""

    def __init__(self, url: str, token: str | None, file: Path, **options: Any) -> None:
        super().__init__(url, token, **options)
        self.token_file = file
        self._made_with: weakref.WeakKeyDictionary[HttpClient, str | None] = weakref.WeakKeyDictionary()

    def _connections(self) -> HttpClient:
        found = super()._connections()
        self._made_with.setdefault(found, self._headers.get("authorization"))
        return found

    async def _exchange(self, request: Entry, store_id: str | None = None) -> tuple[int, bytes]:
        used = self._connections()
        status, body = await super()._exchange(request, store_id)
        if status == DENIED and await self._has_renewed(used):
            status, body = await super()._exchange(request, store_id)
        return status, body

    async def _has_renewed(self, used: HttpClient) -> bool:
        """A server that comes back leaves its token a moment after its first answer."""
        end = time.monotonic() + TOKEN_SECONDS
        while not self._renews(used):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    def _renews(self, used: HttpClient) -> bool:
        """Whether there is another token than the one that these connections were made with; each loop has its own."""
        token = read_token(self.token_file)
        if token is None or self._made_with.get(used) == f"Bearer {token}":
            return False
        self._headers = {**self._headers, "authorization": f"Bearer {token}"}
        loop = asyncio.get_running_loop()
        if self._by_loop.get(loop) is used:
            del self._by_loop[loop]
            used.close()
        return True
