"""Another rank's process, as rank 0 sees it.

It is a fresh interpreter in a session of its own: Ctrl-C in the terminal reaches only the user's process, and whatever
the rank has started can be killed with it. Both share one socket, by which each notices that the other has gone.
"""

import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ....errors import ConfigError
from .link import Link, LinkClosed
from .messages import AnyOrder, Failure, Reply, Stop, decode_reply, encode_asked

log = logging.getLogger(__name__)

_NUM_LAST_WORDS = 30
_PATIENCE_SECONDS = 1.0


class RankProcess:
    """One child. `on_end` is called, in a thread, when it has ended unasked."""

    def __init__(self, rank: int, on_end: Callable[[], None]) -> None:
        self.rank, self._on_end = rank, on_end
        self._numbers = itertools.count(1)
        self._last_words: deque[str] = deque(maxlen=_NUM_LAST_WORDS)
        self._failure: Failure | None = None
        self._is_asked_to_end = False
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _start(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._link = Link(ours)
        _links.add(self._link)
        self._reading = threading.Thread(target=self._read_output, name=f"sharpen-rank-{rank}-output", daemon=True)
        self._reading.start()
        threading.Thread(target=self._wait, name=f"sharpen-rank-{rank}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def post(self, order: AnyOrder) -> int:
        """Give an order, and return its number. One that has ended does not take it: its reply tells."""
        number = next(self._numbers)
        with contextlib.suppress(LinkClosed):
            self._link.send(encode_asked(number, order))
        return number

    def reply(self, number: int, seconds: float) -> Reply | None:
        """The reply to an order; None if it did not come in time. LinkClosed when the process has gone."""
        while (frame := self._link.receive(seconds)) is not None:
            found = decode_reply(frame)
            self._failure = found.failure or self._failure
            if found.number == number:
                return found
        return None

    def ask_to_end(self) -> None:
        """It ends when it has done what it was told before."""
        self._is_asked_to_end = True
        with contextlib.suppress(LinkClosed):
            self._link.send(encode_asked(next(self._numbers), Stop()), patience_seconds=_PATIENCE_SECONDS)

    def end(self, seconds: float) -> None:
        """Wait for its end so long, then insist."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        self.kill()

    def kill(self) -> None:
        """End it, and whatever it has started, at once."""
        self._is_asked_to_end = True
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._link.close()

    def obituary(self) -> str:
        """How it ended, and what it said last."""
        self._reading.join(1.0)
        with contextlib.suppress(LinkClosed):
            self.reply(-1, 0.0)  # what it said before it ended
        how = exit_in_words(self._process.wait())
        words = "\n".join(self._last_words) if self._failure is None else self._failure.traceback.rstrip()
        return f"{how}; its last output:\n{words}" if words else f"{how}, without any output"

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last_words.append(line.rstrip())
            log.debug("rank %d: %s", self.rank, line.rstrip())

    def _wait(self) -> None:
        self._process.wait()
        if not self._is_asked_to_end:
            self._on_end()


_links: "weakref.WeakSet[Link]" = weakref.WeakSet()


def _let_go_after_fork() -> None:
    """A fork of this process holds no link: otherwise ranks would not notice when this process has gone."""
    for link in list(_links):
        link.close()


os.register_at_fork(after_in_child=_let_go_after_fork)


def exit_in_words(code: int) -> str:
    """An exit code as people know it."""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, which the system sends when memory runs out"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _start(file: int) -> "subprocess.Popen[str]":
    if not sys.executable:
        raise ConfigError("the path of the Python interpreter is unknown (sys.executable): use one device")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # -P: a file in the user's folder must not take the place of a module that the child imports at its start.
    return subprocess.Popen(
        [sys.executable, *flags, "-P", "-m", "sharpen.llm.policy.ranks.child", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[file],
        start_new_session=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """A child finds this package where its parent found it."""
    here = str(Path(__file__).parents[4])
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": here + os.pathsep + before if before else here}
