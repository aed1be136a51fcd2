"""Work in threads beside the event loop, which ends soon when the run is cancelled.

A sync algorithm runs in such a thread, where no event loop runs: it may call `asyncio.run(store...)`.
"""

import asyncio
import contextvars
import ctypes
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from ..types import Dataset
from .base import Algorithm

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
AGAIN_SECONDS = 0.5
PATIENCE_SECONDS = 5.0


class BrokenOff(BaseException):
    """Raised inside a computation that nobody waits for any more."""


class ThreadInterrupted(RuntimeError):
    """What ran in a thread was ended by an interrupt or by `sys.exit`."""


async def compute(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread of its own. When this call is cancelled, it is broken off at its next line of Python."""
    return await run_in_thread(partial(work, *args, **kwargs), what="a computation", interrupt=BrokenOff)


async def finish(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread. When this call is cancelled, it is raised when the work is done."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def run_in_thread(
    work: Callable[[], T],
    *,
    what: str,
    interrupt: type[BaseException],
    wake: Callable[[], None] = lambda: None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> T:
    """What `work` returns. When this call is cancelled, `interrupt` is raised inside it.

    `wake` is called with it: a thread that waits in an event loop notices nothing until the loop turns.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    ended: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            _tell(loop, ended, error)
        else:
            _tell(loop, ended, None, result)

    thread = threading.Thread(target=run, name="sharpen-computing", daemon=True)
    thread.start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        await _interrupt(thread, ended, interrupt, wake, patience_seconds)
        if thread.is_alive() and not ended.done():
            log.warning("%s did not stop within %g s; leaving its thread running", what, patience_seconds)
        raise


def _tell(
    loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[Any]", error: BaseException | None, result: Any = None
) -> None:
    def settle() -> None:
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(_for_a_future(error))
            ended.exception()  # whoever waited may have gone

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


def _for_a_future(error: BaseException) -> Exception:
    """A future cannot hold StopIteration, and an interrupt inside one would stop its loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = ThreadInterrupted(f"the thread was stopped by {error!r}")
    wrapped.__cause__ = error
    return wrapped


async def _interrupt(
    thread: threading.Thread,
    ended: "asyncio.Future[Any]",
    interrupt: type[BaseException],
    wake: Callable[[], None],
    patience_seconds: float,
) -> None:
    """Again and again: code of others may catch it, and one long operation notices nothing until it ends."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience_seconds
    while thread.is_alive() and not ended.done() and loop.time() < end:
        if thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(interrupt))
        wake()
        await asyncio.wait([ended], timeout=AGAIN_SECONDS)


# -- a sync algorithm in a thread ---------------------------------------------------------------------


ALGORITHM_PATIENCE_SECONDS = 10.0


async def run_to_end(
    algorithm: Algorithm[Any], train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
) -> None:
    """Run an algorithm, sync or async, that has been given all it needs."""
    if algorithm.is_async():
        result: Any = algorithm.run(train_dataset, val_dataset)
    else:
        wake = getattr(algorithm.get_store(), "wake_waiting", _wake_nobody)
        result = await run_in_own_thread(lambda: algorithm.run(train_dataset, val_dataset), wake=wake)
    if hasattr(result, "__await__"):
        await result


async def run_in_own_thread(work: Callable[[], Any], *, wake: Callable[[], None]) -> Any:
    """Run `work` and give back what it returns. When this call is cancelled, `KeyboardInterrupt` is raised inside."""
    return await run_in_thread(
        work, what="the algorithm", interrupt=KeyboardInterrupt, wake=wake, patience_seconds=ALGORITHM_PATIENCE_SECONDS
    )


def _wake_nobody() -> None:
    """For a store that does not know who waits in it."""
