"""A program that runs for one rollout, as its runner sees it.

The program stands behind a launcher of its own, which ends it and everything that it has started as soon as the link
to the runner is shut: by `end`, or because the runner has gone, however it went. So nothing here has to succeed for
nobody to be left behind.
"""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ...errors import AgentError, ConfigError
from ...process import watcher as launcher
from .output import Output

OVERTIME_SECONDS = 15.0  # for the launcher to end a program, beyond the grace
LAST_OUTPUT_SECONDS = 2.0  # for what is still in the pipes when everybody has ended
LOOK_SECONDS = 0.005


class Process:
    """One program from its start to its end. To be used in the loop that started it."""

    def __init__(self, command: Sequence[str], *, grace_seconds: float, max_output_bytes: int) -> None:
        self._command, self._grace_seconds = list(command), grace_seconds
        self.stdout, self.stderr = Output(max_output_bytes), Output(max_output_bytes)
        self._news = _News()
        self._launcher: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._link: asyncio.Transport | None = None
        self._pipes: list[asyncio.ReadTransport] = []

    async def start(self, *, folder: Path, stdin: Path | None, cwd: Path | None, env: Mapping[str, str]) -> None:
        """Start the program; `folder` is removed should the runner die."""
        self._socket = self._begin(folder, stdin, cwd, env)
        _links.add(self._socket)
        await self._listen(self._socket)

    def _begin(self, folder: Path, stdin: Path | None, cwd: Path | None, env: Mapping[str, str]) -> socket.socket:
        """Our end of the link."""
        ours, theirs = socket.socketpair()
        with theirs, open(stdin or os.devnull, "rb") as source:
            try:
                self._launcher = self._launch(theirs, folder, source, cwd, env)
            except OSError as error:
                ours.close()
                raise AgentError(_why_not_started(error, self._command[0])) from error
        return ours

    def _launch(
        self, link: socket.socket, folder: Path, stdin: IO[bytes], cwd: Path | None, env: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        settings = [str(link.fileno()), str(self._grace_seconds), str(folder)]
        return subprocess.Popen(
            [_interpreter(), "-I", "-S", launcher.__file__, *settings, *self._command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[link.fileno()],
            cwd=cwd,
            env=env,
            start_new_session=True,  # Ctrl-C in the terminal reaches only us
        )

    async def _listen(self, link: socket.socket) -> None:
        loop, launcher = asyncio.get_running_loop(), self._launcher
        assert launcher is not None
        for output, pipe in ((self.stdout, launcher.stdout), (self.stderr, launcher.stderr)):
            connected, _ = await loop.connect_read_pipe(lambda output=output: output, pipe)  # type: ignore[misc]
            self._pipes.append(connected)
        self._link, _ = await loop.create_connection(lambda: self._news, sock=link)

    async def wait(self) -> int:
        """The exit code of the program, when nobody of its kin is left; minus the number of a signal that killed it."""
        await self._news.over.wait()
        if self._news.error is not None:
            raise AgentError(_why_not_started(self._news.error, self._command[0]))
        if self._news.code is None:
            raise AgentError("the program was killed because its launcher died")
        await self._drain()
        return self._news.code

    async def _drain(self) -> None:
        """What is in the pipes; somebody who has escaped us may hold them open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_SECONDS):
                await self.stdout.closed.wait()
                await self.stderr.closed.wait()

    async def end(self) -> None:
        """End whatever runs, and let go of it. It does no harm after the end."""
        if self._launcher is None:
            return
        try:
            if self._link is not None and not self._news.over.is_set():
                self._link.write_eof()
                async with asyncio.timeout(self._grace_seconds + OVERTIME_SECONDS):
                    await self._news.over.wait()
                await self._drain()
        except TimeoutError:
            self._launcher.kill()
        finally:
            self._close()
            await self._reap(self._launcher)

    def _close(self) -> None:
        for transport in (self._link, *self._pipes):
            if transport is not None:
                transport.close()
        if self._socket is not None:
            _links.discard(self._socket)
            if self._link is None:  # cut short at the start
                self._socket.close()

    async def _reap(self, launcher: "subprocess.Popen[bytes]") -> None:
        """Its last word has been said, so it ends at once; one that was killed leaves its program to us."""
        while launcher.poll() is None:  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(LOOK_SECONDS)
        if self._news.pid is not None and self._news.code is None and self._news.error is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._news.pid, signal.SIGKILL)


class _News(asyncio.Protocol):
    """What the launcher tells: `started PID`, then `ended CODE`, or `unstarted ERRNO` where it was not to be."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.code: int | None = None
        self.error: OSError | None = None
        self.over = asyncio.Event()
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, number = line.decode().partition(" ")
            if word == "started":
                self.pid = int(number)
            elif word == "ended":
                self.code = int(number)
            else:
                self.error = OSError(int(number), os.strerror(int(number)))

    def eof_received(self) -> bool:
        self.over.set()
        return True  # the other half stays ours to close

    def connection_lost(self, error: Exception | None) -> None:
        self.over.set()


_links: "set[socket.socket]" = set()


def _let_go_after_fork() -> None:
    """A fork of the runner holds no link: otherwise a launcher would not notice when the runner has gone."""
    while _links:
        _links.pop().close()


os.register_at_fork(after_in_child=_let_go_after_fork)


def _interpreter() -> str:
    if not sys.executable:
        raise ConfigError("sys.executable is not set, so the agent's program cannot be started")
    return sys.executable


def _why_not_started(error: OSError, program: str) -> str:
    if error.errno == errno.E2BIG:
        return (
            f"the program {program!r} cannot be started: its arguments and environment are too large for this system; "
            "use inherit_env=False, or fewer or shorter prompts"
        )
    hint = ": a script needs a first line such as #!/bin/sh" if error.errno == errno.ENOEXEC else ""
    where = f" ({error.filename})" if error.filename else ""  # a folder that has gone
    return f"the program {program!r} cannot be started: {error.strerror}{where}{hint}"
