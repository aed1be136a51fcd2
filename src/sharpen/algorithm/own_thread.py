"""A sync algorithm runs in a thread of its own, where no event loop runs: it may call `asyncio.run(store...)`."""

import asyncio
import contextvars
import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any

from ..types import Dataset
from .base import Algorithm

log = logging.getLogger(__name__)
INTERRUPT_SECONDS = 1.0
PATIENCE_SECONDS = 10.0


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


def _wake_nobody() -> None:
    """For a store that does not know who waits in it."""


async def run_in_own_thread(work: Callable[[], Any], *, wake: Callable[[], None]) -> Any:
    """Run `work` and give back what it returns. When this call is cancelled, `KeyboardInterrupt` is raised inside.

    `wake` is called with it: a thread that waits in an event loop notices nothing until the loop turns.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    ended: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised again in the loop that waits for it
            _tell(loop, ended, error, None)
        else:
            _tell(loop, ended, None, result)

    thread = threading.Thread(target=run, name="sharpen-algorithm", daemon=True)
    thread.start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        await _interrupt(thread, ended, wake)
        raise


def _tell(
    loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[Any]", error: BaseException | None, result: Any
) -> None:
    def settle() -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(_for_a_future(error))
            ended.exception()  # whoever waited may have gone

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


class AlgorithmInterrupted(RuntimeError):
    """A sync algorithm ended by an interrupt or by `sys.exit`."""


def _for_a_future(error: BaseException) -> Exception:
    """A future cannot hold StopIteration, and an interrupt inside one would stop its loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = AlgorithmInterrupted(f"the algorithm was ended by {error!r}")
    wrapped.__cause__ = error
    return wrapped


async def _interrupt(thread: threading.Thread, ended: "asyncio.Future[Any]", wake: Callable[[], None]) -> None:
    """Ask again and again: code that catches an interrupt once may be stuck elsewhere the next moment."""
    end = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while thread.is_alive() and asyncio.get_running_loop().time() < end:
        if thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )
        wake()
        await asyncio.wait([ended], timeout=INTERRUPT_SECONDS)
        if ended.done():
            return
    if thread.is_alive():
        log.warning("the algorithm did not stop within %g s; its thread is left behind", PATIENCE_SECONDS)
