"""Sync calls from places where an event loop runs already, such as a notebook: another thread does the work."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def start_thread(work: Callable[[], T], name: str) -> "Future[T]":
    """Begin in a thread of its own; whatever it raises is in the future."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def wait_for_thread(work: Callable[[], T], name: str, *, on_interrupt: Callable[[], None]) -> T:
    """Do the work in a thread and wait; Ctrl-C asks it to stop, and is raised once it has."""
    future = start_thread(work, name)
    try:
        return future.result()
    except KeyboardInterrupt:
        if not future.done():
            on_interrupt()
            future.exception()
        raise


def call_sync(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, wherever the caller stands."""
    if not has_running_loop():
        return asyncio.run(make())
    return start_thread(lambda: asyncio.run(make()), "sharpen-call").result()
