"""A gateway in a thread of this process, with an event loop of its own: the caller's loop may be busy."""

import asyncio
import logging
import os
import socket
import threading
from concurrent.futures import Future

from ...errors import RunError
from ...store import LightningStore
from ...web.serving import new_loop
from ..recording.redaction import Redact
from ..settings import GatewaySettings
from .assembly import Service, assembled
from .orders import Answer, Order

log = logging.getLogger(__name__)

START_SECONDS = 30.0
STOP_SECONDS = 30.0


class ThreadGateway:
    """It answers when the constructor returns. What fails there leaves nothing behind."""

    def __init__(
        self, settings: GatewaySettings, bound: socket.socket, store: LightningStore | None, redact: Redact | None
    ) -> None:
        self._name, self._bound = settings.name, bound
        self.port = int(bound.getsockname()[1])
        self._started: Future[None] = Future()
        self.last: Answer | None = None
        self._is_asked_to_stop = False
        self._thread = threading.Thread(
            target=self._run, args=(settings, store, redact), name=f"sharpen-{settings.name}", daemon=True
        )
        self._thread.start()
        self._wait_until_started()

    def _wait_until_started(self) -> None:
        try:
            self._started.result(START_SECONDS)
        except TimeoutError:
            self.stop()
            raise RunError(f"the gateway {self._name!r} did not respond within {START_SECONDS:g} s") from None
        except BaseException:
            self.stop()
            raise

    # -- in its thread -------------------------------------------------------------------------------

    def _run(self, settings: GatewaySettings, store: LightningStore | None, redact: Redact | None) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve(settings, store, redact))
        except BaseException as error:
            if self._started.done():
                log.exception("the gateway %r failed and has stopped", self._name)
            else:
                self._started.set_exception(error)
        finally:
            self._bound.close()

    async def _serve(self, settings: GatewaySettings, store: LightningStore | None, redact: Redact | None) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._is_asked_to_stop:
            return
        try:
            async with assembled(settings, store, redact=redact) as service:
                self._service: Service = service
                ready = lambda: self._started.set_result(None)  # noqa: E731
                await service.serve(self._bound, ready, self._stopping)
            self.last = service.look()
        finally:
            release = getattr(store, "release_loop", None)
            if release is not None:
                await release()

    # -- from any thread -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return os.getpid()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, order: Order) -> "Future[Answer]":
        try:
            return asyncio.run_coroutine_threadsafe(self._service.obey(order), self._loop)
        except RuntimeError as error:
            raise RunError(f"the gateway {self._name!r} has stopped: call restart() to start it again") from error

    def stop(self) -> Answer | None:
        """End in order, within a bounded time; how things stood then."""
        self._is_asked_to_stop = True
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except (AttributeError, RuntimeError):
            log.debug("the gateway %r has not started, or has already stopped", self._name)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            log.error("the gateway %r did not stop within %g s; its thread keeps running", self._name, STOP_SECONDS)
        return self.last
