"""`Link`: the connections to one base URL, shared by every entry of the model list that has it."""

import asyncio
from collections.abc import Callable

from ...http.client import HttpClient
from ..models.model_entry import Engine
from .engines import EngineFinder

# A server that closed a kept connection may have read the request, and sampled: it is never sent again from here. So
# connections are dropped before the servers of most engines do, which is after 5 seconds.
IDLE_SECONDS = 4.0


class Link:
    """Belongs to the event loop that uses it; another loop finds it new."""

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self.url = url
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls = 0
        self._is_retired = False
        self._client: HttpClient
        self._finder: EngineFinder

    @property
    def client(self) -> HttpClient:
        self._settle_here()
        return self._client

    @property
    def finder(self) -> EngineFinder:
        self._settle_here()
        return self._finder

    @property
    def engine(self) -> Engine | None:
        """As far as it was found out."""
        return None if self._loop is None else self._finder.known

    def _settle_here(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._client = HttpClient(self.url, idle_seconds=IDLE_SECONDS, stale_seconds=0.0)
            self._finder = EngineFinder(self.url, self._clock)
            self._loop, self._calls = loop, 0

    def begin(self) -> None:
        """A call goes out."""
        self._settle_here()
        self._calls += 1

    def end(self) -> None:
        """Its answer is closed."""
        self._calls -= 1
        if self._is_retired and self._calls == 0:
            self.close()

    def retire(self) -> None:
        """No new calls: close when those under way have ended."""
        self._is_retired = True
        if self._calls == 0:
            self.close()
        elif self._loop is not None:
            self._client.close_idle()

    def close(self) -> None:
        """Close every connection; calls under way fail."""
        if self._loop is not None and not self._loop.is_closed():
            self._client.close()
