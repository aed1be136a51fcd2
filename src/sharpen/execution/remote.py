"""Separate roles: the store as runners see it whose server another program starts, earlier or later than this one.

They wait for the server, and end when it has gone for good. Runners may outlive the algorithm that serves the store.
The next one on the same address has another token, which is found where the first was.
"""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from ..backoff import Backoff
from ..errors import AccessDeniedError, StoreUnavailableError
from ..store import LightningStore
from ..store.client import connected
from ..store.opening import ServerAddress
from ..store.token_files import given_token, read_token, token_file
from ..web.serving import address
from .serving import OnEnd, Served
from .supervisor import RunnerExit

log = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
TOKEN_SECONDS = 5.0  # a server that answers has left its token long before
LOOK_SECONDS = 2.0
REMIND_SECONDS = 15.0
PATIENCE_SECONDS = 60.0


class ServedRemotely(Served):
    """A store whose server the other role starts."""

    def __init__(self, host: str, port: int) -> None:
        self._token_file: Path | None = None if given_token() else token_file(host, port)
        file = None if self._token_file is None else str(self._token_file)
        super().__init__(ServerAddress(address(host, port), given_token(), file))
        self._is_refused = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def open(self, on_end: OnEnd) -> None:
        """Wait until the server answers, and look after it from then on."""
        await self.wait()
        self._looking = asyncio.create_task(self._look(on_end))

    async def wait(self) -> None:
        """Wait until the server answers, however long that takes."""
        pauses = Backoff(FIRST_PAUSE_SECONDS, maximum=LONGEST_PAUSE_SECONDS)
        while not await self._answers():
            if not pauses.tries:
                log.warning("waiting for a store server at %s", self.url)
            await pauses.wait_async()
        log.info("connected to the store server at %s", self.url)

    async def _answers(self) -> bool:
        """Ask once, with the token of the server that is there now; a token that stays wrong is an error."""
        refused_since: float | None = None
        while True:
            token = given_token() if self._token_file is None else read_token(self._token_file)
            try:
                async with connected(self.url, token, retry_seconds=0) as store:
                    await store.get_rollout_by_id("-")  # costs next to nothing, whatever the size of the store
                return True
            except StoreUnavailableError:
                return False
            except AccessDeniedError as error:
                self._check_refusal(refused_since or time.monotonic(), error)
                if refused_since is None:
                    refused_since = time.monotonic()
                    log.warning("waiting for the token of the store server at %s in %s", self.url, self._token_file)
            await asyncio.sleep(FIRST_PAUSE_SECONDS)

    def _check_refusal(self, since: float, error: AccessDeniedError) -> None:
        if self._token_file is None:
            raise AccessDeniedError(
                f"the store server at {self.url} rejects the token in SHARPEN_TOKEN: set the same token on both sides"
            ) from error
        if time.monotonic() - since > TOKEN_SECONDS:
            raise AccessDeniedError(
                f"the store server at {self.url} expects a different token than the one in {self._token_file}: set "
                "SHARPEN_TOKEN to the token of the process that serves the store"
            ) from error

    async def _look(self, on_end: OnEnd) -> None:
        """Ask now and then: a server that has not answered for a minute is not coming back."""
        away_since: float | None = None
        reminded_at = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_refused.wait(), LOOK_SECONDS)
            self._is_refused.clear()
            try:
                is_there, now = await self._answers(), time.monotonic()
            except AccessDeniedError as error:
                on_end(error)
                return
            if is_there:
                if away_since is not None:
                    log.warning("the store at %s is responding again", self.url)
                away_since = None
            elif away_since is None:
                away_since = reminded_at = now
                log.warning("the store at %s is not responding; waiting up to %g s", self.url, PATIENCE_SECONDS)
            elif now - away_since > PATIENCE_SECONDS:
                log.warning("the store is gone: nothing answers at %s; stopping the runners", self.url)
                on_end(None)
                return
            elif now - reminded_at >= REMIND_SECONDS:
                reminded_at = now
                log.warning("the store at %s has not responded for %.0f s", self.url, now - away_since)

    def ends_work(self, ended: RunnerExit) -> bool:
        """Whether the runner has ended because its store has gone."""
        if ended.error_type == "AccessDeniedError":
            self._is_refused.set()  # the store is asked at once: with a new token the runner continues
        if ended.error_type != "StoreUnavailableError":
            return False
        log.warning("the store is gone; stopping the runner: %s", ended.reason)
        return True

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)


async def reached(host: str, port: int) -> LightningStore:
    """Return the store behind a server, once that answers; whoever asks closes it."""
    served = ServedRemotely(host, port)
    await served.wait()
    return served.address.open()
