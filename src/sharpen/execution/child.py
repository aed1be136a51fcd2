"""The program of a child process: `python -m sharpen.execution.child FD ROLE`.

It imports what its role needs, waits for one job, does it and ends. It never runs the user's script. What it tells
its parent is one JSON object a line: `taken`, `alive`, `ready`, `lease`, `finished`, `done`, `error`. When the parent
has gone, a runner finishes what it has in hand, and the parent's watcher ends who is left (`watcher.py`).
"""

import contextlib
import io
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from sharpen.execution import jobs
from sharpen.execution.events import ThreadingEvent

IDLE_SECONDS = 300.0  # then a child that nobody needs ends
UNWATCHED_SECONDS = 30.0  # then the watcher was killed too, and an orphan ends itself
TERMINATE_SECONDS = 5.0
EXIT_SECONDS = 3.0
SIGN_SECONDS = 0.5  # how often the parent of a runner hears that this process still runs Python


class Parent:
    """The parent process, as its child sees it."""

    def __init__(self, link: socket.socket, role: str) -> None:
        self._link, self.role = link, role
        self._lock = threading.Lock()
        self.stop = ThreadingEvent()
        self.is_gone = False
        self.on_gone: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None

    def tell(self, *, surely: bool = True, **message: Any) -> None:
        """Say something. What is said again and again is left out while the parent does not listen."""
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                sent = 0 if surely else self._link.send(line, socket.MSG_DONTWAIT)
                self._link.sendall(line[sent:])
            except OSError:
                return  # it is busy, or it has gone, which the thread that listens notices

    def wait_for_job(self) -> tuple[dict[str, Any], bytes, list[int]] | None:
        """The job; None when the parent has gone, or needs nobody."""
        self._link.settimeout(IDLE_SECONDS)
        try:
            received = jobs.receive(self._link)
        except OSError:
            return None
        self._link.settimeout(None)
        return received

    def listen(self) -> None:
        threading.Thread(target=self._listen, name="sharpen-parent", daemon=True).start()

    def keep_signing(self) -> None:
        """Send signs of life from now to the end of the process."""
        threading.Thread(target=self._keep_signing, name="sharpen-signs", daemon=True).start()

    def _keep_signing(self) -> None:
        while not self.is_gone:
            self.tell(alive=True, debugged=_is_debugged(), surely=False)
            time.sleep(SIGN_SECONDS)

    def _listen(self) -> None:
        while self._hear():
            self._stop()
        self.is_gone = True
        self.on_gone()
        if self.role != "store":  # runners have lost their parent too, and report to the store
            self._stop()
        time.sleep(UNWATCHED_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TERMINATE_SECONDS)
        os.killpg(0, signal.SIGKILL)

    def is_telling_to_stop(self) -> bool:
        """Whether it has asked for the end or has gone, also where the thread that listens has not seen it yet."""
        if self.stop.is_set() or self.is_gone:
            return True
        try:
            self._link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False  # it is there, and has nothing to say
        except OSError:
            return True
        return True

    def _stop(self) -> None:
        self.stop.set()
        self.on_stop()

    def _hear(self) -> bool:
        """Wait for the next word; False when the parent has gone."""
        try:
            return bool(self._link.recv(1024))
        except OSError:
            return False


def _is_debugged() -> bool:
    """Whether a Python debugger may stop all threads of this process."""
    if "debugpy" in sys.modules or "pydevd" in sys.modules or threading.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


def main() -> None:
    parent = Parent(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    try:
        code = _do_one_job(parent)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent shows it
        parent.tell(error=traceback.format_exc(), kind=type(error).__name__)
        code = 1
    _end(parent, code)


def _do_one_job(parent: Parent) -> int:
    work = _prepare(parent.role)
    received = parent.wait_for_job()
    if received is None:
        return 0
    parent.tell(taken=True)
    parent.listen()
    if parent.role == "runner":
        parent.keep_signing()
    header, payload, files = received
    _take_outputs(files[:2])
    surroundings = jobs.Surroundings(**header["surroundings"])
    surroundings.take_over(f"{parent.role} {header['job'].get('worker_id', '')}".strip())
    return work(parent, header["job"], payload, files[2:])


Work = Callable[[Parent, dict[str, Any], bytes, list[int]], int]


def _prepare(role: str) -> Work:
    """Import what the role needs."""
    if role == "store":
        from sharpen.execution.store_role import serve

        return serve
    from sharpen.execution.runner_role import run

    return run


def _take_outputs(files: list[int]) -> None:
    """Write to where the parent writes; line by line, as its terminal would show it."""
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(file, number)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _end(parent: Parent, code: int) -> None:
    """End within a bounded time, whatever threads the agent has left behind."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    if parent.is_gone:
        os.killpg(0, signal.SIGKILL)  # whatever the agent has started has nobody else to end it
    threading.Thread(target=_cut_short, args=(code,), daemon=True).start()
    sys.exit(code)


def _cut_short(code: int) -> None:
    time.sleep(EXIT_SECONDS)
    os._exit(code)


if __name__ == "__main__":
    main()
