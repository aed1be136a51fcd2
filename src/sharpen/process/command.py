"""`CommandProcess`: a program that is not ours, with everything that it starts.

It runs under a launcher (`launcher.py`), which ends all of it as soon as the link to this process is shut: on request,
or because this process has gone, however it ended.
"""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Unpack

from . import launcher
from .child import (
    MAX_OUTPUT_BYTES,
    ChildOptions,
    ChildProcess,
    EndStep,
    ExitReport,
    ProcessError,
    closed_on_error,
    interpreter,
)

LAUNCHER_SECONDS = 15.0  # for a launcher to end its command, beyond the grace


class CommandProcess(ChildProcess):
    """A command, with everything that it starts; also what leaves its process group ends with it.

    A command that cannot be started is a `ProcessError` of `exited`, and so of `wait`, `wait_until` and `end`.

    Args:
        command: The program and its arguments.
        name: What messages and threads call it; None is the name of the program.
        grace_seconds: What it has between SIGTERM and SIGKILL when it is asked to stop or this process has gone.
        temporary_folder: A folder of files that is removed if this process dies first.
        max_output_bytes: How much of a captured output is kept.
        on_line: Called, on another thread, with every line of a captured output.
        options: How it is started; its outputs are captured unless they say otherwise.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str | None = None,
        grace_seconds: float = 5.0,
        temporary_folder: str | os.PathLike[str] = "",
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        on_line: Callable[[str], None] | None = None,
        **options: Unpack[ChildOptions],
    ) -> None:
        self._program, self._grace_seconds = command[0], grace_seconds
        self.command_pid: int | None = None
        """The process of the command, once it has started; `pid` is that of its launcher."""
        ours, theirs = socket.socketpair()
        settings = [str(theirs.fileno()), str(grace_seconds), os.fspath(temporary_folder)]
        words = [interpreter(), "-I", "-S", launcher.__file__, *settings, *command]
        captured: ChildOptions = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        with theirs, closed_on_error(ours):
            try:
                super().__init__(
                    name or command[0],
                    words,
                    [theirs.fileno()],
                    captured,
                    max_output_bytes=max_output_bytes,
                    on_line=on_line,
                )
            except OSError as error:
                raise self._not_started(error) from error
        self._link = ours
        self._start_waiting()

    def _not_started(self, error: OSError) -> ProcessError:
        where = f" ({error.filename})" if error.filename else ""
        return ProcessError(f"the program {self._program!r} cannot be started: {error.strerror}{where}")

    def end(self, *steps: EndStep) -> ExitReport:
        """Without steps: SIGTERM for everybody, SIGKILL after the grace."""
        return super().end(*(steps or [(None, self._grace_seconds + LAUNCHER_SECONDS)]))

    async def end_async(self, *steps: EndStep) -> ExitReport:
        return await super().end_async(*(steps or [(None, self._grace_seconds + LAUNCHER_SECONDS)]))

    def ask_to_stop(self) -> None:
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            self._link.send(b"%d\n" % number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ask_to_stop()

    def abandon(self) -> None:
        self._link.close()

    def _wait(self) -> None:
        said: dict[str, int] = {}
        with contextlib.suppress(OSError), self._link.makefile("rb") as lines:
            for line in lines:
                word, _, number = line.decode().partition(" ")
                said[word] = int(number)
                self.command_pid = said.get("started")
        self._process.wait()
        self._link.close()
        if "unstarted" in said:
            error = OSError(said["unstarted"], os.strerror(said["unstarted"]))
            found = self._not_started(error)
            found.__cause__ = error
            self.exited.set_exception(found)
        elif "ended" not in said:  # the launcher was killed, and the command with it
            if self.command_pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.command_pid, signal.SIGKILL)
            self._settle(-signal.SIGKILL)
        else:
            self._settle(said["ended"])
