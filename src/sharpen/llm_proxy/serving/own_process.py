"""A gateway in a process of its own, as its parent sees it.

The child is a fresh interpreter in a session of its own: Ctrl-C in the terminal reaches only the parent, which stops
it in order. When the parent has gone, however it went, the pipe closes and the child ends.
"""

import contextlib
import io
import itertools
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import msgspec

from ...errors import ConfigError, RunError, SharpenError
from . import wire
from .orders import Answer, Order, Stop
from .store_address import StoreServing

log = logging.getLogger(__name__)

START_SECONDS = 60.0
STOP_SECONDS = 32.0  # calls under way get their grace, spans are written; then it is asked harder
SIGNAL_SECONDS = 3.0
WRITE_SECONDS = 5.0  # for a child to take an order


class ProcessGateway:
    """It answers when the constructor returns. What fails there leaves nothing behind."""

    def __init__(self, job: wire.Job, bound: socket.socket, serving: StoreServing | None) -> None:
        line = wire.line_of(job)
        self._name, self._serving = job.settings.name, serving
        self.port = int(bound.getsockname()[1])
        self._numbers = itertools.count(wire.READY + 1)
        self._waiting: dict[int, Future[Answer]] = {wire.READY: Future(), wire.ENDED: Future()}
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._is_over = self._is_stopping = False
        ready, self._ended = self._waiting[wire.READY], self._waiting[wire.ENDED]
        self._process = _spawn(bound)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, io.BufferedReader(cast(io.RawIOBase, self._process.stdout))
        os.set_blocking(self._orders.fileno(), False)
        self._unsent = b""
        _ours.add(self)
        self._reading = threading.Thread(target=self._read, name=f"sharpen-{self._name}-reading", daemon=True)
        self._reading.start()
        self._write(line, seconds=START_SECONDS)
        self._wait_until_ready(ready)

    def _wait_until_ready(self, ready: "Future[Answer]") -> None:
        try:
            ready.result(START_SECONDS)
        except BaseException as error:
            self._is_stopping = True
            self.kill()
            if isinstance(error, TimeoutError) and not isinstance(error, SharpenError):
                raise RunError(f"the gateway {self._name!r} did not respond within {START_SECONDS:g} s") from None
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def last(self) -> Answer | None:
        has_told = self._ended.done() and self._ended.exception() is None
        return self._ended.result() if has_told else None

    # -- orders and answers --------------------------------------------------------------------------

    def ask(self, order: Order) -> "Future[Answer]":
        future: Future[Answer] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._is_over:
                raise self._down()
            self._waiting[number] = future
        self._write(wire.line_of(wire.Asked(number, order)), seconds=WRITE_SECONDS)
        return future

    def _write(self, line: bytes, *, seconds: float) -> None:
        """A child that has ended does not read any more: whoever waits for its answer is told by the reader.

        One that is stopped may not read for a while; what it has not taken in time leaves with the next order.
        """
        with self._writing, contextlib.suppress(OSError, ValueError):
            self._unsent += line
            end, pipe = time.monotonic() + seconds, self._orders.fileno()
            while self._unsent and _takes_more(pipe, end - time.monotonic()):
                self._unsent = self._unsent[os.write(pipe, self._unsent) :]

    def _read(self) -> None:
        """Hand out answers until the child has ended; then nobody may wait any longer."""
        for line in self._answers:
            try:
                self._hear(wire.decode_told(line))
            except msgspec.MsgspecError as error:
                self._mishear(error)
        code = self._process.wait()
        with self._lock:
            left, self._waiting, self._is_over = self._waiting, {}, True
        for future in left.values():
            _settle(future, self._down())
        if not self._is_stopping:
            log.error("the process of the gateway %r ended unexpectedly (%s)", self._name, _in_words(code))

    def _hear(self, told: wire.Told) -> None:
        with self._lock:
            future = self._waiting.pop(told.number, None)
        if future is not None:
            _settle(future, told.error.as_error() if told.error is not None else told.answer)

    def _mishear(self, error: msgspec.MsgspecError) -> None:
        """Nobody knows whose answer it was, so nobody may go on waiting for it."""
        log.error("the process of the gateway %r sent an unreadable message: %s", self._name, error)
        with self._lock:
            left = [self._waiting.pop(number) for number in list(self._waiting) if number > wire.READY]
        for future in left:
            _settle(future, RunError(f"the process of the gateway {self._name!r} sent an unreadable message"))

    def _down(self) -> RunError:
        code = self._process.poll()
        return RunError(
            f"the process of the gateway {self._name!r} has ended ({_in_words(code)}): see its output on standard "
            "error; call restart() to start it again"
        )

    # -- its end -------------------------------------------------------------------------------------

    def stop(self) -> Answer | None:
        """End in order, within a bounded time; how things stood then, if it could still tell."""
        self._is_stopping = True
        with contextlib.suppress(RunError):
            self.ask(Stop())
        if self._has_ended_within(STOP_SECONDS):
            self._release()
            return self.last
        log.error("the gateway %r did not stop within %g s: killing it", self._name, STOP_SECONDS)
        self._process.send_signal(signal.SIGTERM)
        self._has_ended_within(SIGNAL_SECONDS)
        self.kill()
        return None

    def kill(self) -> None:
        """End it at once, and release what was held for it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._release()

    def _has_ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _release(self) -> None:
        self._reading.join()
        self._let_go()
        self._answers.close()
        if self._serving is not None:
            serving, self._serving = self._serving, None
            serving.close()

    def _let_go(self) -> None:
        _ours.discard(self)
        self._orders.close()


_ours: "weakref.WeakSet[ProcessGateway]" = weakref.WeakSet()


def _let_go_after_fork() -> None:
    """A fork of this process holds no pipe: otherwise the child would not notice when this process has gone."""
    for gateway in list(_ours):
        gateway._let_go()


os.register_at_fork(after_in_child=_let_go_after_fork)


def _takes_more(pipe: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _settle(future: "Future[Answer]", outcome: Answer | BaseException | None) -> None:
    if not future.set_running_or_notify_cancel():
        return  # whoever asked has gone
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    elif outcome is not None:
        future.set_result(outcome)
    else:
        future.set_exception(RunError("the process of the gateway sent an empty response"))


def _spawn(bound: socket.socket) -> "subprocess.Popen[bytes]":
    if not sys.executable:
        raise ConfigError("the Python interpreter is unknown (sys.executable is empty): use launch_mode='thread'")
    # -P: a file in the user's folder must not take the place of a module that the child imports at its start.
    flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-m", "sharpen.llm_proxy"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        pass_fds=[bound.fileno()],
        start_new_session=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """The child finds this package where its parent found it."""
    here = str(Path(__file__).parents[3])
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": here + os.pathsep + before if before else here}


def _in_words(code: int | None) -> str:
    if code is None:
        return "its pipe is closed"
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
