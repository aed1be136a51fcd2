"""Lets a trace follow the threads that an agent starts.

Threads begin with an empty context in the Pythons we support, so a span in them would belong to no attempt. While a
tracer is on, `Thread.start` and `ThreadPoolExecutor.submit` called inside a trace run their function in a copy of the
caller's context. Outside a trace they do what they always do, and after the last tracer they are the originals again.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import wraps
from typing import Any, cast

from .shared import Patch, Shared
from .trace import current_trace


@wraps(threading.Thread.start)
def _start(thread: threading.Thread) -> None:
    if current_trace() is not None and not thread.ident:
        _run_in_copy(thread)
    _START.original(thread)


def _run_in_copy(thread: threading.Thread) -> None:
    context, run = copy_context(), thread.run

    def run_in_context() -> None:
        # The thread is its own again, and this closure is freed when it ends.
        del thread.run
        context.run(run)

    thread.run = run_in_context  # type: ignore[method-assign]


@wraps(ThreadPoolExecutor.submit)  # type: ignore[arg-type]
def _submit(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
    submit = _SUBMIT.original
    if current_trace() is None:
        return cast("Future[Any]", submit(pool, function, *args, **kwargs))
    # In an empty context, so that a thread which the pool starts now does not keep this trace for its whole life.
    return cast("Future[Any]", Context().run(submit, pool, copy_context().run, function, *args, **kwargs))


_START = Patch(threading.Thread, "start", _start)
_SUBMIT = Patch(ThreadPoolExecutor, "submit", _submit)


def _follow() -> None:
    _START.put_on()
    _SUBMIT.put_on()


def _stop_following() -> None:
    _START.take_off()
    _SUBMIT.take_off()


following_threads = Shared(_follow, _stop_following)
