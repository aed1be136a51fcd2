"""How running work is interrupted: signals to this process, and the cancellation of a coroutine on another thread.

During a run the first Ctrl-C or SIGTERM ends it in order, a second one at once. A signal handler runs between two
steps of the main thread, which may hold any lock. So it takes none: it only posts the signal to the supervising loop.

A fork of a process that handles signals gets the handlers back that were there before: it shares the descriptor that
wakes the loop of its parent, so a SIGTERM meant for the fork would end the parent, and with our handlers the fork
would not die of the signal. Signals that reach a fork before its handlers are restored wait.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any

from ..store import LightningStore
from .base import Connect

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MAX_ROUNDS = 10  # tasks that are cancelled may start others
Handlers = dict[signal.Signals, Any]


class Interrupts:
    """Catches the signals while it is entered, where that is possible: on the main thread.

    `on_signal` is called with the number of the signal, and whether it is not the first.
    """

    def __init__(self, on_signal: Callable[[int, bool], None]) -> None:
        self._on_signal = on_signal
        self._count = 0
        self._before: Handlers = {}
        self.may_raise = False
        """Whether a repeated signal raises `KeyboardInterrupt` in the main thread."""
        self._is_forced = False

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in SIGNALS}
            # Who ignores a signal (as under nohup) wants it ignored; None was not set by Python.
            self._before = {number: each for number, each in before.items() if each not in (signal.SIG_IGN, None)}
            for number in self._before:
                signal.signal(number, self._receive)
            if self._before:
                restore_in_forks(self._before)
        return self

    def __exit__(self, *error: object) -> None:
        self.may_raise = False
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._before in _replaced:
            _replaced.remove(self._before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._is_forced:
            self._count += 1
            self._on_signal(number, self._count > 1)
        if self.may_raise and (self._is_forced or self._count > 1):
            self.may_raise = False
            raise KeyboardInterrupt

    def force(self) -> None:
        """Raise `KeyboardInterrupt` in whatever the main thread does; called from another thread."""
        main = threading.main_thread().ident
        if self._before and self.may_raise and main is not None:
            self._is_forced = True
            signal.pthread_kill(main, next(iter(self._before)))


# -- forks -------------------------------------------------------------------------------------------

_replaced: list[Handlers] = []  # what our handlers stand in for, the latest last
_of_thread = threading.local()


def restore_in_forks(before: Handlers) -> None:
    """Have forks of this process, as long as a handler of ours replaces these, begin with these."""
    _replaced.append(before)


def _hold_signals() -> None:
    if _replaced:
        _of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let_signals_in() -> None:
    mask = _of_thread.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _restore() -> None:
    if _replaced:
        signal.set_wakeup_fd(-1)
    while _replaced:
        for number, handler in _replaced.pop().items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _let_signals_in()


os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_restore)


# -- coroutines --------------------------------------------------------------------------------------


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event of this loop is set; return False if it was not within the time."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


class CancellableCall:
    """Work with the store of a run, in an event loop on the thread that calls `run`; any thread may cancel it."""

    def __init__(self, connect: Connect, work: Callable[[LightningStore], Awaitable[None]]) -> None:
        self._connect, self._work = connect, work
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.was_cancelled = False
        self.error: BaseException | None = None
        """What ended it, if it was an error; a cancellation that was asked for here is none."""

    def run(self) -> None:
        """Return when it has ended, whatever ended it."""
        try:
            run_to_end(self._run())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the end decides what it means
            if not (self.was_cancelled and isinstance(error, asyncio.CancelledError)):
                self.error = error

    async def _run(self) -> None:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self.was_cancelled:
                return
        async with self._connect() as store:
            await self._work(store)

    def cancel(self) -> None:
        with self._lock:
            self.was_cancelled = True
            if self._loop is not None and self._task is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(self._task.cancel)


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine like `asyncio.run`, but leave every `asyncio.to_thread` that hangs instead of waiting for it."""
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
        if not (tasks := asyncio.all_tasks(loop)):
            return
        for task in tasks:
            task.cancel()
        for outcome in loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True)):
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                loop.call_exception_handler({"message": "a task failed in a loop that ends", "exception": outcome})
