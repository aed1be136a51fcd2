"""Long computations beside the event loop, which end soon when the run is cancelled."""

import asyncio
import contextvars
import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
AGAIN_SECONDS = 0.5
PATIENCE_SECONDS = 5.0


class BrokenOff(BaseException):
    """Raised inside a computation that nobody waits for any more."""


async def compute(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread of its own. When this call is cancelled, it is broken off at its next line of Python."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    ended: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = context.run(work, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            _tell(loop, ended, error)
        else:
            _tell(loop, ended, None, result)

    thread = threading.Thread(target=run, name="sharpen-computing", daemon=True)
    thread.start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        await _break_off(thread, ended)
        raise


async def finish(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread. When this call is cancelled, it is raised when the work is done."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _tell(
    loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[Any]", error: BaseException | None, result: Any = None
) -> None:
    def settle() -> None:
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)
            ended.exception()  # whoever waited may have gone

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


async def _break_off(thread: threading.Thread, ended: "asyncio.Future[Any]") -> None:
    """Again and again: code of others may catch it, and one long operation notices nothing until it ends."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_SECONDS
    while thread.is_alive() and not ended.done() and loop.time() < end:
        if thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(BrokenOff))
        await asyncio.wait([ended], timeout=AGAIN_SECONDS)
    if thread.is_alive() and not ended.done():
        log.warning("a computation did not end within %g s; its thread is left behind", PATIENCE_SECONDS)
