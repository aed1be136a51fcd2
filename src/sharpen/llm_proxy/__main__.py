"""The program of a gateway's process: `python -m sharpen.llm_proxy`, started by `LLMProxy`.

It reads its job as one line from standard input, serves, and carries out the orders that follow. It ends in order when
it is told to, on SIGTERM and SIGINT, and when its parent has gone: then it serves on for a moment, since runners have
lost their parent too, and hand back what their agents work on.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import msgspec

from sharpen.errors import ConfigError, SharpenError
from sharpen.llm_proxy.serving import wire
from sharpen.llm_proxy.serving.assembly import Service, assembled
from sharpen.llm_proxy.serving.orders import Stop
from sharpen.logging import apply_settings
from sharpen.store import LightningStore
from sharpen.web.serving import new_loop

log = logging.getLogger("sharpen.llm_proxy")

END_SECONDS = 28.0  # from the word to stop to the end, whatever hangs
ORPHAN_SECONDS = 6.0  # the same, once the parent has gone
LINGER_SECONDS = 3.0  # from the end of the parent to the word to stop: runners let go of their attempts within it
LOOK_SECONDS = 1.0


def _lines(number: int) -> Iterator[bytes]:
    """The lines of an open file. A buffered one would be locked by the thread that waits in it when Python ends."""
    rest = b""
    while data := os.read(number, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


class Parent:
    """The parent process, as its child sees it."""

    def __init__(self) -> None:
        # Standard output belongs to the answers: whatever prints in this process goes to standard error.
        self._answers = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._orders = _lines(0)
        self._lock = threading.Lock()
        self.is_served = False

    def job(self) -> wire.Job | None:
        """The job; None when the parent has gone already."""
        line = next(self._orders, None)
        try:
            return None if line is None else wire.decode_job(line)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"standard input has no valid settings ({error}): this program is started by LLMProxy, not by hand"
            ) from None

    def tell(self, told: wire.Told) -> None:
        with self._lock, contextlib.suppress(OSError):  # it has gone, which the thread that listens notices
            line = wire.line_of(told)
            while line:
                line = line[self._answers.write(line) :]

    def tell_ready(self, service: Service) -> None:
        self.tell(wire.Told(wire.READY, answer=service.look()))
        self.is_served = True

    def tell_failure(self, error: Exception) -> None:
        """At its start the parent raises it; later only the log tells."""
        if self.is_served or not isinstance(error, SharpenError):
            log.error("the gateway failed", exc_info=error)
        self.tell(wire.Told(wire.READY, error=wire.Problem.of(error)))

    def listen(self, service: Service, stopping: asyncio.Event) -> None:
        arguments = (asyncio.get_running_loop(), service, stopping)
        threading.Thread(target=self._listen, args=arguments, name="sharpen-parent", daemon=True).start()

    def _listen(self, loop: asyncio.AbstractEventLoop, service: Service, stopping: asyncio.Event) -> None:
        for line in self._orders:
            asked = wire.decode_asked(line)
            if isinstance(asked.order, Stop):
                _stop(loop, stopping, END_SECONDS)
            else:
                asyncio.run_coroutine_threadsafe(self._obey(service, asked), loop)
        time.sleep(LINGER_SECONDS)
        _stop(loop, stopping, ORPHAN_SECONDS)

    async def _obey(self, service: Service, asked: wire.Asked) -> None:
        try:
            told = wire.Told(asked.number, answer=await service.obey(asked.order))
        except Exception as error:  # noqa: BLE001 - the parent raises it again
            told = wire.Told(asked.number, error=wire.Problem.of(error))
        self.tell(told)


def _stop(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(stopping.set)
    threading.Thread(target=_cut_short, args=(seconds,), name="sharpen-end", daemon=True).start()


def _cut_short(seconds: float) -> None:
    time.sleep(seconds)
    log.error("the gateway did not shut down within %g s", seconds)
    os._exit(1)


async def _serve(parent: Parent, job: wire.Job) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, loop, stopping, END_SECONDS)
    async with _opened(job) as store:
        async with assembled(job.settings, store) as service:
            parent.listen(service, stopping)
            looking = asyncio.create_task(_look_after(job.parent, stopping))
            ready = lambda: parent.tell_ready(service)  # noqa: E731
            _tune_collector()
            await service.serve(socket.socket(fileno=job.socket), ready, stopping)
            looking.cancel()
        parent.tell(wire.Told(wire.ENDED, answer=service.look()))


@contextlib.asynccontextmanager
async def _opened(job: wire.Job) -> AsyncIterator[LightningStore | None]:
    store = None if job.store is None else job.store.open()
    try:
        yield store
    finally:
        if store is not None:
            await store.close()


async def _look_after(parent: int, stopping: asyncio.Event) -> None:
    """A fork of the parent may hold our pipe open after the parent has gone."""
    while os.getppid() == parent:  # noqa: ASYNC110 - the system tells it to nobody who does not ask
        await asyncio.sleep(LOOK_SECONDS)
    await asyncio.sleep(LINGER_SECONDS)
    _stop(asyncio.get_running_loop(), stopping, ORPHAN_SECONDS)


def _tune_collector() -> None:
    """Calls make many short-lived objects and leave no circles: looking for some after every 700 frees nothing.

    What is loaded and built by now stays to the end, so it is never looked through again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def main() -> int:
    parent = Parent()
    try:
        job = parent.job()
    except ConfigError as error:
        sys.stderr.write(f"sharpen gateway: {error}\n")
        return 2
    if job is None:
        return 0
    sys.path[:] = job.path
    apply_settings(job.log, role=job.settings.name)
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(parent, job))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent is told
        parent.tell_failure(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
