"""Running a coroutine to its end, without waiting for threads that somebody left behind."""

import asyncio
from collections.abc import Coroutine
from typing import Any

MAX_ROUNDS = 10  # tasks that are cancelled may start others


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Like `asyncio.run`, which would wait for every `asyncio.to_thread` that hangs; those threads are left."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_report)
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(work)
    finally:
        try:
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An interrupt that broke into a task has reached the caller of the loop already."""
    if not isinstance(context.get("exception"), KeyboardInterrupt | SystemExit):
        loop.default_exception_handler(context)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for _ in range(MAX_ROUNDS):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
        for task in tasks:
            _report_failure(loop, task)


def _report_failure(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        message = "a task failed while its loop was closed"
        loop.call_exception_handler({"message": message, "exception": error, "task": task})
