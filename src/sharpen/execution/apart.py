"""The store as runners see it that were started apart: they wait for its server, and end when it has gone for good.

Runners may outlive the algorithm that serves the store. The next one on the same address brings a token of its own,
which is found where the first was.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ..errors import AccessDeniedError, StoreUnavailableError
from ..store import LightningStore
from ..store.client import LightningStoreClient, connected
from ..store.token_files import given_token, read_token, token_file
from ..web.serving import address
from .lives import End

log = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
TOKEN_SECONDS = 5.0  # a server that answers has left its token long before
LOOK_SECONDS = 2.0
REMIND_SECONDS = 15.0
PATIENCE_SECONDS = 60.0


class ServedApart:
    """A server that the other role starts, earlier or later than this one."""

    def __init__(self, host: str, port: int) -> None:
        self.url = address(host, port)
        self.token = given_token()
        self.token_file: Path | None = token_file(host, port) if self.token is None else None
        self._is_refused = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def open(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Wait until the server answers, and look after it from then on."""
        await self.wait()
        self._looking = asyncio.create_task(self._look(on_end))

    async def wait(self) -> None:
        """Until the server answers; how long that takes is not for us to say."""
        pause, is_said = FIRST_PAUSE_SECONDS, False
        while True:
            try:
                await self._ask(seconds=0)
                break
            except StoreUnavailableError:
                if not is_said:
                    log.warning("waiting for a store server at %s", self.url)
                    is_said = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        log.info("connected to the store server at %s", self.url)

    async def _ask(self, *, seconds: float) -> None:
        """Ask once, with the token of the server that is there now; a token that stays wrong is an error."""
        refused_since = 0.0
        while True:
            if self.token_file is not None:
                self.token = read_token(self.token_file)
            try:
                async with connected(self.url, self.token, retry_seconds=seconds) as store:
                    await store.get_rollout_by_id("-")  # costs next to nothing, whatever the size of the store
                return
            except AccessDeniedError as error:
                self._check_refusal(refused_since or time.monotonic(), error)
                if not refused_since:
                    log.warning("waiting for the token of the store server at %s in %s", self.url, self.token_file)
                    refused_since = time.monotonic()
            await asyncio.sleep(FIRST_PAUSE_SECONDS)

    def _check_refusal(self, since: float, error: AccessDeniedError) -> None:
        if self.token_file is None:
            raise AccessDeniedError(
                f"the store server at {self.url} rejects the token in SHARPEN_TOKEN: set the same token on both sides"
            ) from error
        if time.monotonic() - since > TOKEN_SECONDS:
            raise AccessDeniedError(
                f"the store server at {self.url} expects a different token than the one in {self.token_file}: set "
                "SHARPEN_TOKEN to the token of the process that serves the store"
            ) from error

    async def _look(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Ask now and then: a server that has not answered for a minute is not coming back."""
        absence = _Absence(self.url)
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_refused.wait(), LOOK_SECONDS)
            self._is_refused.clear()
            try:
                await self._ask(seconds=0)
            except StoreUnavailableError:
                if absence.seconds_so_far() > PATIENCE_SECONDS:
                    log.warning("the store is gone: nothing answers at %s; stopping the runners", self.url)
                    on_end(None)
                    return
            except AccessDeniedError as error:
                on_end(error)
                return
            else:
                absence.end()

    def is_over(self, end: End) -> bool:
        """Whether a runner that ended like this has no work left: its store has gone."""
        if end.kind == "AccessDeniedError":
            self._is_refused.set()  # the store is asked at once: with a new token the runner goes on
        if end.kind != "StoreUnavailableError":
            return False
        log.warning("the store is gone; stopping the runner: %s", end.reason)
        return True

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    def kill(self) -> None:
        """It is somebody else's."""

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[LightningStore]:
        client = self.client()
        try:
            yield client
        finally:
            await client.close()

    def client(self) -> LightningStoreClient:
        """A client of its own for somebody who closes it."""
        return LightningStoreClient(self.url)


async def reached(host: str, port: int) -> LightningStore:
    """The store behind a server, once that answers; whoever asks closes it."""
    served = ServedApart(host, port)
    await served.wait()
    return served.client()


class _Absence:
    """The time since a server stopped answering. That it is away is said at once, again now and then, and when it is
    over."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._since: float | None = None
        self._said = 0.0

    def seconds_so_far(self) -> float:
        now = time.monotonic()
        if self._since is None:
            self._since = self._said = now
            log.warning("the store at %s is not responding; waiting up to %g s", self._url, PATIENCE_SECONDS)
        elif now - self._said >= REMIND_SECONDS:
            self._said = now
            log.warning("the store at %s has not responded for %.0f s", self._url, now - self._since)
        return now - self._since

    def end(self) -> None:
        if self._since is not None:
            log.warning("the store at %s is responding again", self._url)
        self._since = None
