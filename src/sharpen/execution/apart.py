"""The store as runners see it that were started apart: they wait for its server, and end when it has gone for good."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from ..errors import AccessDeniedError, StoreUnavailableError
from ..store import LightningStore
from ..store.listening import address
from .serving import client_of
from .tokens import given_token, read_token, token_file

log = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
TOKEN_SECONDS = 5.0  # a server that answers has left its token long before
LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 60.0


class ServedApart:
    """A server that the other role starts, earlier or later than this one."""

    def __init__(self, host: str, port: int) -> None:
        self.url = address(host, port)
        self.token: str | None = None
        self._file: Path = token_file(host, port)
        self._looking: asyncio.Task[None] | None = None

    async def open(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Wait until the server answers; how long that takes is not for us to say."""
        pause, said, refused_since = FIRST_PAUSE_SECONDS, "", 0.0
        while True:
            self.token = given_token() or read_token(self._file)
            try:
                await self._ask(seconds=0)
                break
            except StoreUnavailableError:
                words, refused_since = f"waiting for a store server at {self.url}", 0.0
            except AccessDeniedError as error:
                words = f"waiting for the token of the store server at {self.url} in {self._file}"
                refused_since = refused_since or time.monotonic()
                self._check_refusal(refused_since, error)
            if words != said:
                log.warning("%s", words)
                said = words
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        log.info("connected to the store server at %s", self.url)
        self._looking = asyncio.create_task(self._look(on_end))

    async def _ask(self, *, seconds: float) -> None:
        async with client_of(self.url, self.token, retry_seconds=seconds) as store:
            await store.statistics()

    def _check_refusal(self, since: float, error: AccessDeniedError) -> None:
        if given_token() is not None:
            raise AccessDeniedError(
                f"the store server at {self.url} refuses the token in SHARPEN_TOKEN: give both sides the same one"
            ) from error
        if time.monotonic() - since > TOKEN_SECONDS:
            raise AccessDeniedError(
                f"the store server at {self.url} wants another token than the one in {self._file}: set SHARPEN_TOKEN "
                "to the token of the side that serves the store"
            ) from error

    async def _look(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Ask now and then: a server that has not answered for a minute is not coming back."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._ask(seconds=PATIENCE_SECONDS)
            except StoreUnavailableError as error:
                log.warning("the store has gone, and the runners end: %s", error)
                on_end(None)
                return

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    def kill(self) -> None:
        """It is somebody else's."""

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        return client_of(self.url, self.token)
